"""The links to all peers, and the stores over them. Belongs to the loop that sends all requests."""

from __future__ import annotations

import asyncio
import contextlib
import math
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from feedd.errors import CacheError, FeeddError
from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.s3.bodies import Files
from feedd.fetch.s3.connection import Patience
from feedd.fetch.s3.pool import ConnectionPool, Endpoint
from feedd.fetch.s3.transfer import TransferThreads
from feedd.flow.pools import LOCAL_FILES
from feedd.metrics import PEER_PAUSED
from feedd.peers.delay_meter import DelayMeter
from feedd.peers.peer_link import PeerLink, Promise
from feedd.peers.peer_store import PeerStore
from feedd.units import parse_host_port

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection

    from feedd.peers.peer_options import PeerOptions
    from feedd.protocols import Clock, FetchWatch, ObjectStore, Recorder, ShardFetcher
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef

_SCHEME: Final = "peer://"
_PARTS_MAX: Final = 256
"""Bounds the connections to one peer, of which each waiting request has one."""
_log = structlog.get_logger(__name__)


class Buckets(Protocol):
    """The stores, by root."""

    def of(self, root: str) -> ObjectStore:
        """Return the store of a root."""

    def add(self, root: str, store: ObjectStore) -> None:
        """Use a store as it is for a root of its own."""


class PeerLinks:
    """Opens a link to a peer on its first use.

    Args:
        options: timeout, threads and bounds.
        buckets: the stores.
        ranges: fetches entries by ranges, from the store of their root.
        tls: context of connections to peers; None: plain text.
        recorder: takes the measurements.
        clock: times the pauses of failing peers.

    Attributes:
        meter: measures this daemon's own delays.
    """

    def __init__(
        self,
        options: PeerOptions,
        buckets: Buckets,
        ranges: ShardFetcher,
        tls: ssl.SSLContext | None,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._buckets = buckets
        self._ranges = ranges
        self._tls = tls
        self._recorder = recorder
        self._clock = clock
        self._links: dict[str, PeerLink] = {}
        self._stores: dict[str, PeerStore] = {}
        self._threads = TransferThreads(options.transfer_threads)
        self.meter = DelayMeter(options.timeout_s)
        self.meter.on_tick = self._look
        longest_s = self.meter.delays.longest_s
        self._limits = SourceOptions(
            parts_in_flight=_PARTS_MAX, connect_timeout_s=longest_s, read_timeout_s=longest_s, hedge_share=0
        )
        self._failed = asyncio.Event()

    def usable(self, member: str) -> bool:
        """Whether a peer is not left alone; any thread may ask."""
        link = self._links.get(member)
        return link is None or not link.breaker.is_open

    def link(self, member: str) -> PeerLink:
        """Return the link to a peer."""
        found = self._links.get(member)
        if found is None:
            found = self._links[member] = self._opened(member)
        return found

    def _opened(self, member: str) -> PeerLink:
        host, port = parse_host_port(member)
        # Two thirds, because silence is noticed after up to half as much again.
        patience = Patience(lambda: self.meter.silence_s() * 2 / 3, lambda: link.heard_s, interim_max=math.inf)
        endpoint, files = Endpoint(member, host, port, self._tls, patience=patience), Files(self._threads)
        pool = ConnectionPool(endpoint, self._limits, files)
        link = PeerLink(member, pool, self.meter, self._clock, self._failed.set)
        return link

    async def ask(self, member: str, ref: ObjectRef) -> Promise:
        """Ask a peer for an entry."""
        return await self.link(member).ask(ref)

    async def wait(self, member: str, ref: ObjectRef) -> Promise:
        """Wait while a peer fetches an entry."""
        return await self.link(member).wait(ref)

    async def read(self, member: str, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None) -> str:
        """Fill ``sink`` from a peer that holds the entry; return the outcome, as ``PEER_FETCHES`` names it.

        Raises:
            CacheError: the sink cannot be written.
        """
        name = f"{_SCHEME}{member}/{ref.root}"
        store = self._stores.get(name)
        if store is None:
            store = self._stores[name] = PeerStore(self._buckets.of(ref.root), self.link(member), self._recorder)
            self._buckets.add(name, store)
        try:
            with store.fetching(ref):
                await self._ranges.fetch(replace(ref, root=name), sink, watch)
        except CacheError:
            raise
        except FeeddError as error:  # the store's own error, if it fails too, says more
            _log.debug("an entry was not read from a peer", object=ref.url, peer=member, error=str(error))
            return "failed"
        return "read"

    def _look(self) -> None:
        for link in self._links.values():
            link.look()

    async def probe(self) -> None:
        """Probe failing peers when their pauses end; never returns."""
        while True:
            self._failed.clear()
            paused = [link for link in self._links.values() if link.breaker.is_open]
            self._recorder.gauge(PEER_PAUSED, len(paused))
            now_s = self._clock.monotonic_s()
            due_s = min((link.breaker.probe_at_s for link in paused), default=math.inf) - now_s
            if due_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due_s if due_s < math.inf else None):
                        await self._failed.wait()
                continue
            await asyncio.gather(*(link.probe() for link in paused if link.breaker.probe_at_s <= now_s))

    async def retain(self, members: Collection[str]) -> None:
        """Close the links to all peers but ``members``."""
        gone = [member for member in self._links if member not in members]
        self._stores = {name: store for name, store in self._stores.items() if store.member not in gone}
        for member in gone:
            await self._links.pop(member).close()

    async def close(self) -> None:
        """Close all links."""
        self._recorder.gauge(PEER_PAUSED, 0)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(LOCAL_FILES.run, self._threads.close)
            for link in self._links.values():
                stack.push_async_callback(link.close)
