"""Fills under way: where the books, the flights and the files of one cache meet."""

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
    from feedd.cache.os_errors import PlaceFull
    from feedd.cache.policy.cache_index import CacheIndex
    from feedd.cache.policy.eviction_order import Entry
    from feedd.protocols import Clock


class Fills:
    """Starts, shares and ends fills, and keeps the index in step with them.

    ``ended(entry, error)`` is called once per fill, after the index was brought up to date and before those who wait
    are woken.
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
        self._place = filler.place
        self._cache_metrics = cache_metrics
        self._clock = clock
        self._ended = ended
        self._flights: SingleFlight[Entry, None] = SingleFlight(group, self._end)

    def join(self, entry: Entry) -> Flight[Entry, None]:
        """Take an interest in a reserved entry's fill, started now if it is not running."""
        return self._flights.join(entry, partial(self._fill, entry))

    def leave(self, flight: Flight[Entry, None]) -> None:
        """Give an interest back; a fill nobody wants any more is cancelled and its entry hidden."""
        if self._flights.leave(flight):
            self._index.orphan(flight.key)

    async def arrive(self, flights: Sequence[Flight[Entry, None]]) -> None:
        """Wait until all have ended, or one has failed.

        Raises:
            Whatever the first to fail raised.
        """
        results = [flight.result for flight in flights]
        if results:
            done, _ = await asyncio.wait(results, return_when=asyncio.FIRST_EXCEPTION)
            for result in done:
                result.result()

    def evict(self, entries: Iterable[Entry]) -> None:
        """Remove from the place what the index has just evicted."""
        victims = tuple(entries)
        self._place.evict(entry.ref for entry in victims)
        self._cache_metrics.count(CACHE_EVICTIONS, len(victims))

    async def cancel_all(self) -> None:
        """Cancel every fill and return when all have ended."""
        await self._flights.cancel_all()

    async def _fill(self, entry: Entry) -> None:
        started_s = self._clock.monotonic_s()
        await self._filler.fill(entry.ref, partial(_urgency, entry), partial(self._make_room, entry))
        self._cache_metrics.fill_s += self._clock.monotonic_s() - started_s
        self._cache_metrics.filled_bytes += entry.ref.size_bytes

    def _make_room(self, entry: Entry, full: PlaceFull) -> bool:
        self._cache_metrics.error("full")
        after = _urgency(entry)  # where nobody waits, the rule of prefetching holds here too
        evicted = self._index.make_room(full.wanted_bytes, after)
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
        replaced = entry.generation > 0  # then a broken file of that name may still be there
        if not whole and (error is None or replaced) and self._index.find(entry.ref) is None:
            self._place.remove((entry.ref,))
        self._ended(entry, error)


def _urgency(entry: Entry) -> float:
    """Somebody who holds a pin on an entry under way waits for it now."""
    return -math.inf if entry.pins else entry.next_use
