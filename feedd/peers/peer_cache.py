"""The peer cache of one daemon: members, links to peers, and the server for them, opened and closed together."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol, Self

import structlog

from feedd.errors import BadConfig
from feedd.flow.loop_thread import LoopThread
from feedd.flow.pools import DNS, LOCAL_FILES
from feedd.peers.members import Members
from feedd.peers.peer_entries import PeerEntries
from feedd.peers.peer_fetcher import PeerFetcher
from feedd.peers.peer_links import PeerLinks
from feedd.peers.peer_server import PeerServer
from feedd.peers.peer_tls import PeerContexts
from feedd.peers.peer_traffic import PeerTraffic
from feedd.units import parse_host_port

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from feedd.access import AccessRules
    from feedd.flow.loop_thread import WorkLoop
    from feedd.peers.peer_entries import EntryCache
    from feedd.peers.peer_links import Buckets
    from feedd.peers.peer_options import PeerOptions
    from feedd.protocols import Clock, Recorder, ShardFetcher, SpanFetcher

_BACKLOG: Final = 256
_REFRESH_S: Final = 5.0
_log = structlog.get_logger(__name__)


class Stores(Protocol):
    """What the peer cache needs of the stores."""

    @property
    def fetcher(self) -> SpanFetcher:
        """Fetches from stores."""

    @property
    def ranges(self) -> ShardFetcher:
        """Fetches by ranges; belongs to the work loop."""

    @property
    def buckets(self) -> Buckets:
        """The stores, by root; belongs to the work loop."""

    @property
    def work_loop(self) -> WorkLoop:
        """Sends all requests."""


class PeerCache:
    """Reads entries from peers, and serves entries to them. Entered before the cache opens, left after it closed.

    Args:
        options: members, address, TLS.
        stores: the stores.
        recorder: takes the measurements.
        clock: the clock.

    Attributes:
        fetcher: fetches entries from peers, or else from the stores.
    """

    fetcher: PeerFetcher

    def __init__(self, options: PeerOptions, stores: Stores, recorder: Recorder, clock: Clock) -> None:
        self._options = options
        self._stores = stores
        self._recorder = recorder
        self._clock = clock
        self._traffic = PeerTraffic()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen, and find the members.

        Raises:
            BadConfig: the address cannot be listened on, or a TLS file cannot be used.
        """
        options, work_loop = self._options, self._stores.work_loop
        async with AsyncExitStack() as stack:
            self._listener = stack.enter_context(await _listener(options.listen))
            port = self._listener.getsockname()[1]
            self._contexts = PeerContexts(options.tls)
            await LOCAL_FILES.run(self._contexts.read)
            members = Members(options, port, self._recorder)
            stack.callback(members.retire)
            await members.refresh()
            client_context = self._contexts.client
            links = await work_loop.run(lambda: self._linked(client_context))
            stack.push_async_callback(lambda: work_loop.run(links.close))
            self._links = links
            self.fetcher = PeerFetcher(
                self._stores.fetcher,
                links,
                work_loop,
                lambda ref: members.holder_of(ref, links.usable),
                self._traffic,
                self._recorder,
            )
            group = await stack.enter_async_context(asyncio.TaskGroup())
            for upkeep in (
                self._follow(members, links),
                self._contexts.follow(self._clock),
                work_loop.run(links.probe),
            ):
                stack.callback(group.create_task(upkeep).cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the links."""
        await self._stack.aclose()

    @asynccontextmanager
    async def serving(self, cache: EntryCache, access: AccessRules) -> AsyncIterator[None]:
        """Serve the entries of an open cache to peers during the body; then the port is free for the next daemon."""
        async with PeerEntries(cache, access, self._traffic) as entries, LoopThread("feedd-peers") as thread:
            server = PeerServer(entries, thread, self._contexts.server, self._recorder, self._options.timeout_s / 4)
            self._links.meter.server_loop = await thread.run(_running_loop)
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(thread.run(lambda: server.serve(self._listener)))
                _log.info("serves peers", address=_address(self._listener), tls=self._contexts.server is not None)
                try:
                    yield
                finally:
                    self._links.meter.server_loop = None
                    serving.cancel()
            self._listener.close()  # before the cache is closed, whose next owner listens at the same port

    async def _follow(self, members: Members, links: PeerLinks) -> None:
        """Find the members again and again; never returns."""
        while True:
            await self._clock.sleep_s(_REFRESH_S)
            if await members.refresh():
                await self._stores.work_loop.run(lambda: links.retain(members.current))

    async def _linked(self, tls: ssl.SSLContext | None) -> PeerLinks:
        return PeerLinks(self._options, self._stores.buckets, self._stores.ranges, tls, self._recorder, self._clock)


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def _listener(address: str) -> socket.socket:
    """Return a listening, non-blocking TCP socket.

    Raises:
        BadConfig: the address cannot be listened on.
    """
    host, port = parse_host_port(address)
    try:
        found = await DNS.run(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        message = f"expected an address to listen on for peers, got {address}: {reason}"
        raise BadConfig(message, object=address, hint="set peers.listen to a free port", stage="peers") from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"
