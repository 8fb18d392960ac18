"""What a worker needs to make a shard: the object as far as it is here, and a file to write to."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from feedd.convert.memory_limits import LEAST_BYTES
from feedd.errors import BadShard, ResourceExhausted
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from feedd.values import ByteRange

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG})


class HeldObject:
    """An object in a file, mapped for the time of a request: ``protocols.PartialObject``, and a context manager.

    Args:
        fd: the file; stays the caller's. Below zero: nothing is held.
        size_bytes: of the object.
        spans: see ``protocols.PartialObject``.
    """

    def __init__(self, fd: int, size_bytes: int, spans: Iterable[ByteRange] = ()) -> None:
        self.size_bytes = size_bytes
        self.spans = tuple(spans)
        self._map = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ) if fd >= 0 and size_bytes else None
        self.data = memoryview(b"" if self._map is None else self._map)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Unmap; where a traceback still holds a slice, when that goes."""
        with suppress(BufferError):
            self.data.release()
            if self._map is not None:
                self._map.close()

    def holds(self, wanted: ByteRange) -> bool:
        """Whether all bytes of a range are here."""
        return not wanted.size_bytes or any(
            span.start <= wanted.start and wanted.end <= span.end for span in self.spans
        )


class FileOut:
    """A made shard on its way into a file: ``protocols.ShardWriter``.

    Args:
        fd: the file; stays the caller's.
        start: offset of the shard's first byte in it.
        limit_bytes: most bytes the shard may have.
        room_bytes: most bytes there is room for now, if that is less.
        url: named in errors.
        entry_bytes: room in the file, where that is an entry of the cache and takes no memory: what is behind it is
            only counted, since a shard that turns out larger than before needs another entry. Below zero: a file in
            memory, that grows.

    Attributes:
        beside_bytes: most bytes of memory for what is needed to make it; half of the room where it is in memory, too.
    """

    def __init__(self, fd: int, start: int, limit_bytes: int, room_bytes: int, url: str, entry_bytes: int = -1) -> None:
        self.at = 0
        self.limit_bytes = limit_bytes
        self._fd = fd
        self._start = start
        self.room_bytes = room_bytes
        self._url = url
        self._entry_bytes = entry_bytes
        self.beside_bytes = max(LEAST_BYTES, room_bytes if entry_bytes >= 0 else room_bytes // 2)

    def write(self, data: Buffer) -> None:
        """Append; ``data`` may be used again at once.

        Raises:
            BadShard: more than ``limit_bytes``.
            ResourceExhausted: more than there is room for.
        """
        with memoryview(data) as view, view.cast("B") as left:
            self._check(self.at + left.nbytes)
            done, end = 0, left.nbytes
            if self._entry_bytes >= 0:
                end = min(end, max(self._entry_bytes - self.at, 0))
            while done < end:
                try:
                    done += os.pwrite(self._fd, left[done:end], self._start + self.at + done)
                except OSError as error:
                    if error.errno not in NO_SPACE:
                        raise
                    raise self._no_room(self.at + left.nbytes) from error
            self.at += left.nbytes

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self.limit_bytes:
            raise BadShard(
                f"expected a shard of at most {format_size(self.limit_bytes)} to be made of it, got more",
                object=self._url,
                hint="a made shard may take half of the cache: raise --cache-size, or store smaller shards",
                stage="decode",
            )
        if self._entry_bytes < 0 and size_bytes > self.room_bytes:
            raise self._no_room(size_bytes)

    def _no_room(self, size_bytes: int) -> ResourceExhausted:
        return ResourceExhausted(
            f"expected memory for the {format_size(size_bytes)} made of it so far, got room for less",
            object=self._url,
            hint="give the daemon more memory, or store smaller shards",
            stage="decode",
        )
