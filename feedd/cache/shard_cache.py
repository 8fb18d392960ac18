"""The shard cache over any storage: a ``ShardCache``."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import structlog

from feedd.cache import os_errors
from feedd.cache.cache_metrics import CacheMetrics
from feedd.cache.cache_view import CacheView
from feedd.cache.check_schedule import CheckRule, Checks
from feedd.cache.early_checks import EarlyChecks
from feedd.cache.entry_fill import Filler
from feedd.cache.entry_storage import Finding
from feedd.cache.ondisk.unindexed_files import Examination
from feedd.cache.pins import Pins
from feedd.cache.policy.cache_index import FullNow, Reservation, TooLarge
from feedd.cache.policy.eviction_order import EntryState
from feedd.cache.prefetcher import Prefetcher, PrefetchLimits
from feedd.cache.running_fills import Fills
from feedd.cache.space_queue import SpaceQueue
from feedd.metrics import CACHE_EVICTIONS, CACHE_HITS, CACHE_MISSES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from feedd.cache.entry_storage import EntryStorage
    from feedd.cache.policy.eviction_order import Entry
    from feedd.flow.singleflight import Flight
    from feedd.protocols import Clock, Recorder, ShardFetcher
    from feedd.values import NextUses, ObjectRef, ShardFile

_CLOSE_DEADLINE_S = 60.0
_QUIET_S = 60.0
_OPENED_MAX = 3  # tries to open entries that vanish after each fetch
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """Options that do not depend on the storage.

    Attributes:
        fill_deadline_s: longest time the fetch of one object may take.
        prefetching: bounds of the fills that no acquirer waits for yet.
        rule: how closely entries are verified before their use.
    """

    fill_deadline_s: float = 1800.0
    prefetching: PrefetchLimits = field(default_factory=PrefetchLimits)
    rule: CheckRule = field(default_factory=CheckRule)


@dataclass(slots=True)
class _Grant:
    """A claim made for one acquirer, and its interest in the fills of missing entries."""

    reservation: Reservation
    flights: list[Flight[Entry, None]] = field(default_factory=list)


class PlacedCache(CacheView):
    """Whole shards in one storage, which this object owns while it is open.

    Fills are tasks of a TaskGroup that lives from enter to exit. Used on one event loop; the storage works in threads.
    """

    def __init__(
        self, storage: EntryStorage, options: CoreOptions, fetcher: ShardFetcher, recorder: Recorder, clock: Clock
    ) -> None:
        self._storage = storage
        self._options = options
        self._fetcher = fetcher
        self._clock = clock
        self._cache_metrics = CacheMetrics(recorder)
        self._group = asyncio.TaskGroup()
        self._open = False
        self._unsaid_count = 0  # vanished entries that no line of the log counts yet
        self._quiet_until_s = -math.inf

    async def __aenter__(self) -> Self:
        """Open the storage and index the entries in it.

        Raises:
            CacheUnavailable: the storage cannot be used.
        """
        opened = await self._storage.open(self._job_failed)
        options = self._options
        self._index = opened.index
        self._queue: SpaceQueue[_Grant] = SpaceQueue(opened.index.space.group)
        filler = Filler(self._storage, self._fetcher, options.fill_deadline_s)
        self._fills = Fills(self._group, self._index, filler, self._cache_metrics, self._clock, self._fill_ended)
        self._prefetcher = Prefetcher(self._index, self._fills, self._cache_metrics, options.prefetching)
        self._checks = Checks(self._group, self._storage, self._clock, options.rule)
        self._early_checks = EarlyChecks(self._group, self._index, self._checks, self._refetch)
        self._unindexed = Examination(self._storage, self._index, self._cache_metrics, opened.unindexed)
        self._cache_metrics.error("broken", opened.broken_count)
        self._cache_metrics.count(CACHE_EVICTIONS, opened.evicted_count)
        await self._group.__aenter__()
        self._open = True
        self._unindexed.start(self._group, self._changed)
        self._changed()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the cache and end its tasks."""
        try:
            await self.close()
        finally:
            # all fills have ended; the body's error is not passed on, because the group would wrap it
            await self._group.__aexit__(None, None, None)

    async def acquire(self, refs: Sequence[ObjectRef]) -> Pins:
        """Return pins on all of ``refs`` (duplicates allowed), fetching missing ones.

        Raises:
            CacheTooSmall: the objects cannot fit together even into an empty cache.
            CacheUnavailable: the storage cannot be written, or does not answer.
            Draining: the cache is closing.
            Whatever the fetcher raises.
        """
        unique = tuple(dict.fromkeys(refs))
        while True:
            grant = await self._reserve(unique)
            try:
                files = await self._bring(grant)
            except BaseException:
                self._undo(grant)
                raise
            if files is not None:
                break
            self._undo(grant)
        return Pins(tuple(files[ref] for ref in refs), lambda: self._undo(grant))

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        """Replace ``owner``'s wish list; see ``Prefetcher``. Failures are counted and dropped.

        Entries already in the cache are verified in advance, so that their acquirer need not wait.
        """
        if self._open:
            self._prefetcher.wish(owner, refs)
            self._early_checks.wish(owner, refs)
            self._changed()

    def note_next_use(self, times: NextUses, refs: Sequence[ObjectRef] | None = None) -> None:
        """Take the times at which objects are needed next from ``times``; see ``ShardCache.note_next_use``.

        Raises:
            ValueError: a time is not a number.
        """
        self._index.note_next_use(times, refs)
        self._changed()

    async def discard(self, ref: ObjectRef) -> None:
        """Drop a damaged entry, now or with its last pin. Returns at once; the next acquire fetches it again.

        A file that vanished seldom vanishes alone, so every file is verified again before its next use.
        """
        self._checks.doubt()
        await self.renew(ref)

    async def renew(self, ref: ObjectRef) -> None:
        """Drop an entry, now or with its last pin, without suspecting this or any other entry."""
        entry = self._index.discard(ref)
        if entry is not None and self._open:
            self._storage.remove((ref,))
        self._changed()

    async def close(self) -> None:
        """Cancel fills, fail waiting acquirers and close the storage; idempotent.

        Entries stay if the storage keeps them.
        """
        if not self._open:
            return
        self._open = False
        self._queue.fail(os_errors.closed())
        self._prefetcher.close()
        self._early_checks.close()
        self._unindexed.close()
        try:
            await self._checks.close()
            await self._fills.cancel_all()
        finally:
            # a damaged entry that is still pinned must not look whole to the next start
            self._storage.remove([entry.ref for entry in self._index if entry.damaged])
            whole = [one for one in self._index if one.state is EntryState.COMMITTED and not one.damaged]
            whole.sort(key=lambda entry: entry.used_at)
            try:
                if not await self._storage.close([entry.ref for entry in whole], _CLOSE_DEADLINE_S):
                    self._cache_metrics.error("unflushed")
            finally:
                self._cache_metrics.retire()

    async def _reserve(self, refs: tuple[ObjectRef, ...]) -> _Grant:
        if not self._open:
            raise os_errors.closed()
        needs_space = any(self._index.find(ref) is None for ref in refs)
        too_large = self._unindexed.too_large(refs) if needs_space else None
        if too_large is not None:
            raise os_errors.too_small(refs, too_large, self._storage.names)
        # A request that needs no space does not wait behind requests that do.
        full = self._queue.blocking(refs) if needs_space else None
        if full is None:
            grant = self._grant(refs)
            if not isinstance(grant, FullNow):
                self._changed()
                return grant
            full = grant
        started_s = self._clock.monotonic_s()
        try:
            return await self._queue.wait(refs, full, self._undo)
        finally:
            self._cache_metrics.space_wait_s += self._clock.monotonic_s() - started_s
            self._changed()  # the next waiters may fit now

    def _grant(self, refs: Sequence[ObjectRef]) -> _Grant | FullNow:
        """Claim now, or return what is full. Synchronous, so that pins, evictions and fills are one decision."""
        outcome = self._index.reserve_all(refs)
        if not isinstance(outcome, Reservation):
            # Only unexamined files can make it too large here: a claim that can never fit was refused earlier.
            assert self._unindexed.left_bytes or not isinstance(outcome, TooLarge), (
                "a claim that can never fit was refused before"
            )
            return outcome if isinstance(outcome, FullNow) else FullNow(0)
        self._fills.evict(outcome.evicted)
        return _Grant(outcome, [self._fills.join(entry) for entry in (*outcome.running, *outcome.missing)])

    async def _bring(self, grant: _Grant) -> dict[ObjectRef, ShardFile] | None:
        """Return the open files of all claimed entries, once they are here.

        Returns:
            None: an entry was lost because another caller's refetch failed.

        Raises:
            CacheUnavailable: entries vanish again and again.
        """
        try:
            reservation = grant.reservation
            lost_count = await self._refill(grant)
            self._cache_metrics.count(CACHE_HITS, len(reservation.present) - lost_count)
            self._cache_metrics.count(CACHE_MISSES, len(reservation.running) + len(reservation.missing) + lost_count)
            for _ in range(_OPENED_MAX):
                await self._fills.arrive(grant.flights)
                if any(entry.state is not EntryState.COMMITTED for entry in reservation.entries):
                    return None
                files = await self._opened(grant)
                if files is not None:
                    return files
            raise os_errors.vanishing(self._storage.names)
        finally:
            self._leave(grant)

    async def _opened(self, grant: _Grant) -> dict[ObjectRef, ShardFile] | None:
        """Return the open files of a grant's entries, or None after starting or joining fetches of lost entries."""
        entries = grant.reservation.entries
        before = [entry.generation for entry in entries]
        opened = await self._storage.open_files([entry.ref for entry in entries])
        if not self._open:
            raise os_errors.closed()
        files: dict[ObjectRef, ShardFile] = {}
        for entry, generation, file in zip(entries, before, opened, strict=True):
            if entry.generation == generation and not isinstance(file, Finding):
                files[entry.ref] = file
                continue
            if entry.generation == generation and isinstance(file, Finding):
                self._reopen(entry, file)
            if entry.state is EntryState.RESERVED:
                grant.flights.append(self._fills.join(entry))
        if len(files) == len(entries):
            return files
        self._changed()
        return None

    async def _refill(self, grant: _Grant) -> int:
        """Start or join fetches of corrupt entries, and return their number."""
        due = [entry for entry in grant.reservation.present if self._checks.due(entry) is not None]
        if not due:
            return 0
        before = [entry.generation for entry in due]
        findings = await self._checks.look(due)
        if not self._open:
            raise os_errors.closed()
        lost_count = 0
        for entry, generation, finding in zip(due, before, findings, strict=True):
            if finding is not Finding.WHOLE and entry.generation == generation:
                self._reopen(entry, finding)
            if entry.state is EntryState.RESERVED:
                grant.flights.append(self._fills.join(entry))
                lost_count += 1
        self._changed()
        return lost_count

    async def _refetch(self, entry: Entry, finding: Finding) -> None:
        """Fetch an entry again that was found broken in advance."""
        if not self._open or entry.state is not EntryState.COMMITTED:
            return
        self._reopen(entry, finding)
        flight = self._fills.join(entry)
        self._changed()
        try:
            await asyncio.wait([flight.result])
        finally:
            self._fills.leave(flight)

    def _reopen(self, entry: Entry, finding: Finding) -> None:
        if entry.state is EntryState.COMMITTED:
            self._index.reopen(entry)
            self._cache_metrics.error(finding.value)
            self._say(entry, finding)

    def _say(self, entry: Entry, finding: Finding) -> None:
        """Log a lost entry. Files seldom vanish alone, so those that vanish soon after another are only counted."""
        if finding is Finding.VANISHED:
            self._unsaid_count += 1
            if self._clock.monotonic_s() < self._quiet_until_s:
                return
            self._quiet_until_s = self._clock.monotonic_s() + _QUIET_S
        _log.warning(
            "cached shard is corrupt or missing: fetching it again",
            url=entry.ref.url,
            got=finding.value,
            vanished_since_last_time=self._unsaid_count,
        )
        self._unsaid_count = 0

    def _leave(self, grant: _Grant) -> None:
        while grant.flights:
            self._fills.leave(grant.flights.pop())

    def _undo(self, grant: _Grant) -> None:
        """Withdraw a grant: its interest in fills and its pins."""
        self._leave(grant)
        removed = [entry.ref for entry in grant.reservation.entries if self._index.unpin(entry)]
        if self._open:
            self._storage.remove(removed)
        self._changed()

    def _fill_ended(self, entry: Entry, error: BaseException | None) -> None:
        if error is None:
            self._checks.written(entry)
        self._prefetcher.ended(entry, error)
        self._changed()

    def _changed(self) -> None:
        """Serve the waiters, then the wishes; called after every change of the index."""
        if not self._open:
            return
        self._queue.serve(self._grant)
        if not self._queue.holds_all_up and not self._unindexed.left_bytes:
            self._prefetcher.pump()
        self._early_checks.pump()
        self._cache_metrics.publish(self._index)

    def _job_failed(self, error: BaseException) -> None:
        self._cache_metrics.error("disk")
        _log.warning("cached shard not removed", error=str(error))
