"""The part that caches have in common which open later than they are used."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from feedd.cache.report import CacheStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.cache.cache import Cache
    from feedd.cache.report import CacheEntry
    from feedd.values import NextUses, ObjectRef


class PendingCache:
    """Passes calls on to a cache, once it is open; until then it is empty."""

    def __init__(self) -> None:
        self._cache: Cache | None = None
        self._next_uses: NextUses | None = None

    def note_next_use(self, times: NextUses, refs: Sequence[ObjectRef] | None = None) -> None:
        """Tell the cache who knows when objects are needed next; before it is open, remember it."""
        self._next_uses = times
        if self._cache is not None:
            self._cache.note_next_use(times, refs)

    async def renew(self, ref: ObjectRef) -> None:
        """Drop an entry because a whole copy can be fetched now; before the cache is open, this has no effect."""
        if self._cache is not None:
            await self._cache.renew(ref)

    @property
    def stats(self) -> CacheStats:
        """A snapshot of the statistics; zeros until the cache is open."""
        if self._cache is None:
            return CacheStats(**{one.name: 0 for one in fields(CacheStats)})
        return self._cache.stats

    def entries(self) -> list[CacheEntry]:
        """Return the whole entries, in no particular order."""
        return [] if self._cache is None else self._cache.entries()

    def _opened(self, cache: Cache) -> None:
        self._cache = cache
        if self._next_uses is not None:
            cache.note_next_use(self._next_uses)
