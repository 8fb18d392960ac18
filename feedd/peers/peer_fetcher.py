"""Fetches cache entries from the peers that hold them, and everything else from the stores."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from feedd.dataset.object_spans import is_span, object_of
from feedd.metrics import PEER_FETCHES
from feedd.peers.peer_link import Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.flow.loop_thread import WorkLoop
    from feedd.peers.peer_links import PeerLinks
    from feedd.peers.peer_traffic import PeerTraffic
    from feedd.protocols import FetchWatch, Recorder, SpanFetcher
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectRef

_S3: Final = "s3://"
_OUTCOMES: Final = {Promise.FAILED: "failed"}
_HOLDERS_MAX: Final = 2
"""So many members are asked for an entry before the store is."""


class PeerFetcher:
    """A ``SpanFetcher`` over the stores' fetcher. An entry of S3 that another member holds is read from that member.

    Spans of objects, which conversions ask for, come from the stores.

    Args:
        inner: fetches from stores.
        links: the peers; belongs to ``work_loop``.
        work_loop: sends the requests.
        holder_of: returns the other member that holds an entry; None: the entry comes from its store.
        traffic: what moves between daemons.
        recorder: takes the measurements.
    """

    def __init__(
        self,
        inner: SpanFetcher,
        links: PeerLinks,
        work_loop: WorkLoop,
        holder_of: Callable[[ObjectRef], str | None],
        traffic: PeerTraffic,
        recorder: Recorder,
    ) -> None:
        self._inner = inner
        self._links = links
        self._work_loop = work_loop
        self._holder_of = holder_of
        self._traffic = traffic
        self._recorder = recorder

    def __repr__(self) -> str:
        return f"PeerFetcher({self._inner!r})"

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        """Fill ``sink`` from the peer that holds the entry, or else from the store; see ``ShardFetcher.fetch``."""
        if not may_travel(ref) or not await self._from_peers(ref, sink, watch):
            await self._inner.fetch(ref, sink, watch)

    async def fetch_spans(
        self, ref: ObjectRef, spans: Sequence[ByteRange], sink: RangeSink, watch: FetchWatch | None = None
    ) -> None:
        """Fetch spans of an object from its store; see ``SpanFetcher.fetch_spans``."""
        await self._inner.fetch_spans(ref, spans, sink, watch)

    async def _from_peers(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None) -> bool:
        """Fill ``sink`` from a peer; return False if it must come from the store.

        If the holder does not answer, it leaves the members, and the next holder is asked. The other daemons come to
        the same one.
        """
        asked = ""
        for _ in range(_HOLDERS_MAX):
            holder = self._holder_of(ref)
            if holder is None or holder == asked or not self._traffic.may_wait(ref):
                return False
            asked = holder
            promise = await self._promise(holder, ref)
            outcome = _OUTCOMES.get(promise, "refused")
            if promise is Promise.HELD:
                outcome = await self._work_loop.run(partial(self._links.read, holder, ref, sink, watch))
            self._recorder.count(PEER_FETCHES, outcome=outcome)
            if promise is not Promise.FAILED:
                return outcome == "read"
        return False

    async def _promise(self, holder: str, ref: ObjectRef) -> Promise:
        """Ask a peer for an entry; return ``FETCHING`` only if this daemon may not wait."""
        promise = await self._work_loop.run(partial(self._links.ask, holder, ref))
        if promise is Promise.FETCHING and self._traffic.may_wait(ref):
            with self._traffic.waiting(ref):
                return await self._work_loop.run(partial(self._links.wait, holder, ref))
        return promise


def may_travel(ref: ObjectRef) -> bool:
    """Whether an entry may go from one daemon to another: local files and converted shards stay where they are."""
    if not ref.root.startswith(_S3) or ref.conversion is not None or not ref.size_bytes:
        return False
    return _fits_request(ref) and (not is_span(ref) or _is_within(ref))


def _fits_request(ref: ObjectRef) -> bool:
    try:
        f"{ref.root}{ref.key}".encode()
    except UnicodeEncodeError:
        return False
    return ref.etag.isascii() and ref.etag.isprintable() and '"' not in ref.etag


def _is_within(ref: ObjectRef) -> bool:
    """Whether a span, which a peer may have named, is one."""
    try:
        whole, start = object_of(ref)
    except ValueError:
        return False
    return 0 <= start <= whole.size_bytes - ref.size_bytes
