"""What the cache holds, summed by folder, for ``feedd top`` and the web page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.flow.pools import CPU
from feedd.serve.server_options import FolderRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from feedd.cache.report import CacheEntry
    from feedd.protocols import Clock

FOLDERS_MAX: Final = 16
_AGE_S: Final = 5.0
_IDLE_SHARE: Final = 200
"""A summary is made again after this many times the time that it took, so that large caches are walked seldom."""


class CacheFolders:
    """Sums the entries of a cache when somebody asks, and not more often than every few seconds."""

    def __init__(self, entries: Callable[[], Sequence[CacheEntry]], clock: Clock) -> None:
        """Keep the function that lists the cache."""
        self._entries = entries
        self._clock = clock
        self._rows: list[FolderRow] = []
        self._next_s = 0.0

    async def rows(self) -> list[FolderRow]:
        """Return the largest folders, the largest first; the last row may stand for all others."""
        began_s = self._clock.monotonic_s()
        if began_s >= self._next_s:
            self._next_s = began_s + _AGE_S
            self._rows = await CPU.run(summed, self._entries())
            took_s = self._clock.monotonic_s() - began_s
            self._next_s = began_s + max(_AGE_S, _IDLE_SHARE * took_s)
        return self._rows


def summed(entries: Iterable[CacheEntry]) -> list[FolderRow]:
    """Return the entries by folder."""
    sums: dict[str, list[int]] = {}
    for entry in entries:
        found = sums.setdefault(entry.url[: entry.url.rfind("/") + 1], [0, 0, 0])
        found[0] += 1
        found[1] += entry.size_bytes
        found[2] += entry.size_bytes if entry.pins else 0
    rows = [FolderRow(url, *amounts) for url, amounts in sums.items()]
    rows.sort(key=lambda row: (-row.size_bytes, row.url))
    rest = rows[FOLDERS_MAX - 1 :] if len(rows) > FOLDERS_MAX else []
    if not rest:
        return rows
    others = FolderRow(
        "",
        sum(row.entry_count for row in rest),
        sum(row.size_bytes for row in rest),
        sum(row.pinned_bytes for row in rest),
    )
    return [*rows[: FOLDERS_MAX - 1], others]
