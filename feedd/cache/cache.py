"""The node's cache of whole shards: on disk, and in memory while the disk cannot be used.

The way of an entry, from top to bottom: ``Cache.acquire`` chooses the tier of each object. ``Tier.acquire`` pins what
is there and reserves space for what is missing. ``Fills`` fetches each missing object into a draft of the storage and
publishes it. Files are verified and opened, and the caller gets them with ``Pins`` that keep the entries.

If the cache is full, idle entries are evicted, those that are needed last first. If that is not enough, the acquirer
waits in ``_SpaceQueue``. If the disk is full although the cache is not, ``Fills`` evicts and tries once more. Then the
watch counts the error, and ``Cache`` sends the objects to memory, until the disk takes fills again.

Rules, each with the test that holds it:

- An acquirer gets all its pins at once, and waits for space without any: ``test_full_now_waits_holding_no_pins``.
- Waiters are served in order, before any wish: ``test_waiters_are_served_in_order``,
  ``test_prefetching_yields_to_waiting_acquirers``.
- All who want an object share one fetch, which ends with the last of them: ``test_hundred_acquirers_one_fetch``,
  ``test_fetch_nobody_waits_for_is_cancelled``.
- A pinned entry is not evicted, and its reader keeps its file: ``test_pinned_shards_stay_under_pressure``,
  ``test_a_reader_keeps_the_file_that_it_began_with``.
- A wish evicts only what is needed later: ``test_never_evicts_a_sooner_or_equal_use``.
- A file whose header names another entry is not read: ``test_the_file_of_another_entry_is_never_read``.
- A sick disk costs speed only: ``test_memory_serves_until_the_directory_opens``, ``tests/model/test_bypass_model.py``.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import structlog

from feedd.cache import os_errors
from feedd.cache.checks import Checks, EarlyChecks, Examination
from feedd.cache.directory import DirectoryStorage
from feedd.cache.fills import Fills
from feedd.cache.health import HealthOptions
from feedd.cache.index import NO_GROUP, NOT_NEEDED, CacheIndex, EntryState, FullNow, Reservation, TooLarge
from feedd.cache.memory import MemoryStorage
from feedd.cache.pins import Pins
from feedd.cache.prefetch import Prefetcher
from feedd.cache.report import CacheEntry, CacheMetrics, CacheStats
from feedd.cache.storage import Finding
from feedd.cache.watch import DiskWatch, try_directory
from feedd.conversion import text_of
from feedd.errors import CacheTooSmall, CacheUnavailable
from feedd.metrics import CACHE_BYPASSED, CACHE_EVICTIONS, CACHE_HITS, CACHE_MISSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from feedd.cache.index import Entry
    from feedd.cache.options import CacheOptions
    from feedd.cache.storage import EntryStorage
    from feedd.flow.singleflight import Flight
    from feedd.protocols import Clock, Recorder, ShardFetcher
    from feedd.values import NextUses, ObjectRef, ShardFile

RETRY_S: Final = 10.0
"""Time between tries to open a directory that could not be opened at the start."""
_CLOSE_DEADLINE_S: Final = 60.0
_QUIET_S: Final = 60.0
_OPENED_MAX: Final = 3  # tries to open entries that vanish after each fetch
_DOUBTFUL: Final = frozenset({Finding.UNREADABLE, Finding.TORN})  # findings that may be the disk's fault
_log = structlog.get_logger(__name__)


class _Bypass(NamedTuple):
    """The tier of objects while the disk cannot be used, and the watch that tells when that is."""

    memory: Tier
    watch: DiskWatch


class Cache:
    """Whole shards in a directory: a ``ShardCache``. ``async with Cache(options, fetcher, recorder, clock) as cache``.

    With ``bypass_bytes`` above 0, a disk that cannot be used costs speed only: new objects then go to memory, and back
    to the disk as soon as it can be used. A directory that cannot be opened at the start is tried again and again. An
    acquirer pins its objects on disk first, then those in memory. So a waiter for memory may hold pins on disk, a
    waiter for disk holds nothing, and no two acquirers can ever wait for each other. Used on one event loop.
    """

    def __init__(
        self,
        options: CacheOptions,
        fetcher: ShardFetcher,
        recorder: Recorder,
        clock: Clock,
        *,
        storage: EntryStorage | None = None,
        watch: DiskWatch | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        """Prepare a cache.

        Args:
            options: its directory and limits.
            fetcher: fetches missing objects.
            recorder: takes the measurements.
            clock: the clock.
            storage: what holds the entries; None: the directory.
            watch: watches the disk if there is a bypass; None: one that writes and reads a file in the directory.
            retry_s: time between tries to open a directory that could not be opened at the start.
        """
        self._group = asyncio.TaskGroup()
        tier = partial(Tier, options=options, fetcher=fetcher, recorder=recorder, clock=clock, group=self._group)
        self._disk = tier(storage or DirectoryStorage(options), doubted=self._doubted)
        self._bypass: _Bypass | None = None
        if options.bypass_bytes:
            probe = partial(try_directory, options.directory)
            watch = watch or DiskWatch(probe, HealthOptions(), recorder, clock)
            self._bypass = _Bypass(tier(MemoryStorage(options.bypass_bytes)), watch)
        self._recorder = recorder
        self._retry_s = retry_s
        self._opening: asyncio.Task[None] | None = None
        self._refused = False  # whether the disk refused the last fill

    def __repr__(self) -> str:
        return f"Cache({', '.join(map(repr, self._tiers))})"

    async def __aenter__(self) -> Self:
        """Open the directory and index its entries; with a bypass, a directory that may recover is opened later.

        Raises:
            CacheUnavailable: another process owns the directory, it cannot be written, or there is no room for a cache.
        """
        await self._group.__aenter__()
        try:
            await self._open()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def _open(self) -> None:
        if self._bypass is None:
            await self._disk.open()
            return
        memory, watch = self._bypass
        try:
            await self._disk.open()
        except CacheUnavailable as error:
            if not os_errors.may_pass(error):
                raise
            watch.missing(error, self._retry_s)
            self._opening = self._group.create_task(self._open_later(watch))
        await memory.open()
        watch.start(self._group)

    async def _open_later(self, watch: DiskWatch) -> None:
        while not self._disk.is_open:
            await asyncio.sleep(self._retry_s)
            try:
                await self._disk.open()
            except CacheUnavailable:
                continue  # the warning at the start named the reason
            watch.opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the cache and end its tasks."""
        try:
            await self.close()
        finally:
            if self._bypass is not None:
                self._bypass.watch.close()
            # all fills have ended; the body's error is not passed on, because the group would wrap it
            await self._group.__aexit__(None, None, None)

    async def close(self) -> None:
        """Cancel fills, fail waiting acquirers and close the storages; idempotent. Entries on disk stay."""
        try:
            if self._opening is not None:
                self._opening.cancel()
                await asyncio.wait([self._opening])
            if self._bypass is not None:
                await self._bypass.memory.close()
        finally:
            await self._disk.close()

    async def acquire(self, refs: Sequence[ObjectRef]) -> Pins:
        """Return pins on all of ``refs`` (duplicates allowed), fetching missing ones.

        Raises:
            CacheTooSmall: the objects cannot fit together even into an empty cache.
            CacheUnavailable: the disk cannot be used or does not answer, and memory cannot hold the objects either.
            Draining: the cache is closing.
            Whatever the fetcher raises.
        """
        if self._bypass is None:
            return await self._disk.acquire(refs)
        memory = self._bypass.memory
        self._give_memory_back(self._bypass)
        in_memory_count = sum(map(memory.knows, set(refs))) if len(memory.index) else 0
        on_disk, refusal = await self._acquire_on_disk(self._bypass, refs)
        if len(on_disk.files) == len(refs):
            return on_disk
        try:
            pinned = {file.ref: file for file in on_disk.files}
            rest = [ref for ref in dict.fromkeys(refs) if ref not in pinned]
            in_memory = await self._acquire_in_memory(self._bypass, rest, len(rest) - in_memory_count, refusal)
        except BaseException:
            on_disk.release()
            raise
        pinned |= {file.ref: file for file in in_memory.files}

        def release() -> None:
            on_disk.release()
            in_memory.release()

        return Pins(tuple(pinned[ref] for ref in refs), release)

    def _on_disk(self, bypass: _Bypass, refs: Sequence[ObjectRef]) -> Sequence[ObjectRef]:
        """Return the objects whose tier is the disk: those that are there, and new ones if it may be filled."""
        may_read, may_fill = bypass.watch.may_read(), bypass.watch.may_fill()
        if may_fill and not len(bypass.memory.index):
            return refs
        return [
            ref
            for ref in dict.fromkeys(refs)
            if not bypass.memory.knows(ref) and (may_fill or (may_read and self._disk.knows(ref)))
        ]

    async def _acquire_on_disk(
        self, bypass: _Bypass, refs: Sequence[ObjectRef]
    ) -> tuple[Pins, CacheUnavailable | None]:
        """Pin the objects whose tier is the disk, except those that it refuses; then also return its error."""
        watch, refusal = bypass.watch, None
        on_disk = self._on_disk(bypass, refs)
        while on_disk:
            is_filling = not all(map(self._disk.knows, on_disk))
            try:
                async with watch.operation():
                    pins = await self._disk.acquire(on_disk)
            except CacheUnavailable as error:
                refusal, self._refused = error, True
                watch.failed(error)
                whole = [ref for ref in on_disk if self._disk.knows(ref)] if watch.may_read() else []
                on_disk = whole if len(whole) < len(on_disk) else []  # each round asks the disk for less
            else:
                if is_filling:
                    self._refused = False
                    watch.filled()
                return pins, refusal
        return Pins((), lambda: None), refusal

    async def _acquire_in_memory(
        self, bypass: _Bypass, refs: Sequence[ObjectRef], bypassed_count: int, refusal: CacheUnavailable | None
    ) -> Pins:
        """Pin objects in memory; ``bypassed_count`` of them would be on the disk if it could be used."""
        if not refs:
            return Pins((), lambda: None)
        try:
            pins = await bypass.memory.acquire(refs)
        except CacheTooSmall as error:
            raise refusal or CacheUnavailable(
                f"the disk is {bypass.watch.state.value}, and memory cannot hold the objects",
                object=error.object,
                hint=f"repair it, or go on without it: {error.hint}",
                stage="cache",
            ) from error
        if bypassed_count:
            self._recorder.count(CACHE_BYPASSED, bypassed_count)
        return pins

    def _give_memory_back(self, bypass: _Bypass) -> None:
        """Drop the objects in memory that are not pinned, once the disk can take them again."""
        if len(bypass.memory.index) and not self._refused and bypass.watch.may_fill():
            for entry in [entry for entry in bypass.memory.index if not entry.pins]:
                bypass.memory.drop(entry.ref)

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        """Replace ``owner``'s wish list. Fills that nothing else wants end if the list is empty.

        Failures are counted and dropped. Entries already in the cache are verified in advance, so that their acquirer
        need not wait.
        """
        if self._bypass is None:
            self._disk.wish(owner, refs)
        else:
            on_disk = self._on_disk(self._bypass, refs)
            self._disk.wish(owner, on_disk)
            others = set() if on_disk is refs else set(refs).difference(on_disk)
            self._bypass.memory.wish(owner, [ref for ref in refs if ref in others] if others else ())
        if not refs:
            for tier in self._tiers:
                tier.give_up(owner)

    def note_next_use(self, times: NextUses, refs: Sequence[ObjectRef] | None = None) -> None:
        """Take the times at which objects are needed next from ``times``; see ``ShardCache.note_next_use``.

        Raises:
            ValueError: a time is not a number.
        """
        for tier in self._tiers:
            tier.note_next_use(times, refs)

    async def discard(self, ref: ObjectRef) -> None:
        """Drop a damaged entry, now or with its last pin. Returns at once; the next acquire fetches it again.

        A file that vanished seldom vanishes alone, so every file is verified again before its next use.
        """
        if self._bypass is not None and self._disk.knows(ref) and not self._bypass.memory.knows(ref):
            self._bypass.watch.doubted()
        for tier in self._tiers:
            tier.doubt()
            tier.drop(ref)

    async def renew(self, ref: ObjectRef) -> None:
        """Drop an entry, now or with its last pin, without suspecting this or any other entry."""
        for tier in self._tiers:
            tier.drop(ref)

    def holds(self, ref: ObjectRef) -> bool:
        """Whether the cache holds the whole object."""
        return any(tier.holds(ref) for tier in self._tiers)

    def knows(self, ref: ObjectRef) -> bool:
        """Whether the cache holds the object or is filling it."""
        return any(tier.knows(ref) for tier in self._tiers)

    def has_room(self, ref: ObjectRef) -> bool:
        """Whether a missing object could enter the disk now without evicting an entry that is needed sooner."""
        return (self._bypass is None or self._bypass.watch.may_fill()) and self._disk.has_room(ref)

    def entries(self) -> list[CacheEntry]:
        """Return the whole entries, in no particular order."""
        return [entry for tier in self._tiers for entry in tier.entries()]

    @property
    def limit_bytes(self) -> int:
        """Upper limit of the bytes of all entries: of those on disk, or in memory until the directory is open."""
        if self._bypass is None or self._disk.limit_bytes:
            return self._disk.limit_bytes
        return self._bypass.memory.limit_bytes

    @property
    def stats(self) -> CacheStats:
        """A snapshot of counters and gauges."""
        each = [tier.stats for tier in self._tiers]
        sums = {one.name: sum(getattr(stats, one.name) for stats in each) for one in fields(CacheStats)}
        return CacheStats(**(sums | {"limit_bytes": self.limit_bytes}))

    @property
    def _tiers(self) -> tuple[Tier, ...]:
        return (self._disk,) if self._bypass is None else (self._disk, self._bypass.memory)

    def _doubted(self) -> None:
        """Let the watch try the disk out: an entry on it was found broken."""
        if self._bypass is not None:
            self._bypass.watch.doubted()


