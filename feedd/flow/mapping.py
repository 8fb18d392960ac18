"""Memory that is a mapped file; a writer may use either the memory or the file."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

from feedd.flow.file_writers import Writers

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE_BYTES = 256 << 10  # fits into the CPU cache


class Landed(Protocol):
    """Callback for bytes that were written to a file."""

    def __call__(self, at: int, data: memoryview, *, begins: bool = False) -> object:
        """Handle bytes written at offset ``at``; ``begins``: they do not continue the bytes before them."""


class FilePlace(NamedTuple):
    """The region of a file that a view of a ``FileMapping`` covers.

    Attributes:
        fd: the mapping's descriptor; open until all writers that have begun have ended.
        at: offset of the view's first byte.
        landed: see ``FileMapping``.
        writers: see ``FileMapping``.
        in_memory: see ``FileMapping``.
    """

    fd: int
    at: int
    landed: Landed | None
    writers: Writers
    in_memory: bool


class FileMapping(mmap.mmap):
    """A whole file mapped shared and writable, with a descriptor for the same bytes.

    The ways to fill a mapping differ in cost. Touching a fresh page of tmpfs through the mapping costs a page fault and
    the clearing of the page. Writing whole pages through the descriptor costs neither. If the disk cannot deliver a
    page, touching the page kills the process (SIGBUS), while a call on the descriptor fails.

    Attributes:
        fd: open while the mapping is open, and until its last writer has ended.
        address: address of its first byte in this process.
        in_memory: its pages are memory (memfd, tmpfs), so writing never waits for a disk.
        writers: pending writes through ``fd``.
        landed: called by writers with offset and bytes, from any thread, while the bytes are in the CPU cache. The
            bytes are not kept. None: not needed.
    """

    fd: int
    address: int
    in_memory: bool
    writers: Writers
    landed: Landed | None

    def __new__(cls, fd: int, size_bytes: int) -> FileMapping:  # noqa: PYI034 - mmap's own would be typed Self of mmap
        """Map ``size_bytes`` of ``fd``, which the caller keeps.

        Raises:
            OSError, ValueError: as mmap does.
        """
        mapping = super().__new__(cls, fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        mapping.writers = Writers()
        mapping.landed = None
        mapping.address = _address(mapping)
        mapping.in_memory = is_in_memory(fd)
        mapping.fd = os.dup(fd)
        return mapping

    def close(self) -> None:
        """Unmap and close.

        Raises:
            BufferError: views of the mapping exist; it closes when the last view is gone.
        """
        super().close()
        self._close_fd()

    def __del__(self) -> None:
        """Close the descriptor that a failed ``close`` left open."""
        self._close_fd()

    def _close_fd(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            self.writers.then(functools.partial(os.close, fd))


def is_in_memory(fd: int) -> bool:
    """Whether a file's pages are memory, as with memfd and tmpfs: only those files can be sealed."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return True


def file_of(target: memoryview) -> FilePlace | None:
    """Return the file region of ``target``, which is writable and not empty; None if it is no view of a mapping."""
    mapping = target.obj
    if not isinstance(mapping, FileMapping) or mapping.fd < 0:
        return None
    at = _address(target) - mapping.address
    return FilePlace(mapping.fd, at, mapping.landed, mapping.writers, mapping.in_memory)


def write_at(fd: int, data: memoryview, at: int) -> None:
    """Write all bytes of ``data`` at an offset of a file.

    Raises:
        OSError: the file cannot be written; part of the bytes may be written.
    """
    done = 0
    while done < data.nbytes:
        done += os.pwrite(fd, data[done:], at + done)


def on_disk(data: memoryview) -> bool:
    """Whether reading ``data`` may need a disk read, so that the event loop must not read it."""
    place = file_of(data) if data.nbytes and not data.readonly else None
    return place is not None and not place.in_memory


def pieces(data: memoryview) -> Iterator[memoryview]:
    """Yield ``data`` in pieces, each valid until the next; pieces of a mapped file are read from the file.

    A copy into a buffer in the CPU cache replaces a page fault for every few pages and their later unmapping. Measured
    on tmpfs: 0.12 against 0.24 CPU-seconds per GB, checksum included.

    Raises:
        OSError: the file cannot be read.
    """
    place = file_of(data) if data.nbytes and not data.readonly else None
    if place is None:
        for at in range(0, data.nbytes, _PIECE_BYTES):
            yield data[at : at + _PIECE_BYTES]
        return
    for _, piece in file_pieces(place.fd, place.at, data.nbytes):
        yield piece


def file_pieces(fd: int, start: int, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
    """Yield pieces of a file's range with their offset in the range; each is valid until the next.

    Raises:
        OSError: the file cannot be read, or ends before the range does.
    """
    buffer = memoryview(bytearray(min(_PIECE_BYTES, size_bytes)))
    at = 0
    while at < size_bytes:
        count = os.preadv(fd, [buffer[: size_bytes - at]], start + at)
        if not count:
            raise OSError(f"expected {size_bytes} bytes at {start}, got {at}")
        yield at, buffer[:count]
        at += count


def _address(memory: memoryview | mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
