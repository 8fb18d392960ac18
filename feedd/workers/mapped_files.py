"""Shard files a worker keeps mapped for a moment, because the next batches read them too.

Measured on a virtual machine, 256 rows of 4 KB drawn from four shards: 300 us from mappings that are there already,
650 us by pread, 1,900 us from fresh mappings, which take a fault for every 16 pages.

A mapping keeps what it maps: an evicted file's bytes are never written over while it is there, but its space is not
given back either. So what the last requests did not read goes, and all goes when a worker has nothing to do.
"""

from __future__ import annotations

import mmap
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.workers.shard_bytes import unavailable

if TYPE_CHECKING:
    from feedd.workers.messages import FileMessage

REST_S: Final = 0.5
"""A worker that was asked for nothing this long unmaps everything."""

_FILES_MAX: Final = 256
_REQUESTS: Final = 128


@dataclass(slots=True)
class _Kept:
    """A mapped file.

    Attributes:
        identity: device and inode: the same path may name another file by now.
        used_at: number of the request that read it last.
        used_s: when that began.
    """

    data: mmap.mmap
    identity: tuple[int, int]
    used_at: int
    used_s: float


class MappedFiles:
    """The files one worker has mapped."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, int], _Kept] = {}
        self._request = 0
        self._began_s = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self) -> None:
        """Start a request: what too many of them did not read, or for too long, is let go."""
        self._request += 1
        self._began_s = time.monotonic()
        at, since_s = self._request - _REQUESTS, self._began_s - REST_S
        for key in [key for key, kept in self._kept.items() if kept.used_at < at or kept.used_s < since_s]:
            self._drop(key)

    def get(self, file: FileMessage) -> mmap.mmap:
        """Return the object's bytes, which are not empty; good until the next request.

        Raises:
            CacheUnavailable: the file is gone, shorter than its object, or cannot be mapped.
        """
        key = (file.path, file.data_at, file.size_bytes)
        kept = self._kept.get(key)
        try:
            if kept is None or _identity(os.stat(file.path)) != kept.identity:  # noqa: PTH116 - a Path costs more
                self._drop(key)
                kept = self._kept[key] = _mapped(file)
                while len(self._kept) > _FILES_MAX:
                    self._drop(next(iter(self._kept)))
        except (OSError, ValueError) as error:
            raise unavailable(file, str(error)) from error
        kept.used_at, kept.used_s = self._request, self._began_s
        return kept.data

    def drop(self) -> None:
        """Let go of everything."""
        for key in tuple(self._kept):
            self._drop(key)

    def _drop(self, key: tuple[str, int, int]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            with suppress(BufferError):  # a traceback holds an array over it: it then goes with that
                kept.data.close()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _mapped(file: FileMessage) -> _Kept:
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_size < file.data_at + file.size_bytes:  # reading past a file's end is SIGBUS, not an error
            raise OSError(f"{found.st_size} bytes in all")
        data = mmap.mmap(fd, file.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=file.data_at)
    finally:
        os.close(fd)
    return _Kept(data, _identity(found), 0, 0.0)
