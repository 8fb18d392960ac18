"""A file that is written in pieces by several writers, and read back in pieces."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
from typing import TYPE_CHECKING, ClassVar, Final

from feedd.errors import Unsupported
from feedd.flow.file_writers import Writers

if TYPE_CHECKING:
    from collections.abc import Iterator

_REFUSED: Final = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})
PIECE_BYTES = 256 << 10  # stays in the CPU cache


class SinkFile:
    """A file that sinks write to, by a descriptor of its own. Nothing is mapped: a failing disk is an error, no SIGBUS.

    Attributes:
        in_memory: the file's pages are memory (memfd, tmpfs), so writing waits for no disk.
        writers: the running writes of the file.
    """

    def __init__(self, fd: int) -> None:
        """Duplicate ``fd``, which remains the caller's.

        Raises:
            OSError: no descriptor is left.
        """
        self._fd = -1
        self.writers = Writers()
        self.in_memory = is_in_memory(fd)
        self._fd = os.dup(fd)

    @property
    def fd(self) -> int:
        """The descriptor; valid until ``close``, and for writers that began before until they end.

        Raises:
            OSError: the file is closed.
        """
        if self._fd < 0:
            raise OSError(errno.EBADF, "the file is closed")
        return self._fd

    def close(self) -> None:
        """Close the descriptor, or let the last writer close it; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.writers.then(functools.partial(os.close, fd))

    def __del__(self) -> None:
        """Close a file that its owner lost."""
        self.close()


class OpenFile:
    """A descriptor that is closed with the last reference to this object.

    An entry may leave the cache while a batch still reads it. Its descriptor's number must not name another file then.
    """

    __slots__ = ("fd",)
    live: ClassVar[set[int]] = set()
    """The descriptors of all objects that are not closed."""

    def __init__(self, fd: int) -> None:
        """Own ``fd``."""
        self.fd = fd
        self.live.add(fd)

    def close(self) -> None:
        """Close the descriptor, which has no user; idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self.live.discard(fd)
            os.close(fd)

    def __del__(self) -> None:
        """Close the descriptor if its owner did not."""
        self.close()


def memory_file(name: str) -> int:
    """Return the descriptor of a new, empty memfd, which can be sealed; the caller closes it.

    Args:
        name: name shown in ``/proc``.

    Raises:
        Unsupported: this process may not create one. All batches need it, so the run cannot go on.
        OSError: no descriptor or no memory is left.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise Unsupported(
            f"the kernel refuses shared memory: memfd_create: {error.strerror}",
            hint="allow the system call memfd_create in the seccomp profile of this container or sandbox",
            stage="serve",
        ) from error


def is_in_memory(fd: int) -> bool:
    """Whether the pages of a file are memory, as those of memfd and tmpfs are: only such files can be sealed."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return True


def write_at(fd: int, data: memoryview, at: int) -> None:
    """Write all of ``data``, bytes, at an offset of a file.

    Raises:
        OSError: the file cannot be written; a part of the bytes may be.
    """
    done = 0
    while done < data.nbytes:
        done += os.pwrite(fd, data[done:], at + done)


def file_pieces(fd: int, start: int, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
    """Yield a range of a file in pieces, each with its distance from the start, and valid until the next.

    Raises:
        OSError: the file cannot be read, or ends before the range does.
    """
    buffer = memoryview(bytearray(min(PIECE_BYTES, size_bytes)))
    at = 0
    while at < size_bytes:
        count = os.preadv(fd, [buffer[: size_bytes - at]], start + at)
        if not count:
            raise OSError(f"expected {size_bytes} bytes at {start}, got {at}")
        yield at, buffer[:count]
        at += count
