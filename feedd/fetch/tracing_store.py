"""Wrappers that note fetches, parts and requests for traces; used only while tracing is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.flow.trace_log import attempt_traced, part_traced
from feedd.values import ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from feedd.flow.trace_log import TraceLog
    from feedd.protocols import FetchWatch, ObjectStore, SpanFetcher
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectChecksum, ObjectRef


class TracingStore:
    """A store that notes each read: as a part above the wrappers that retry, as a request below them.

    Args:
        inner: the store.
        requests: it is below them.
    """

    def __init__(self, inner: ObjectStore, *, requests: bool) -> None:
        self._inner = inner
        self._requests = requests

    def __repr__(self) -> str:
        return f"TracingStore({self._inner!r})"

    @property
    def root(self) -> str:
        """Root of the inner store."""
        return self._inner.root

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[list[ObjectRef]]:
        """Return the inner store's pages."""
        return self._inner.list(prefix, start_after)

    async def head(self, key: str) -> ObjectRef:
        """Send a HEAD to the inner store."""
        return await self._inner.head(key)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Get the checksum from the inner store; see ``ObjectStore.checksum``."""
        return await self._inner.checksum(ref)

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read from the inner store."""
        noted = progress or ReadProgress()
        with attempt_traced(noted) if self._requests else part_traced(ref.url, span):
            await self._inner.read_into(ref, span, sink, noted)

    async def close(self) -> None:
        """Close the inner store."""
        await self._inner.close()


class TracingFetcher:
    """A ``SpanFetcher`` that notes each fetch."""

    def __init__(self, inner: SpanFetcher, traces: TraceLog) -> None:
        self._inner = inner
        self._traces = traces

    def __repr__(self) -> str:
        return f"TracingFetcher({self._inner!r})"

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        """Fetch an object; see ``ShardFetcher.fetch``."""
        with self._traces.fetching(ref.url, ref.size_bytes):
            await self._inner.fetch(ref, sink, watch)

    async def fetch_spans(
        self, ref: ObjectRef, spans: Sequence[ByteRange], sink: RangeSink, watch: FetchWatch | None = None
    ) -> None:
        """Fetch spans of an object; see ``SpanFetcher.fetch_spans``."""
        with self._traces.fetching(ref.url, sum(span.size_bytes for span in spans)):
            await self._inner.fetch_spans(ref, spans, sink, watch)
