"""Read-only queries of a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.cache.cache_report import CacheEntry
from feedd.cache.policy.capacity import NOT_NEEDED
from feedd.cache.policy.eviction_order import EntryState
from feedd.conversion import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized

    from feedd.cache.cache_metrics import CacheMetrics
    from feedd.cache.cache_report import CacheStats
    from feedd.cache.ondisk.unindexed_files import Examination
    from feedd.cache.policy.cache_index import CacheIndex
    from feedd.values import ObjectRef


class CacheView:
    """Queries over the index of an open cache. The subclass sets the attributes below."""

    _index: CacheIndex
    _unindexed: Examination
    _cache_metrics: CacheMetrics
    _queue: Sized

    def fits(self, refs: Iterable[ObjectRef]) -> bool:
        """Whether this cache, if it were empty, could hold ``refs`` together."""
        return self._unindexed.too_large(tuple(dict.fromkeys(refs))) is None

    def holds(self, ref: ObjectRef) -> bool:
        """Whether the cache holds the whole object."""
        entry = self._index.find(ref)
        return entry is not None and entry.state is EntryState.COMMITTED and not entry.damaged

    def knows(self, ref: ObjectRef) -> bool:
        """Whether the cache holds the object or is filling it."""
        return self._index.find(ref) is not None

    def price(self, refs: Iterable[ObjectRef]) -> float:
        """Return the earliest next use among the entries that new ``refs`` would evict; see ``Capacity.price``."""
        return self._index.space.price(refs)

    def has_room(self, ref: ObjectRef) -> bool:
        """Whether a missing object could enter now without evicting an entry that is needed sooner."""
        price, times = self._index.space.price((ref,)), self._index.next_uses
        return price >= NOT_NEEDED or (times is not None and price > times((ref,))[0])

    @property
    def limit_bytes(self) -> int:
        """Upper limit of the cache's disk bytes: the configured size, or less if the storage is smaller."""
        return self._unindexed.limit_bytes

    def entries(self) -> list[CacheEntry]:
        """Return the whole entries, in no particular order."""
        return [
            CacheEntry(entry.ref.url, entry.ref.etag, entry.ref.size_bytes, entry.pins, text_of(entry.ref.conversion))
            for entry in self._index
            if entry.state is EntryState.COMMITTED
        ]

    @property
    def stats(self) -> CacheStats:
        """A snapshot of counters and gauges."""
        return self._cache_metrics.snapshot(self._index, len(self._queue))
