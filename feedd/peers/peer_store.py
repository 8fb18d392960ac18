"""A store whose objects are read from a peer first. Everything else, and what the peer cannot do, is the store's."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from feedd.dataset.object_spans import is_span, object_of
from feedd.dataset.pack_layout import is_pack
from feedd.errors import StoreUnavailable
from feedd.fetch.pages import closing_pages
from feedd.metrics import PEER_READ_BYTES, PEER_READS
from feedd.values import ByteRange, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from feedd.peers.peer_link import PeerLink
    from feedd.protocols import ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectChecksum, ObjectRef

_log = structlog.get_logger(__name__)


class PeerStore:
    """One bucket, with one peer in front of it. A range that the peer fails to send comes from the bucket.

    Checksums come from the bucket, so a peer cannot vouch for its own bytes. Packs exist in caches only: if the peer
    fails, the read of a pack fails.

    Args:
        inner: the bucket.
        link: the peer.
        recorder: takes the measurements.
    """

    def __init__(self, inner: ObjectStore, link: PeerLink, recorder: Recorder) -> None:
        self._inner = inner
        self._link = link
        self._recorder = recorder
        self._received: dict[ObjectRef, list[ByteRange]] = {}

    def __repr__(self) -> str:
        return f"PeerStore({self._link.member}, {self._inner!r})"

    @property
    def root(self) -> str:
        """Root of the inner store."""
        return self._inner.root

    @property
    def member(self) -> str:
        """Address of the peer."""
        return self._link.member

    @contextmanager
    def fetching(self, ref: ObjectRef) -> Iterator[None]:
        """Treat the body as one fetch: a range that is wanted again was damaged, and comes from the bucket then."""
        ref = self._own(ref)
        if ref in self._received:  # two caches of this node fetch the entry at the same time
            yield
            return
        self._received[ref] = []
        try:
            yield
        finally:
            del self._received[ref]

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the inner store's pages."""
        async with closing_pages(self._inner.list(prefix, start_after)) as pages:
            async for page in pages:
                yield page

    async def head(self, key: str) -> ObjectRef:
        """Send a HEAD to the inner store."""
        return await self._inner.head(key)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Get the checksum from the inner store; entries that are no whole objects have none."""
        if is_span(ref) or is_pack(ref):
            return None
        return await self._inner.checksum(self._own(ref))

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read a range from the peer, or else from the inner store."""
        ref, noted = self._own(ref), progress or ReadProgress()
        if span.size_bytes and await self._from_peer(ref, span, sink, noted):
            return
        if is_pack(ref):
            raise StoreUnavailable("the pack cannot be read from a peer", object=ref.url, stage="source")
        wanted, start = object_of(ref)
        noted.filled_bytes, noted.first_byte_s = 0, None
        await self._inner.read_into(wanted, ByteRange(start + span.start, start + span.end), sink, noted)

    async def close(self) -> None:
        """Do nothing: the connections and the inner store belong to others."""

    def _own(self, ref: ObjectRef) -> ObjectRef:
        """Return the ref as the inner store knows it; a fetch through a peer has a root of its own."""
        return ref if ref.root == self.root else replace(ref, root=self.root)

    async def _from_peer(self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress) -> bool:
        """Read a range from the peer; return whether it came."""
        received = self._received.get(ref)
        if received is not None and any(one.start < span.end and span.start < one.end for one in received):
            self._count("damaged")
            self._link.failed(ValueError(f"wrong bytes of {ref.url}"))
            return False
        if self._link.breaker.is_open:
            self._count("paused")
            return False
        try:
            came = await self._link.read(ref, span, sink, progress)
        except StoreUnavailable as error:
            _log.debug("a peer failed", object=ref.url, error=str(error))
            self._count("failed")
            return False
        self._count("read" if came else "gone")
        if came:
            self._recorder.count(PEER_READ_BYTES, span.size_bytes)
            if received is not None:
                received.append(span)
        return came

    def _count(self, outcome: str) -> None:
        self._recorder.count(PEER_READS, outcome=outcome)
