"""Maps the pages of an arena right before a worker writes to them for the first time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import mmap

_MADV_POPULATE_WRITE: Final = 23  # missing in the mmap module
_BLOCK_BYTES: Final = 1 << 20


class ArenaPages:
    """Knows which blocks of one mapped arena have pages in this process.

    A first touch in the middle of decoding costs 70 us per 224x224 image, and ``madvise`` for all rows of a request
    about half of that. All pages are not mapped when the arena is attached: in that moment the first shard arrives, and
    its transfer needs the cores.
    """

    def __init__(self, arena: mmap.mmap) -> None:
        """Take over an arena none of whose pages are mapped yet."""
        self._arena = arena
        self._mapped = bytearray(-(-len(arena) // _BLOCK_BYTES))

    def expect(self, low: int, high: int) -> None:
        """Map the blocks from byte ``low`` to byte ``high``, the last one included, if they are not mapped yet.

        Bytes outside the arena, and kernels before 5.14, are left to whoever touches the pages.
        """
        last = min(high // _BLOCK_BYTES, len(self._mapped) - 1)
        block = max(0, low // _BLOCK_BYTES)
        while block <= last:
            if self._mapped[block]:
                block += 1
                continue
            end = self._mapped.find(1, block, last + 1)
            end = last + 1 if end < 0 else end
            self._map(block, end)
            block = end

    def _map(self, first: int, end: int) -> None:
        self._mapped[first:end] = b"\1" * (end - first)
        start = first * _BLOCK_BYTES
        try:
            self._arena.madvise(_MADV_POPULATE_WRITE, start, min(end * _BLOCK_BYTES, len(self._arena)) - start)
        except OSError:
            return  # the kernel does not know the advice, or is out of memory, as the first touch will report
