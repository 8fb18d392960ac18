"""Input and output of a conversion in a worker: the fetched parts of the object, and the output file."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from feedd.errors import BadShard, ResourceExhausted
from feedd.tables.memory import LEAST_BYTES, NO_LIMIT_BYTES
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from feedd.values import ByteRange


NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG})


class MappedObject:
    """An object in a file, mapped for one request: ``protocols.PartialObject``, and a context manager.

    Args:
        fd: the file, which stays the caller's. Below zero: no bytes are held.
        size_bytes: size of the object.
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
        """Unmap the file; if a traceback still holds a slice, the mapping ends with the traceback."""
        with suppress(BufferError):
            self.data.release()
            if self._map is not None:
                self._map.close()

    def holds(self, wanted: ByteRange) -> bool:
        """Whether all bytes of a range are held."""
        return not wanted.size_bytes or any(
            span.start <= wanted.start and wanted.end <= span.end for span in self.spans
        )


class FileOut:
    """Writes a converted shard to a file: ``protocols.ShardWriter``.

    Args:
        fd: the file, which stays the caller's.
        start: offset of the shard's first byte in the file.
        limit_bytes: maximum size of the shard.
        memory_bytes: bytes that are free now, if that is less.
        url: named in errors.
        entry_bytes: size of the file if it is a cache entry, which takes no memory. Bytes beyond it are only counted,
            because a shard that became larger needs another entry. Below zero: a file in memory, which grows.
        call_bytes: memory that one call may take, see ``memory.call_limit``.

    Attributes:
        free_bytes: memory that is free for the conversion; half of ``memory_bytes`` if the shard is in memory too.
        extra_bytes: maximum memory for the conversion itself.
    """

    def __init__(
        self,
        fd: int,
        start: int,
        limit_bytes: int,
        memory_bytes: int,
        url: str,
        *,
        entry_bytes: int = -1,
        call_bytes: int = NO_LIMIT_BYTES,
    ) -> None:
        self.at = 0
        self.limit_bytes = limit_bytes
        self._fd = fd
        self._start = start
        self.memory_bytes = memory_bytes
        self._url = url
        self._entry_bytes = entry_bytes
        self.call_bytes = call_bytes
        self.free_bytes = max(LEAST_BYTES, memory_bytes if entry_bytes >= 0 else memory_bytes // 2)
        self.extra_bytes = min(self.free_bytes, max(LEAST_BYTES, call_bytes))

    def write(self, data: Buffer) -> None:
        """Append ``data``, which may be reused at once.

        Raises:
            BadShard: the shard exceeds ``limit_bytes``.
            ResourceExhausted: there is no space for more.
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
                    raise self._out_of_memory(self.at + left.nbytes) from error
            self.at += left.nbytes

    def move_to(self, at: int) -> None:
        """Have the next bytes written at an offset of the shard."""
        self.at = at

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self.limit_bytes:
            raise BadShard(
                f"expected a converted shard of at most {format_size(self.limit_bytes)}, got more",
                object=self._url,
                hint="a converted shard may take half of the cache: raise --cache-size, or store smaller shards",
                stage="decode",
            )
        if self._entry_bytes < 0 and size_bytes > self.memory_bytes:
            raise self._out_of_memory(size_bytes)

    def _out_of_memory(self, size_bytes: int) -> ResourceExhausted:
        return ResourceExhausted(
            f"there is no memory for the {format_size(size_bytes)} that were converted so far",
            object=self._url,
            hint="give the daemon more memory, or store smaller shards",
            stage="decode",
        )
