"""The checksums of an object's blocks, taken while its bytes are still hot. Touches no file of its own accord."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from awscrt.checksums import combine_crc32c, crc32c

from feedd.cache import entry_layout
from feedd.flow.mapping import on_disk, pieces

if TYPE_CHECKING:
    from feedd.values import ByteRange

_UNKNOWN: Final = -1
_PIECE_BYTES_LEAST: Final = 16 << 10
"""Pieces of blocks from so many bytes on keep the sum that was taken as they were written: of 100 KB that takes 2 us
then, and 16 later, when they are in no cache any more, besides reading them. Of smaller ones keeping it costs more."""


class _Run(NamedTuple):
    """Bytes of one block, from one offset in the object up to another."""

    start: int
    end: int
    crc: int


class BlockSums:
    """CRC32C of each block of one object, from parts in any order, of any size, some of them more than once.

    Args:
        size_bytes: of the object.
        data_at: offset of its first byte in the file.
    """

    def __init__(self, size_bytes: int, data_at: int = 0) -> None:
        self._size_bytes = size_bytes
        self._data_at = data_at
        self._written: dict[int, _Run] = {}  # by where each ends: what is written next may go on from there
        self._came: dict[int, dict[int, _Run]] = {}  # of blocks in pieces, by where each begins; none overlap
        self._block_bytes = entry_layout.block_bytes(size_bytes)
        self._sums = [_UNKNOWN] * entry_layout.block_count(size_bytes)

    def landed(self, at: int, data: memoryview, *, begins: bool = False) -> None:
        """Sum bytes as they are written to the file at offset ``at``; may be called in any thread.

        They go on from what was written right before them, unless an object of its own ``begins`` there.
        """
        at -= self._data_at
        end, begin = at + len(data), at
        while at < end:
            before = self._written.pop(at, None) if at % self._block_bytes and not begins else None
            start, crc = (at, 0) if before is None else (before.start, before.crc)
            stop = min(end, (at // self._block_bytes + 1) * self._block_bytes)
            self._written[stop] = _Run(start, stop, crc32c(data[at - begin : stop - begin], crc))
            at, begins = stop, False

    def take(self, span: ByteRange, piece: memoryview) -> None:
        """Note what was summed as it was written, and sum other blocks that came whole where that waits for no disk.

        What else there is is summed in ``finish``, off the loop. Where bytes are written in any other way over
        those that ``landed`` was told of, it has to be told of that, too.
        """
        block = self._block_bytes
        later = on_disk(piece)
        for index in range(span.start // block, -(-span.end // block)):
            start, stop = index * block, min((index + 1) * block, self._size_bytes)
            low, high = max(start, span.start), min(stop, span.end)
            written = self._written.pop(high, None)
            known = _UNKNOWN if written is None or written.start != low else written.crc
            if (low, high) == (start, stop):
                self._came.pop(index, None)
                if known == _UNKNOWN and not later:
                    known = _crc(piece[low - span.start : high - span.start])
                self._sums[index] = known
            else:
                self._sums[index] = _UNKNOWN
                self._take_piece(index, low, high, known)

    def finish(self, data: memoryview) -> bytes:
        """Return all checksums as the header has them; ``data`` is the whole object, for what is not summed yet.

        Raises:
            OSError: the file cannot be read.
        """
        for index, known in enumerate(self._sums):
            if known == _UNKNOWN:
                self._sums[index] = self._joined(index, data)
        return struct.pack(f"<{len(self._sums)}I", *self._sums)

    def _take_piece(self, index: int, start: int, end: int, known: int) -> None:
        came = self._came.setdefault(index, {})
        for at in [run.start for run in came.values() if run.start < end and start < run.end]:
            del came[at]
        if known != _UNKNOWN and end - start >= _PIECE_BYTES_LEAST:
            came[start] = _Run(start, end, known)

    def _joined(self, index: int, data: memoryview) -> int:
        """Return the sum of a block that came in pieces; what is not summed is read."""
        at, stop, crc = index * self._block_bytes, min((index + 1) * self._block_bytes, self._size_bytes), 0
        for run in sorted(self._came.get(index, {}).values()):
            if at < run.start:
                crc = _crc(data[at : run.start], crc)
            crc = int(combine_crc32c(crc, run.crc, run.end - run.start))
            at = run.end
        return _crc(data[at:stop], crc) if at < stop else crc


def _crc(data: memoryview, before: int = 0) -> int:
    crc = before
    for piece in pieces(data):
        crc = crc32c(piece, crc)
    return crc
