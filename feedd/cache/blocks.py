"""The checksums of an object's blocks, taken while its parts are still hot. Pure."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from awscrt.checksums import crc32c

from feedd.cache import layout

if TYPE_CHECKING:
    from feedd.values import ByteRange

_UNKNOWN: Final = -1


class BlockSums:
    """CRC32C of each block of one object, from parts in any order, of any size, some of them more than once."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._block_bytes = layout.block_bytes(size_bytes)
        self._sums = [_UNKNOWN] * layout.block_count(size_bytes)

    def take(self, span: ByteRange, piece: memoryview) -> None:
        """Sum the blocks that lie in ``span`` whole; those it only touches are summed in ``finish``."""
        block = self._block_bytes
        for index in range(span.start // block, -(-span.end // block)):
            start = index * block
            end = min(start + block, self._size_bytes)
            inside = span.start <= start and end <= span.end
            self._sums[index] = crc32c(piece[start - span.start : end - span.start]) if inside else _UNKNOWN

    def finish(self, data: memoryview) -> bytes:
        """Return all checksums as the header has them; ``data`` is the whole object, for blocks not yet summed."""
        block = self._block_bytes
        for index, known in enumerate(self._sums):
            if known == _UNKNOWN:
                self._sums[index] = crc32c(data[index * block : (index + 1) * block])
        return struct.pack(f"<{len(self._sums)}I", *self._sums)
