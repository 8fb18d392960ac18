"""Running fills: keeps the index, the shared flights and the files of one cache in step."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING

from feedd.errors import CacheError
from feedd.flow.singleflight import Flight, SingleFlight
from feedd.metrics import CACHE_EVICTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from feedd.cache.cache_metrics import CacheMetrics
    from feedd.cache.entry_fill import Filler
    from feedd.cache.os_errors import StorageFull
    from feedd.cache.policy.cache_index import CacheIndex
    from feedd.cache.policy.eviction_order import Entry
    from feedd.protocols import Clock


class Fills:
    """Starts, shares and ends fills, and updates the index.

    ``ended(entry, error)`` is called once per fill, after the index was updated and before the waiters are woken.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        index: CacheIndex,
        filler: Filler,
        cache_metrics: CacheMetrics,
        clock: Clock,
        ended: Callable[[Entry, BaseException | None], None],
    ) -> None:
        self._index = index
        self._filler = filler
        self._storage = filler.storage
        self._cache_metrics = cache_metrics
        self._clock = clock
        self._ended = ended
        self._flights: SingleFlight[Entry, None] = SingleFlight(group, self._end)

    def join(self, entry: Entry) -> Flight[Entry, None]:
        """Register interest in a reserved entry's fill, and start the fill if it is not running."""
        return self._flights.join(entry, partial(self._fill, entry))

    def leave(self, flight: Flight[Entry, None]) -> None:
        """Withdraw interest; a fill without any interest is cancelled and its entry hidden."""
        if self._flights.leave(flight):
            self._index.orphan(flight.key)

    async def arrive(self, flights: Sequence[Flight[Entry, None]]) -> None:
        """Wait until all fills have ended, or one has failed.

        Raises:
            Whatever the first failed fill raised.
        """
        results = [flight.result for flight in flights]
        if results:
            done, _ = await asyncio.wait(results, return_when=asyncio.FIRST_EXCEPTION)
            for result in done:
                result.result()

    def evict(self, entries: Iterable[Entry]) -> None:
        """Remove from the storage the entries that the index has just evicted."""
        victims = tuple(entries)
        self._storage.evict(entry.ref for entry in victims)
        self._cache_metrics.count(CACHE_EVICTIONS, len(victims))

    async def cancel_all(self) -> None:
        """Cancel every fill and return when all have ended."""
        await self._flights.cancel_all()

    async def _fill(self, entry: Entry) -> None:
        started_s = self._clock.monotonic_s()
        await self._filler.fill(entry.ref, partial(_urgency, entry), partial(self._free_space, entry))
        self._cache_metrics.fill_s += self._clock.monotonic_s() - started_s
        self._cache_metrics.filled_bytes += entry.ref.size_bytes

    def _free_space(self, entry: Entry, full: StorageFull) -> bool:
        self._cache_metrics.error("full")
        after = _urgency(entry)  # if no acquirer waits, the prefetcher's eviction rule applies here too
        evicted = self._index.free_space(full.wanted_bytes, after)
        self.evict(evicted)
        return bool(evicted)

    def _end(self, entry: Entry, error: BaseException | None) -> None:
        if error is None:
            whole = self._index.commit(entry)
            entry.seen_s = self._clock.monotonic_s()
        else:
            whole = False
            self._index.abort(entry)
            if isinstance(error, CacheError):
                self._cache_metrics.error("disk")
        replaced = entry.generation > 0  # then a broken file of that name may still exist
        if not whole and (error is None or replaced) and self._index.find(entry.ref) is None:
            self._storage.remove((entry.ref,))
        self._ended(entry, error)


def _urgency(entry: Entry) -> float:
    """Return the position at which the entry is needed; a pin on an entry being filled means now (-inf)."""
    return -math.inf if entry.pins else entry.next_use
