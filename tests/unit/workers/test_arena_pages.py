"""Pages of an arena are mapped once, a block at a time, before rows are written to them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, cast

from feedd.workers.executor import ArenaPages

if TYPE_CHECKING:
    import mmap

_MIB = 1 << 20


class _Arena:
    """Records which spans were to be mapped."""

    def __init__(self, size_bytes: int, error: int = 0) -> None:
        self.mapped: list[tuple[int, int]] = []
        self._size_bytes = size_bytes
        self._error = error

    def __len__(self) -> int:
        return self._size_bytes

    def madvise(self, _: int, start: int, length: int) -> None:
        self.mapped.append((start, length))
        if self._error:
            raise OSError(self._error, "refused")


def _pages(arena: _Arena) -> ArenaPages:
    return ArenaPages(cast("mmap.mmap", arena))


def test_a_block_is_mapped_once() -> None:
    """Only blocks that are expected for the first time are mapped, neighbours together."""
    arena = _Arena(16 * _MIB)
    pages = _pages(arena)
    assert arena.mapped == []
    pages.expect(5 * _MIB + 7, 6 * _MIB)
    assert arena.mapped == [(5 * _MIB, 2 * _MIB)]
    pages.expect(3 * _MIB, 9 * _MIB - 1)
    pages.expect(3 * _MIB, 9 * _MIB - 1)
    assert arena.mapped[1:] == [(3 * _MIB, 2 * _MIB), (7 * _MIB, 2 * _MIB)]


def test_nothing_outside_the_arena_is_mapped() -> None:
    """The last block may be short, and places outside are refused elsewhere."""
    arena = _Arena(2 * _MIB + 4096)
    pages = _pages(arena)
    pages.expect(2 * _MIB, 100 * _MIB)
    pages.expect(-5, -1)
    pages.expect(50 * _MIB, 60 * _MIB)
    assert arena.mapped == [(2 * _MIB, 4096)]


def test_a_refusal_is_left_to_the_first_touch() -> None:
    """Mapping in advance only saves time, so that no refusal is an error, and none is asked for twice."""
    arena = _Arena(_MIB, errno.EINVAL)
    pages = _pages(arena)
    pages.expect(0, 10)
    pages.expect(0, 10)
    assert arena.mapped == [(0, _MIB)]
