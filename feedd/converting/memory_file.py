"""Anonymous memory that other code can use as a file."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Self

from feedd.flow.mapping import FileMapping, file_of, file_pieces, write_at
from feedd.flow.pools import CACHE_DISK
from feedd.flow.tasks import to_its_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from feedd.flow.mapping import FilePlace
    from feedd.values import ByteRange, ShardFile

    _Work = Callable[[threading.Event], None]


class MemoryFile:
    """A memfd that vanishes when it is closed; a context manager.

    Args:
        name: name shown in ``/proc``.
        size_bytes: size of the file; pages are allocated as they are written.
    """

    def __init__(self, name: str, size_bytes: int = 0) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
        self._mapping: FileMapping | None = None
        try:
            if size_bytes:
                os.ftruncate(self.fd, size_bytes)
                self._mapping = FileMapping(self.fd, size_bytes)
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def view(self) -> memoryview:
        """Return a writable view of the whole file."""
        return memoryview(b"" if self._mapping is None else self._mapping)

    def close(self) -> None:
        """Free the memory. Calling it again has no effect."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        if self._mapping is not None:
            with suppress(BufferError):  # a traceback holds views; the mapping goes with them
                self._mapping.close()


async def copy_into(target: memoryview, fd: int) -> None:
    """Fill ``target`` with the start of a file, in a thread; a target in a file is written by its descriptor.

    Raises:
        OSError: source or target cannot be accessed.
    """
    await _in_thread(lambda stop: _copy(fd, target, file_of(target), stop))


async def copy_spans(file: ShardFile, spans: Sequence[ByteRange], fd: int) -> None:
    """Copy ranges of a cached object to the same offsets of a file, in a thread.

    Raises:
        OSError: source or target cannot be accessed, or the object is cut short.
    """
    await _in_thread(lambda stop: _copy_spans(file, spans, fd, stop))


async def tell_landed(place: FilePlace, size_bytes: int) -> None:
    """Report bytes that a worker wrote to ``place`` to its observer, if there is one.

    Raises:
        OSError: the file cannot be read.
    """
    if place.landed is not None:
        await _in_thread(lambda stop: _tell(place, size_bytes, stop))


async def _in_thread(work: _Work) -> None:
    stop = threading.Event()
    job = CACHE_DISK.begin(work, stop)
    await to_its_end(job, stop)


def _copy(fd: int, target: memoryview, place: FilePlace | None, stop: threading.Event) -> None:
    for at, piece in _pieces(fd, 0, target.nbytes, stop):
        if place is None:
            target[at : at + piece.nbytes] = piece
        else:
            write_at(place.fd, piece, place.at + at)
            if place.landed is not None:
                place.landed(place.at + at, piece)


def _copy_spans(file: ShardFile, spans: Sequence[ByteRange], fd: int, stop: threading.Event) -> None:
    source = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for span in spans:
            for at, piece in _pieces(source, file.data_at + span.start, span.size_bytes, stop):
                write_at(fd, piece, span.start + at)
    finally:
        os.close(source)


def _tell(place: FilePlace, size_bytes: int, stop: threading.Event) -> None:
    assert place.landed is not None
    for at, piece in _pieces(place.fd, place.at, size_bytes, stop):
        place.landed(place.at + at, piece)


def _pieces(fd: int, start: int, size_bytes: int, stop: threading.Event) -> Iterator[tuple[int, memoryview]]:
    """Yield a range of a file as ``file_pieces`` does, until ``stop`` is set."""
    return takewhile(lambda _: not stop.is_set(), file_pieces(fd, start, size_bytes))
