"""Whether an entry's file still holds what was written. Blocking: called in threads for reading.

The file is read with ``preadv`` into a reused buffer. A failing disk is then an ``OSError``, while under a mapping it
would kill the process.
"""

from __future__ import annotations

import os
import threading
from struct import iter_unpack
from typing import TYPE_CHECKING

from awscrt.checksums import crc32c

from feedd.cache import entry_layout
from feedd.cache.entry_storage import Depth, Finding
from feedd.cache.ondisk import entry_files as files
from feedd.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from feedd.cache.entry_layout import Header
    from feedd.values import ObjectRef

_memory = threading.local()


def look(wanted: Sequence[tuple[Path, ObjectRef]], depth: Depth, believes: Callable[[Header], bool]) -> list[Finding]:
    """Verify files; ``believes`` tells whether the data under a good header can be trusted.

    Raises:
        CacheUnavailable: this process is out of descriptors or memory.
    """
    return [_look(path, ref, depth, believes) for path, ref in wanted]


def _look(path: Path, ref: ObjectRef, depth: Depth, believes: Callable[[Header], bool]) -> Finding:
    try:
        if depth is Depth.LENGTH:
            return _of_length(os.stat(path, follow_symlinks=False), ref)  # noqa: PTH116 - once per shard and batch: no Path overhead
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return _of_length(os.fstat(fd), ref, lambda: _of_content(fd, ref, depth, believes))
        finally:
            os.close(fd)
    except OSError as error:
        return files.finding(error, path)


def _of_length(status: os.stat_result, ref: ObjectRef, further: Callable[[], Finding] | None = None) -> Finding:
    if not files.has_length(status, ref):
        return Finding.VANISHED
    return further() if further is not None else Finding.WHOLE


def _of_content(fd: int, ref: ObjectRef, depth: Depth, believes: Callable[[Header], bool]) -> Finding:
    header = files.read_header(fd)
    if header is None or header.ref != ref or not believes(header):
        return Finding.TORN
    if depth is Depth.HEADER:
        return Finding.WHOLE
    return Finding.WHOLE if _blocks_match(fd, header) else Finding.TORN


def _blocks_match(fd: int, header: Header) -> bool:
    """Return whether every block matches its checksum.

    Raises:
        OSError: the disk failed.
    """
    buffer = _buffer()
    block = entry_layout.block_bytes(header.ref.size_bytes)
    at, end = header.data_at, header.file_bytes
    for (expected,) in iter_unpack("<I", header.sums):
        block_end, got = min(at + block, end), 0
        while at < block_end:
            piece = buffer[: min(len(buffer), block_end - at)]
            count = os.preadv(fd, (piece,), at)
            if not count:
                return False  # truncated since its length was read
            got = crc32c(piece[:count], got)
            at += count
        if got != expected:
            return False
    return True


def _buffer() -> memoryview:
    buffer: memoryview | None = getattr(_memory, "buffer", None)
    if buffer is None:
        buffer = _memory.buffer = memoryview(bytearray(MIB))
    return buffer
