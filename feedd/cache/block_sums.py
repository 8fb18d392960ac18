"""CRC32C checksums of an object's blocks, computed while its bytes are still in the CPU cache.

This module opens no file.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from awscrt.checksums import combine_crc32c, crc32c

from feedd.cache import entry_layout

if TYPE_CHECKING:
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange

_UNKNOWN: Final = -1
_PIECE_BYTES_LEAST: Final = 16 << 10
"""Pieces of a block keep the checksum computed at write time if they have at least this many bytes. A checksum of 100
KB takes 2 us at write time, and 16 us plus the read later, when the bytes have left the CPU cache. For smaller pieces,
keeping the checksum costs more.
"""


class _Run(NamedTuple):
    """A run of bytes in one block, from one offset of the object to another."""

    start: int
    end: int
    crc: int


class BlockSums:
    """CRC32C of each block of one object. Parts may come in any order, in any size, and more than once.

    Args:
        size_bytes: size of the object.
        data_at: offset of the object's first byte in the file.
    """

    def __init__(self, size_bytes: int, data_at: int = 0) -> None:
        self._size_bytes = size_bytes
        self._data_at = data_at
        self._written: dict[int, _Run] = {}  # by end offset, because the next write may continue there
        self._came: dict[int, dict[int, _Run]] = {}  # pieces of incomplete blocks, by start offset; none overlap
        self._block_bytes = entry_layout.block_bytes(size_bytes)
        self._sums = [_UNKNOWN] * entry_layout.block_count(size_bytes)

    def written(self, at: int, data: memoryview, *, begins: bool = False) -> None:
        """Add the bytes just written to the file at offset ``at``; may be called in any thread.

        The bytes continue the run written right before them, unless ``begins`` says that another object begins there.
        """
        at -= self._data_at
        end, begin = at + len(data), at
        while at < end:
            before = self._written.pop(at, None) if at % self._block_bytes and not begins else None
            start, crc = (at, 0) if before is None else (before.start, before.crc)
            stop = min(end, (at // self._block_bytes + 1) * self._block_bytes)
            self._written[stop] = _Run(start, stop, crc32c(data[at - begin : stop - begin], crc))
            at, begins = stop, False

    def take(self, span: ByteRange, part: RangeSink) -> None:
        """Record the checksums of a written span, and compute those of whole blocks that need no disk read.

        ``finish`` computes all others, off the loop. If ``written`` was told of some bytes and they are overwritten
        by another path, call ``written`` for the new bytes too.
        """
        block = self._block_bytes
        later = part.waits_for_disk
        for index in range(span.start // block, -(-span.end // block)):
            start, stop = index * block, min((index + 1) * block, self._size_bytes)
            low, high = max(start, span.start), min(stop, span.end)
            run = self._written.pop(high, None)
            known = _UNKNOWN if run is None or run.start != low else run.crc
            if (low, high) == (start, stop):
                self._came.pop(index, None)
                if known == _UNKNOWN and not later:
                    known = _crc(part.part(low - span.start, high - span.start))
                self._sums[index] = known
            else:
                self._sums[index] = _UNKNOWN
                self._take_piece(index, low, high, known)

    def finish(self, whole: RangeSink) -> bytes:
        """Return all checksums in the header's format, computing missing ones by reading ``whole``, the whole object.

        Raises:
            OSError: the file cannot be read.
        """
        for index, known in enumerate(self._sums):
            if known == _UNKNOWN:
                self._sums[index] = self._joined(index, whole)
        return struct.pack(f"<{len(self._sums)}I", *self._sums)

    def _take_piece(self, index: int, start: int, end: int, known: int) -> None:
        came = self._came.setdefault(index, {})
        for at in [run.start for run in came.values() if run.start < end and start < run.end]:
            del came[at]
        if known != _UNKNOWN and end - start >= _PIECE_BYTES_LEAST:
            came[start] = _Run(start, end, known)

    def _joined(self, index: int, whole: RangeSink) -> int:
        """Return the checksum of a block that came in pieces; bytes without a checksum are read again."""
        at, stop, crc = index * self._block_bytes, min((index + 1) * self._block_bytes, self._size_bytes), 0
        for run in sorted(self._came.get(index, {}).values()):
            if at < run.start:
                crc = _crc(whole.part(at, run.start), crc)
            crc = int(combine_crc32c(crc, run.crc, run.end - run.start))
            at = run.end
        return _crc(whole.part(at, stop), crc) if at < stop else crc


def _crc(part: RangeSink, before: int = 0) -> int:
    crc = before
    for piece in part.read():
        crc = crc32c(piece, crc)
    return crc
