"""Fills: space is reserved, the object is fetched, its checksums are computed, and its entry is published."""

from __future__ import annotations

import asyncio
import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING, Final

from feedd.cache import entry_layout, os_errors
from feedd.cache.block_sums import BlockSums
from feedd.cache.os_errors import StorageFull
from feedd.errors import CacheError, FeeddError, StoreUnavailable
from feedd.flow.file_writing import left_alone
from feedd.flow.range_sinks import FileSink
from feedd.flow.singleflight import Flight, SingleFlight
from feedd.flow.tasks import within
from feedd.metrics import CACHE_EVICTIONS
from feedd.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from feedd.cache.index import CacheIndex, Entry
    from feedd.cache.report import CacheMetrics
    from feedd.cache.storage import Draft, EntryStorage
    from feedd.flow.range_sinks import Written
    from feedd.protocols import Clock, ShardFetcher
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectRef

_LARGE_BYTES: Final = 16 << 20  # allocating such a file takes 3 ms and more
_WRITTEN_S: Final = 30.0
"""Longest wait for writes of an abandoned request, as of the slower one of a hedged pair. Longer waits mean that the
disk hangs.
"""


class FillWatch:
    """Tells a fetch how urgent its fill is and takes the checksums of its parts: a ``FetchWatch``."""

    def __init__(self, urgency: Callable[[], float], sums: BlockSums | None) -> None:
        self._urgency = urgency
        self._sums = sums

    def urgency(self) -> float:
        """Position at which the object is needed; -inf: an acquirer waits for it now."""
        return self._urgency()

    def arrived(self, span: ByteRange, part: RangeSink) -> None:
        """Compute the checksums of a part while its bytes are still in the CPU cache."""
        if self._sums is not None:
            self._sums.take(span, part)


class Filler:
    """Fetches objects into an ``EntryStorage``; keeps no index.

    Attributes:
        storage: the storage to fill.
    """

    def __init__(self, storage: EntryStorage, fetcher: ShardFetcher, deadline_s: float) -> None:
        self.storage = storage
        self._fetcher = fetcher
        self._deadline_s = deadline_s
        self._large = asyncio.Semaphore(1)  # files of large entries are allocated one at a time

    async def fill(
        self, ref: ObjectRef, urgency: Callable[[], float], make_room: Callable[[StorageFull], bool]
    ) -> None:
        """Fetch ``ref`` into the storage; a cancelled or failed fill leaves nothing behind.

        Args:
            ref: the object.
            urgency: returns the position at which the object is needed; may be called at any time.
            make_room: called if the storage is full; hands evictions over and returns True, or returns False.

        Raises:
            CacheUnavailable: the storage cannot be written, or is full.
            StoreUnavailable: the fill took longer than its deadline.
            Whatever the fetcher raises, with the object's URL added if missing.
        """
        try:
            async with within(self._deadline_s, lambda: self._late(ref)):
                await self._fill(ref, urgency, make_room)
        except FeeddError as error:
            error.object = error.object or ref.url
            raise

    def _late(self, ref: ObjectRef) -> StoreUnavailable:
        return StoreUnavailable(
            f"{ref.size_bytes} bytes did not arrive within {format_duration(self._deadline_s)}",
            object=ref.url,
            hint="raise the cache's fill deadline if the store is that slow",
            stage="cache",
        )

    async def _fill(
        self, ref: ObjectRef, urgency: Callable[[], float], make_room: Callable[[StorageFull], bool]
    ) -> None:
        draft = await self._create(ref, make_room)
        try:
            sums = BlockSums(ref.size_bytes, entry_layout.data_at(ref))
            summed = sums if self.storage.shared else None
            await self._fetch(draft, FillWatch(urgency, summed), None if summed is None else summed.written)
            await self._left_alone(draft)
            await self.storage.publish(draft, sums)
        except BaseException:
            self.storage.abandon(draft)
            raise

    async def _left_alone(self, draft: Draft) -> None:
        """Wait until all writes have ended, so that readers get a file that does not change."""
        if not await left_alone(draft.file.writers, _WRITTEN_S):
            raise os_errors.stalled(self.storage.names.where, _WRITTEN_S)

    async def _create(self, ref: ObjectRef, make_room: Callable[[StorageFull], bool]) -> Draft:
        """Create the file of an entry.

        The storage publishes and allocates in the order of the calls. If all large files were allocated at once, an
        entry that a batch waits for would be published after all of them.
        """
        async with self._large if ref.size_bytes >= _LARGE_BYTES else contextlib.nullcontext():
            return await self._created(ref, make_room)

    async def _created(self, ref: ObjectRef, make_room: Callable[[StorageFull], bool]) -> Draft:
        try:
            return await self.storage.create(ref)
        except StorageFull as full:
            if not make_room(full):
                raise os_errors.storage_full(full, self.storage.names) from full
        try:
            return await self.storage.create(ref)
        except StorageFull as full:
            raise os_errors.storage_full(full, self.storage.names) from full

    async def _fetch(self, draft: Draft, watch: FillWatch, written: Written | None) -> None:
        ref = draft.ref
        if ref.size_bytes:  # an empty object has no range to request
            sink = FileSink(draft.file, entry_layout.data_at(ref), ref.size_bytes, written)
            await self._fetcher.fetch(ref, sink, watch)


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
