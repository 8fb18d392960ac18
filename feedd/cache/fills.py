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
    from feedd.protocols import Clock, ShardFetcher
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectRef

_LARGE_BYTES: Final = 16 << 20  # allocating such a file takes 3 ms and more
_WRITTEN_S: Final = 30.0
"""Longest wait for writes of an abandoned request, as of the slower one of a hedged pair. Longer waits mean that the
disk hangs.
"""


class Fills:
    """Runs, shares and ends the fills of one storage: keeps the index and the files in step.

    ``ended(entry, error)`` is called once per fill, after the index was updated and before the waiters are woken.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        index: CacheIndex,
        storage: EntryStorage,
        fetcher: ShardFetcher,
        cache_metrics: CacheMetrics,
        clock: Clock,
        *,
        deadline_s: float,
        ended: Callable[[Entry, BaseException | None], None],
    ) -> None:
        self._index = index
        self._storage = storage
        self._fetcher = fetcher
        self._cache_metrics = cache_metrics
        self._clock = clock
        self._deadline_s = deadline_s
        self._ended = ended
        self._flights: SingleFlight[Entry, None] = SingleFlight(group, self._end)
        self._large = asyncio.Semaphore(1)  # files of large entries are allocated one at a time

    def join(self, entry: Entry) -> Flight[Entry, None]:
        """Register interest in a reserved entry's fill, and start the fill if it is not running."""
        return self._flights.join(entry, partial(self._run, entry))

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

    async def _run(self, entry: Entry) -> None:
        """Bring an object into the storage; a cancelled or failed fill leaves nothing behind.

        Raises:
            CacheUnavailable: the storage cannot be written, or is full.
            StoreUnavailable: the fill took longer than its deadline.
            Whatever the fetcher raises, with the object's URL added if missing.
        """
        started_s = self._clock.monotonic_s()
        try:
            async with within(self._deadline_s, lambda: self._late(entry.ref)):
                await self._fill(entry)
        except FeeddError as error:
            error.object = error.object or entry.ref.url
            raise
        self._cache_metrics.fill_s += self._clock.monotonic_s() - started_s
        self._cache_metrics.filled_bytes += entry.ref.size_bytes

    async def _fill(self, entry: Entry) -> None:
        ref = entry.ref
        draft = await self._create(entry)
        try:
            sums = BlockSums(ref.size_bytes, entry_layout.data_at(ref))
            await self._fetch(draft, entry, sums if self._storage.shared else None)
            await self._left_alone(draft)
            await self._storage.publish(draft, sums)
        except BaseException:
            self._storage.abandon(draft)
            raise

    async def _create(self, entry: Entry) -> Draft:
        """Create the file of an entry; a full storage evicts and tries once more.

        The storage publishes and allocates in the order of the calls. If all large files were allocated at once, an
        entry that a batch waits for would be published after all of them.
        """
        async with self._large if entry.ref.size_bytes >= _LARGE_BYTES else contextlib.nullcontext():
            try:
                return await self._storage.create(entry.ref)
            except StorageFull as full:
                if not self._free_space(entry, full):
                    raise os_errors.storage_full(full, self._storage.names) from full
            try:
                return await self._storage.create(entry.ref)
            except StorageFull as full:
                raise os_errors.storage_full(full, self._storage.names) from full

    def _free_space(self, entry: Entry, full: StorageFull) -> bool:
        self._cache_metrics.error("full")
        after = _urgency(entry)  # if no acquirer waits, the prefetcher's eviction rule applies here too
        evicted = self._index.free_space(full.wanted_bytes, after)
        self.evict(evicted)
        return bool(evicted)

    async def _fetch(self, draft: Draft, entry: Entry, sums: BlockSums | None) -> None:
        ref = draft.ref
        if ref.size_bytes:  # an empty object has no range to request
            watch = _FillWatch(entry, sums)
            written = None if sums is None else sums.written
            sink = FileSink(draft.file, entry_layout.data_at(ref), ref.size_bytes, written)
            await self._fetcher.fetch(ref, sink, watch)

    async def _left_alone(self, draft: Draft) -> None:
        """Wait until all writes have ended, so that readers get a file that does not change."""
        if not await left_alone(draft.file.writers, _WRITTEN_S):
            raise os_errors.stalled(self._storage.names.where, _WRITTEN_S)

    def _late(self, ref: ObjectRef) -> StoreUnavailable:
        return StoreUnavailable(
            f"{ref.size_bytes} bytes did not arrive within {format_duration(self._deadline_s)}",
            object=ref.url,
            hint="raise the cache's fill deadline if the store is that slow",
            stage="cache",
        )

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


class _FillWatch:
    """Tells a fetch how urgent its fill is and takes the checksums of its parts: a ``FetchWatch``."""

    def __init__(self, entry: Entry, sums: BlockSums | None) -> None:
        self._entry = entry
        self._sums = sums

    def urgency(self) -> float:
        """Position at which the object is needed; -inf: an acquirer waits for it now."""
        return _urgency(self._entry)

    def arrived(self, span: ByteRange, part: RangeSink) -> None:
        """Compute the checksums of a part while its bytes are still in the CPU cache."""
        if self._sums is not None:
            self._sums.take(span, part)


def _urgency(entry: Entry) -> float:
    """Return the position at which the entry is needed; a pin on an entry being filled means now (-inf)."""
    return -math.inf if entry.pins else entry.next_use
