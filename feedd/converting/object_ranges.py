"""Fetches the ranges of objects that conversions need, to memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.convert.counting import only_counts
from feedd.converting.memory_file import MemoryFile, copy_spans
from feedd.metrics import PIPELINE_MAKING
from feedd.units import MIB
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from feedd.convert.whole_table import TablePlan
    from feedd.protocols import FetchWatch, PinnedShards, Recorder, SpanFetcher
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef

    Held = Callable[[ObjectRef, bool], Awaitable[PinnedShards | None]]

CHARGE_BYTES_MAX: Final = 32 * MIB
_CHARGE_BYTES_MIN: Final = 2 * MIB


def charge_bytes(ref: ObjectRef) -> int:
    """Return what an object takes of a budget of conversions: 16 small ones take as much as a large one."""
    size_bytes = 0 if only_counts(ref.conversion) else ref.size_bytes
    return min(max(size_bytes, _CHARGE_BYTES_MIN), CHARGE_BYTES_MAX)


class FetchedRanges:
    """The ranges of an object that are in memory, for a conversion.

    Attributes:
        file: as long as the object.
        spans: the ranges, in order.
        plan: how the object is converted into a table, if its footer tells that; then no range of values is there.
    """

    def __init__(self, size_bytes: int, recorder: Recorder) -> None:
        self.file = MemoryFile("feedd-object", size_bytes)
        self.spans: tuple[ByteRange, ...] = ()
        self.plan: TablePlan | None = None
        self._recorder = recorder
        self._size_bytes = size_bytes
        recorder.move(PIPELINE_MAKING, size_bytes)

    def close(self) -> None:
        """Free the memory. Calling it again has no effect."""
        if self.file.fd >= 0:
            self.file.close()
            self._recorder.move(PIPELINE_MAKING, -self._size_bytes)


class ObjectRanges:
    """Fetches ranges of objects, or copies them from the cache.

    Attributes:
        pinned: returns a pin on an object that the cache holds unconverted. The cache also fetches an object if several
            shards are made of it. None: the cache does not hold the object.
    """

    def __init__(self, fetcher: SpanFetcher) -> None:
        self.pinned: Held = _nothing
        self._fetcher = fetcher

    async def fetch(
        self,
        plain: ObjectRef,
        wanted: Sequence[ByteRange],
        target: FetchedRanges,
        urgency: Callable[[], float],
        *,
        again: bool,
    ) -> None:
        """Add ranges of an object to ``target``. A whole object that is needed ``again`` goes through the cache."""
        await self._fetch(plain, wanted, target.file, _Watch(urgency), again=again)
        target.spans = joined((*target.spans, *wanted))

    async def _fetch(
        self, plain: ObjectRef, wanted: Sequence[ByteRange], source: MemoryFile, watch: FetchWatch, *, again: bool
    ) -> None:
        whole = any(span.size_bytes == plain.size_bytes for span in wanted)
        if not any(span.size_bytes for span in wanted):
            return
        if await self._copied(plain, wanted, source, bring=whole and again):
            return
        if whole:
            await self._fetcher.fetch(plain, source.sink(), watch)
        else:
            await self._fetcher.fetch_spans(plain, wanted, source.sink(), watch)

    async def _copied(self, plain: ObjectRef, wanted: Sequence[ByteRange], source: MemoryFile, *, bring: bool) -> bool:
        """Copy the wanted ranges of an object from the cache; return False if they must be fetched."""
        pins = await self.pinned(plain, bring)
        if pins is None:
            return False
        with pins:
            try:
                await copy_spans(pins.files[0], wanted, source.fd)
            except OSError:
                return False  # the cached file is missing or cut short; its readers will report it
        return True


class _Watch:
    """A ``FetchWatch`` that passes on how urgent a fetch is."""

    def __init__(self, urgency: Callable[[], float]) -> None:
        self._urgency = urgency

    def urgency(self) -> float:
        return self._urgency()

    def arrived(self, span: ByteRange, part: RangeSink) -> None:
        """Ignore the part, because the conversion reads the whole object later."""


def joined(spans: Iterable[ByteRange]) -> tuple[ByteRange, ...]:
    """Return spans in order, with adjacent and overlapping ones joined."""
    found: list[ByteRange] = []
    for span in sorted(spans):
        if found and span.start <= found[-1].end:
            found[-1] = ByteRange(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return tuple(found)


async def _nothing(ref: ObjectRef, bring: bool) -> PinnedShards | None:  # noqa: FBT001 - the seam's signature
    del ref, bring
    return None
