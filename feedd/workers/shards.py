"""Reads sample bytes from shard files in a worker.

Small samples are read into reused memory: this takes 16 us per 57 KB JPEG, while touching fresh pages of a mapping
takes 25 us. A disk error is then an OSError and does not kill the process. Large samples and whole shards are mapped,
because a copy would cost more than the page faults. Headers between samples are read.
"""

from __future__ import annotations

import mmap
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from feedd.errors import CacheUnavailable
from feedd.workers.messages import out_of_descriptors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.flow.file_pipe import FilePipe
    from feedd.workers.messages import FileMessage


_COPIED_BYTES_MAX: Final = 256 << 10
_NEAR_BYTES: Final = 4 << 10
_WINDOW_BYTES: Final = 64 << 10

_scratch: Final = memoryview(bytearray(_COPIED_BYTES_MAX))


class Shard:
    """One shard file, open during a task; a context manager.

    Raises:
        CacheUnavailable: the file is missing, shorter than its object, or cannot be read.
    """

    def __init__(self, file: FileMessage, given: Sequence[int] = ()) -> None:
        """Open a file; ``given``: descriptors that came with the request, which stay the caller's."""
        self._file = file
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        try:
            self._fd = opened(file, given)
        except OSError as error:
            raise self._unavailable(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Unmap the object. The descriptor stays the caller's, unless the file was opened by its path."""
        if self._file.given < 0:
            os.close(self._fd)
        # A traceback may still hold a slice: the mapping then goes with the traceback.
        with suppress(BufferError):
            if self._view is not None:
                self._view.release()
            if self._map is not None:
                self._map.close()

    @property
    def size_bytes(self) -> int:
        """Size of the object."""
        return self._file.size_bytes

    def read(self, start: int, size: int) -> memoryview:
        """Return bytes ``[start, start + size)`` of the object, or as many as it has.

        The view is valid until the next call: callers that need two samples at once must copy.
        """
        size = min(size, self._file.size_bytes - start)
        if size <= 0 or start < 0:
            return memoryview(b"")
        if size > _COPIED_BYTES_MAX:
            return self.whole()[start : start + size]
        target = _scratch[:size]
        try:
            count = os.preadv(self._fd, (target,), self._file.data_at + start)
        except OSError as error:
            raise self._unavailable(str(error)) from error
        if count != size:
            raise self._unavailable(f"{count} of {size} bytes at {start}")
        return target

    def text(self, start: int, size: int) -> bytes:
        """Return a few bytes of the object; empty if the range lies outside of it."""
        if start < 0 or start + size > self._file.size_bytes:
            return b""
        try:
            text = os.pread(self._fd, size, self._file.data_at + start)
        except OSError as error:
            raise self._unavailable(str(error)) from error
        if len(text) != size:
            raise self._unavailable(f"{len(text)} of {size} bytes at {start}")
        return text

    def copy(self, pipe: FilePipe, start: int, size: int, target: tuple[int, int]) -> None:
        """Copy bytes ``[start, start + size)`` of the object to a place in another file.

        Raises:
            CacheUnavailable: the shard file ends before, or cannot be read.
        """
        try:
            count = pipe.copy((self._fd, self._file.data_at + start), target, size)
        except OSError as error:
            raise self._unavailable(str(error)) from error
        if count != size:
            raise self._unavailable(f"{count} of {size} bytes at {start}")

    def whole(self) -> memoryview:
        """Return the whole object, mapped."""
        if self._view is None:
            self._view = self._mapped()
        return self._view

    def _mapped(self) -> memoryview:
        file = self._file
        if not file.size_bytes:
            return memoryview(b"")
        try:
            self._map = mmap.mmap(self._fd, file.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=file.data_at)
        except (OSError, ValueError) as error:
            raise self._unavailable(str(error)) from error
        return memoryview(self._map)

    def _unavailable(self, got: str) -> CacheUnavailable:
        return unavailable(self._file, got)


class ShardHeaders:
    """A shard for a reader that takes short slices of it, in ascending order. They are read and not mapped.

    Mapping the page of a header also maps the cached pages around it: most of the shard, while it is indexed. Headers
    that are near each other are read 64 KiB at a time. Others are read alone.
    """

    def __init__(self, shard: Shard) -> None:
        """Read nothing yet; ``shard`` stays the caller's."""
        self._shard = shard
        self._window = b""
        self._start = self._end = 0  # of the window

    def __len__(self) -> int:
        return self._shard.size_bytes

    def __getitem__(self, part: slice) -> bytes:
        """Return a slice; its bounds count from the start of the shard, and there is no step.

        Raises:
            CacheUnavailable: the file is shorter than its object, or cannot be read.
        """
        start, stop = part.start or 0, self._shard.size_bytes if part.stop is None else part.stop
        if start < self._start or stop > self._end:
            self._read(start, min(stop, self._shard.size_bytes))
        return self._window[start - self._start : stop - self._start]

    def _read(self, start: int, stop: int) -> None:
        if self._start <= start < self._end + _NEAR_BYTES:
            stop = max(stop, min(start + _WINDOW_BYTES, self._shard.size_bytes))
        self._window = self._shard.text(start, max(0, stop - start))
        self._start, self._end = start, start + len(self._window)


class Shards:
    """The shard files of one task, opened on first use; a context manager, indexed by the task's file numbers."""

    def __init__(self, files: Sequence[FileMessage], given: Sequence[int] = ()) -> None:
        """Open nothing yet; ``given``: descriptors that came with the request, which stay the caller's."""
        self._files = files
        self._given = given
        self._open: dict[int, Shard] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for shard in self._open.values():
            shard.__exit__()

    def __getitem__(self, number: int) -> Shard:
        """Return the open shard file with this number.

        Raises:
            CacheUnavailable: see ``Shard``.
        """
        shard = self._open.get(number)
        if shard is None:
            shard = self._open[number] = Shard(self._files[number], self._given)
        return shard


def opened(file: FileMessage, given: Sequence[int]) -> int:
    """Return the given descriptor of a shard file; if none is given, open the file, which the caller closes.

    Raises:
        OSError: the file cannot be opened.
        ResourceExhausted: its descriptor was lost on the way.
    """
    if file.given < 0:
        return os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if file.given >= len(given):
        raise out_of_descriptors()
    return given[file.given]


def unavailable(file: FileMessage, got: str) -> CacheUnavailable:
    """Return the error for a shard file that cannot be read."""
    message = f"expected {file.size_bytes} bytes at {file.data_at} of {file.path}, got {got}"
    return CacheUnavailable(message, object=file.url, stage="decode")


REST_S: Final = 0.5
"""A worker without requests for this many seconds unmaps everything."""

_FILES_MAX: Final = 256
_REQUESTS: Final = 128


@dataclass(slots=True)
class _MappedFile:
    """A mapped file.

    Attributes:
        identity: device and inode, because the path may name another file by now.
        used_at: number of the last request that read the file.
        used_s: time when that request began.
    """

    data: mmap.mmap
    identity: tuple[int, int]
    used_at: int
    used_s: float


class MappedFiles:
    """The files one worker has mapped."""

    def __init__(self) -> None:
        self._cached_files: dict[tuple[str, int, int], _MappedFile] = {}
        self._request = 0
        self._began_s = 0.0
        self._given: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self._cached_files)

    def begin(self, given: Sequence[int] = ()) -> None:
        """Start a request: unmap files that were not read for too many requests, or for too long.

        Args:
            given: descriptors that came with the request; they stay the caller's.
        """
        self._given = given
        self._request += 1
        self._began_s = time.monotonic()
        at, since_s = self._request - _REQUESTS, self._began_s - REST_S
        for key in [key for key, kept in self._cached_files.items() if kept.used_at < at or kept.used_s < since_s]:
            self._drop(key)

    def get(self, file: FileMessage) -> mmap.mmap:
        """Return the object's bytes, which must not be empty; valid until the next request.

        Raises:
            CacheUnavailable: the file is missing, shorter than its object, or cannot be mapped.
        """
        key = (file.path, file.data_at, file.size_bytes)
        kept = self._cached_files.get(key)
        try:
            if kept is None or _identity(self._status(file)) != kept.identity:
                self._drop(key)
                kept = self._cached_files[key] = _mapped(file, self._given)
                while len(self._cached_files) > _FILES_MAX:
                    self._drop(next(iter(self._cached_files)))
        except (OSError, ValueError) as error:
            raise unavailable(file, str(error)) from error
        kept.used_at, kept.used_s = self._request, self._began_s
        return kept.data

    def _status(self, file: FileMessage) -> os.stat_result:
        if 0 <= file.given < len(self._given):
            return os.fstat(self._given[file.given])
        return os.stat(file.path)  # noqa: PTH116 - a Path is slower

    def drop(self) -> None:
        """Unmap everything."""
        for key in tuple(self._cached_files):
            self._drop(key)

    def _drop(self, key: tuple[str, int, int]) -> None:
        kept = self._cached_files.pop(key, None)
        if kept is not None:
            with suppress(BufferError):  # a traceback holds an array over the mapping, which then goes with it
                kept.data.close()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _mapped(file: FileMessage, given: Sequence[int]) -> _MappedFile:
    fd = opened(file, given)
    try:
        found = os.fstat(fd)
        if found.st_size < file.data_at + file.size_bytes:  # reading past a file's end is SIGBUS, not an error
            raise OSError(f"{found.st_size} bytes in all")
        data = mmap.mmap(fd, file.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=file.data_at)
    finally:
        if file.given < 0:
            os.close(fd)
    return _MappedFile(data, _identity(found), 0, 0.0)