@dataclass(slots=True)
class _Grant:
    """A claim made for one acquirer, and its interest in the fills of missing entries."""

    reservation: Reservation
    flights: list[Flight[Entry, None]] = field(default_factory=list)


class Tier:
    """One storage and the index of its entries: reserves, fills, verifies, opens and evicts. Empty until opened.

    Attributes:
        index: the entries.
        is_open: whether entries may be acquired.
    """

    def __init__(
        self,
        storage: EntryStorage,
        *,
        options: CacheOptions,
        fetcher: ShardFetcher,
        recorder: Recorder,
        clock: Clock,
        group: asyncio.TaskGroup,
        doubted: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over a storage, which is not open yet; ``doubted`` is called for each entry that is found broken."""
        self.index = CacheIndex(0)
        self.is_open = False
        self._storage = storage
        self._options = options
        self._fetcher = fetcher
        self._clock = clock
        self._group = group
        self._doubted = doubted
        self._metrics = CacheMetrics(recorder)
        self._queue = _SpaceQueue(self.index.space.group)
        self._unindexed = Examination(storage, self.index, self._metrics, ())
        self._unsaid_count = 0  # vanished entries that no line of the log counts yet
        self._quiet_until_s = -math.inf

    def __repr__(self) -> str:
        return f"Tier({self._storage.names.where})"

    async def open(self) -> None:
        """Open the storage and index the entries in it.

        Raises:
            CacheUnavailable: the storage cannot be used.
        """
        opened = await self._storage.open(self._job_failed)
        options, next_uses = self._options, self.index.next_uses
        self.index = opened.index
        self._queue = _SpaceQueue(opened.index.space.group)
        if next_uses is not None:
            self.index.note_next_use(next_uses)
        self._fills = Fills(
            self._group,
            self.index,
            self._storage,
            self._fetcher,
            self._metrics,
            self._clock,
            deadline_s=options.fill_deadline_s,
            ended=self._fill_ended,
        )
        self._prefetcher = Prefetcher(self.index, self._fills, self._metrics, options.prefetching)
        self._checks = Checks(self._group, self._storage, self._clock, options)
        self._early_checks = EarlyChecks(self._group, self.index, self._checks, self._refetch)
        self._unindexed = Examination(self._storage, self.index, self._metrics, opened.unindexed)
        self._metrics.error("broken", opened.broken_count)
        self._metrics.count(CACHE_EVICTIONS, opened.evicted_count)
        self.is_open = True
        self._unindexed.start(self._group, self._changed)
        self._changed()

    async def close(self) -> None:
        """Cancel fills, fail waiting acquirers and close the storage; idempotent.

        Entries stay if the storage keeps them.
        """
        if not self.is_open:
            return
        self.is_open = False
        self._queue.fail(os_errors.closed())
        self._prefetcher.close()
        self._early_checks.close()
        self._unindexed.close()
        try:
            await self._checks.close()
            await self._fills.cancel_all()
        finally:
            # a damaged entry that is still pinned must not look whole to the next start
            self._storage.remove([entry.ref for entry in self.index if entry.damaged])
            whole = [one for one in self.index if one.state is EntryState.COMMITTED and not one.damaged]
            whole.sort(key=lambda entry: entry.used_at)
            try:
                if not await self._storage.close([entry.ref for entry in whole], _CLOSE_DEADLINE_S):
                    self._metrics.error("unflushed")
            finally:
                self._metrics.retire()

    async def acquire(self, refs: Sequence[ObjectRef]) -> Pins:
        """Return pins on all of ``refs`` (duplicates allowed), fetching missing ones; see ``Cache.acquire``."""
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

    async def _reserve(self, refs: tuple[ObjectRef, ...]) -> _Grant:
        if not self.is_open:
            raise os_errors.closed()
        needs_space = any(self.index.find(ref) is None for ref in refs)
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
            self._metrics.space_wait_s += self._clock.monotonic_s() - started_s
            self._changed()  # the next waiters may fit now

    def _grant(self, refs: Sequence[ObjectRef]) -> _Grant | FullNow:
        """Claim now, or return what is full. Synchronous, so that pins, evictions and fills are one decision."""
        outcome = self.index.reserve_all(refs)
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
            self._metrics.count(CACHE_HITS, len(reservation.present) - lost_count)
            self._metrics.count(CACHE_MISSES, len(reservation.running) + len(reservation.missing) + lost_count)
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
        if not self.is_open:
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
        if not self.is_open:
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
        if not self.is_open or entry.state is not EntryState.COMMITTED:
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
            self.index.reopen(entry)
            self._metrics.error(finding.value)
            self._say(entry, finding)
            if finding in _DOUBTFUL:
                self._doubted()

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
        removed = [entry.ref for entry in grant.reservation.entries if self.index.unpin(entry)]
        if self.is_open:
            self._storage.remove(removed)
        self._changed()

    def wish(self, owner: str, refs: Sequence[ObjectRef]) -> None:
        """Replace ``owner``'s list of objects to fetch, or to verify, in advance; running fills go on."""
        if self.is_open:
            self._prefetcher.wish(owner, refs)
            self._early_checks.wish(owner, refs)
            self._changed()

    def give_up(self, owner: str) -> None:
        """End the running fills that only ``owner`` has wished for."""
        if self.is_open:
            self._prefetcher.give_up(owner)
            self._changed()

    def note_next_use(self, times: NextUses, refs: Sequence[ObjectRef] | None) -> None:
        """Take the times at which objects are needed next from ``times``.

        Raises:
            ValueError: a time is not a number.
        """
        self.index.note_next_use(times, refs)
        self._changed()

    def doubt(self) -> None:
        """Verify every entry before its next use."""
        if self.is_open:
            self._checks.doubt()

    def drop(self, ref: ObjectRef) -> None:
        """Remove an entry, now or with its last pin."""
        if self.index.discard(ref) is not None and self.is_open:
            self._storage.remove((ref,))
        self._changed()

    def holds(self, ref: ObjectRef) -> bool:
        """Whether the whole object is here."""
        entry = self.index.find(ref)
        return entry is not None and entry.state is EntryState.COMMITTED and not entry.damaged

    def knows(self, ref: ObjectRef) -> bool:
        """Whether the object is here or is being filled."""
        return self.index.find(ref) is not None

    def has_room(self, ref: ObjectRef) -> bool:
        """Whether a missing object could enter now without evicting an entry that is needed sooner."""
        price, times = self.index.space.price((ref,)), self.index.next_uses
        return price >= NOT_NEEDED or (times is not None and price > times((ref,))[0])

    def entries(self) -> list[CacheEntry]:
        """Return the whole entries, in no particular order."""
        return [
            CacheEntry(entry.ref.url, entry.ref.etag, entry.ref.size_bytes, entry.pins, text_of(entry.ref.conversion))
            for entry in self.index
            if entry.state is EntryState.COMMITTED
        ]

    @property
    def limit_bytes(self) -> int:
        """Upper limit of the entries' bytes: the configured size, or less if the storage is smaller."""
        return self._unindexed.limit_bytes

    @property
    def stats(self) -> CacheStats:
        """A snapshot of counters and gauges."""
        return self._metrics.snapshot(self.index, len(self._queue))

    def _fill_ended(self, entry: Entry, error: BaseException | None) -> None:
        if error is None:
            self._checks.written(entry)
        self._prefetcher.ended(entry, error)
        self._changed()

    def _changed(self) -> None:
        """Serve the waiters, then the wishes; called after every change of the index."""
        if not self.is_open:
            return
        self._queue.serve(self._grant)
        if not self._queue.holds_all_up and not self._unindexed.left_bytes:
            self._prefetcher.pump()
        self._early_checks.pump()
        self._metrics.publish(self.index)

    def _job_failed(self, error: BaseException) -> None:
        self._metrics.error("disk")
        _log.warning("cached shard not removed", error=str(error))


@dataclass(slots=True)
class _Waiter:
    refs: Sequence[ObjectRef]
    quotas: frozenset[str]  # the quotas that its refs count against
    lacks: str  # the quota that is full, or NO_GROUP if the cache itself is full


class _SpaceQueue:
    """Acquirers waiting for space, first come first served; they hold nothing meanwhile.

    A grant is made synchronously on their behalf when space becomes free.

    A waiter for space inside a quota blocks later waiters of the same quota only. A waiter for space of the cache
    blocks all later waiters.
    """

    def __init__(self, quota_of: Callable[[ObjectRef], str]) -> None:
        self._quota_of = quota_of
        self._waiters: dict[asyncio.Future[_Grant], _Waiter] = {}

    def __len__(self) -> int:
        """Number of waiters."""
        return len(self._waiters)

    @property
    def holds_all_up(self) -> bool:
        """Whether a waiter needs space of the cache itself, not of a quota."""
        return any(waiter.lacks == NO_GROUP for waiter in self._waiters.values())

    def blocking(self, refs: Sequence[ObjectRef]) -> FullNow | None:
        """Return the shortage that blocks ``refs`` because an earlier waiter needs the same space, or None."""
        if not self._waiters:
            return None
        return self._blocking(self._quotas(refs), (waiter.lacks for waiter in self._waiters.values()))

    async def wait(self, refs: Sequence[ObjectRef], full: FullNow, undo: Callable[[_Grant], None]) -> _Grant:
        """Wait until the request can be granted.

        Args:
            refs: the requested objects.
            full: why they cannot be granted now.
            undo: takes back a grant that came together with this task's cancellation.

        Raises:
            The error that was passed to ``fail``.
        """
        granted: asyncio.Future[_Grant] = asyncio.get_running_loop().create_future()
        self._waiters[granted] = _Waiter(refs, self._quotas(refs), full.quota)
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                undo(granted.result())
            raise
        finally:
            self._waiters.pop(granted, None)

    def serve(self, grant: Callable[[Sequence[ObjectRef]], _Grant | FullNow]) -> None:
        """Grant in order, skipping waiters that an earlier ungranted waiter blocks."""
        lacking: list[str] = []
        for granted, waiter in tuple(self._waiters.items()):
            if not granted.done():
                got = self._blocking(waiter.quotas, lacking) or grant(waiter.refs)
                if isinstance(got, FullNow):
                    waiter.lacks = got.quota
                    lacking.append(got.quota)
                    continue
                granted.set_result(got)
            self._waiters.pop(granted, None)

    def fail(self, error: Exception) -> None:
        """Fail all waiters with ``error``."""
        for granted in tuple(self._waiters):
            if not granted.done():
                granted.set_exception(error)
        self._waiters.clear()

    def _quotas(self, refs: Sequence[ObjectRef]) -> frozenset[str]:
        return frozenset(map(self._quota_of, refs))

    @staticmethod
    def _blocking(quotas: frozenset[str], lacking: Iterable[str]) -> FullNow | None:
        return next((FullNow(0, lacks) for lacks in lacking if lacks == NO_GROUP or lacks in quotas), None)
