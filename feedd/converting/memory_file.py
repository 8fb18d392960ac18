"""Anonymous memory that other code can use as a file."""

from __future__ import annotations

import os
import threading
from itertools import takewhile
from typing import TYPE_CHECKING, Self

from feedd.flow.pools import CACHE_DISK
from feedd.flow.range_sinks import FileSink, MemorySink
from feedd.flow.sink_file import SinkFile, file_pieces, memory_file, write_at
from feedd.flow.tasks import run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ShardFile

    _Work = Callable[[threading.Event], None]


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
