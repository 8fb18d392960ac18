"""The checksums of an object's blocks, taken while its bytes are still hot. Touches no file of its own accord."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from awscrt.checksums import crc32c

from feedd.cache import layout
from feedd.flow.mapping import pieces

if TYPE_CHECKING:
    from feedd.values import ByteRange

_UNKNOWN: Final = -1


class _Run(NamedTuple):
    """A block's bytes from its start up to ``end``, an offset in the object."""

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
        self._runs: dict[int, _Run] = {}
        self._block_bytes = layout.block_bytes(size_bytes)
        self._sums = [_UNKNOWN] * layout.block_count(size_bytes)

    def landed(self, at: int, data: memoryview) -> None:
        """Sum bytes as they are written to the file at offset ``at``; may be called in any thread."""
        at -= self._data_at
        end, start = at + len(data), at
        while at < end:
            index = at // self._block_bytes
            stop = min(end, (index + 1) * self._block_bytes)
            run = _Run(at, 0) if at == index * self._block_bytes else self._runs.pop(index, None)
            if run is not None and run.end == at:
                self._runs[index] = _Run(stop, crc32c(data[at - start : stop - start], run.crc))
            at = stop

    def take(self, span: ByteRange, piece: memoryview) -> None:
        """Sum the blocks that lie in ``span`` whole; those it only touches are summed in ``finish``."""
        block = self._block_bytes
        for index in range(span.start // block, -(-span.end // block)):
            start = index * block
            end = min(start + block, self._size_bytes)
            inside = span.start <= start and end <= span.end
            run = self._runs.pop(index, None)
            if not inside:
                self._sums[index] = _UNKNOWN
            elif run is not None and run.end == end:
                self._sums[index] = run.crc
            else:
                self._sums[index] = _crc(piece[start - span.start : end - span.start])

    def finish(self, data: memoryview) -> bytes:
        """Return all checksums as the header has them; ``data`` is the whole object, for blocks not yet summed."""
        block = self._block_bytes
        for index, known in enumerate(self._sums):
            if known == _UNKNOWN:
                self._sums[index] = _crc(data[index * block : (index + 1) * block])
        return struct.pack(f"<{len(self._sums)}I", *self._sums)


def _crc(data: memoryview) -> int:
    crc = 0
    try:
        for piece in pieces(data):
            crc = crc32c(piece, crc)
    except OSError:  # a disk that reads nothing; what was just written is in memory all the same
        return int(crc32c(data))
    return crc
