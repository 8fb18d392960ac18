"""Fetches the ranges of objects that conversions need, to memory."""

from __future__ import annotations

import os
import threading
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Self

from feedd.flow.pools import CACHE_DISK
from feedd.flow.range_sinks import FileSink, MemorySink
from feedd.flow.sink_file import SinkFile, file_pieces, memory_file, write_at
from feedd.flow.tasks import run_to_end
from feedd.metrics import PIPELINE_MAKING
from feedd.tables.registry import only_counts
from feedd.units import MIB
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from feedd.protocols import FetchWatch, PinnedShards, Recorder, SpanFetcher
    from feedd.range_sink import RangeSink
    from feedd.tables.task import TablePlan
    from feedd.values import ObjectRef, ShardFile

    Held = Callable[[ObjectRef, bool], Awaitable[PinnedShards | None]]

    _Work = Callable[[threading.Event], None]


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


class MemoryFile:
    """A memfd that vanishes when it is closed; a context manager.

    Args:
        name: name shown in ``/proc``.
        size_bytes: size of the file; pages are allocated as they are written.
    """

    def __init__(self, name: str, size_bytes: int = 0) -> None:
        self.fd = memory_file(name)
        try:
            if size_bytes:
                os.ftruncate(self.fd, size_bytes)
            self._file = SinkFile(self.fd)
        except BaseException:
            os.close(self.fd)
            raise
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def sink(self) -> FileSink:
        """Return a sink for the whole file."""
        return FileSink(self._file, 0, self._size_bytes)

    def close(self) -> None:
        """Free the memory. Calling it again has no effect."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
            self._file.close()


async def copy_into(sink: RangeSink, fd: int) -> None:
    """Fill ``sink`` with the start of a file, in a thread.

    Raises:
        OSError: source or sink cannot be accessed.
    """
    await _in_thread(lambda stop: _copy(fd, sink, stop))


async def copy_spans(file: ShardFile, spans: Sequence[ByteRange], fd: int) -> None:
    """Copy ranges of a cached object to the same offsets of a file, in a thread.

    Raises:
        OSError: source or target cannot be accessed, or the object is cut short.
    """
    await _in_thread(lambda stop: _copy_spans(file, spans, fd, stop))


async def note_all_written(sink: FileSink) -> None:
    """Report the bytes of a sink that a worker wrote to its file.

    Raises:
        OSError: the file cannot be read.
    """
    if sink.wants_written:
        await _in_thread(lambda stop: _note(sink, stop))


async def _in_thread(work: _Work) -> None:
    stop = threading.Event()
    job = CACHE_DISK.begin(work, stop)
    await run_to_end(job, stop)


def _copy(fd: int, sink: RangeSink, stop: threading.Event) -> None:
    for at, piece in _pieces(fd, 0, sink.size_bytes, stop):
        if isinstance(sink, FileSink):
            sink.write_now(at, piece)
        else:
            assert isinstance(sink, MemorySink), "a sink is a file or memory"
            sink.memory[at : at + piece.nbytes] = piece


def _copy_spans(file: ShardFile, spans: Sequence[ByteRange], fd: int, stop: threading.Event) -> None:
    source = os.dup(file.fd) if file.fd >= 0 else os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for span in spans:
            for at, piece in _pieces(source, file.data_at + span.start, span.size_bytes, stop):
                write_at(fd, piece, span.start + at)
    finally:
        os.close(source)


def _note(sink: FileSink, stop: threading.Event) -> None:
    for at, piece in _pieces(sink.file.fd, sink.offset, sink.size_bytes, stop):
        sink.note_written(at, piece)


def _pieces(fd: int, start: int, size_bytes: int, stop: threading.Event) -> Iterator[tuple[int, memoryview]]:
    """Yield a range of a file as ``file_pieces`` does, until ``stop`` is set."""
    return takewhile(lambda _: not stop.is_set(), file_pieces(fd, start, size_bytes))
