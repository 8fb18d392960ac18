"""The shard cache over any place: a ``ShardCache``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import structlog

from feedd.cache import os_errors
from feedd.cache.cache_metrics import CacheMetrics
from feedd.cache.cache_view import CacheView
from feedd.cache.check_schedule import CheckRule, Checks
from feedd.cache.early_checks import AheadChecks
from feedd.cache.entry_fill import Filler
from feedd.cache.entry_storage import Finding
from feedd.cache.ondisk.unindexed_files import Examination
from feedd.cache.pins import Pins
from feedd.cache.policy.cache_index import Claim, FullNow, TooLarge
from feedd.cache.policy.eviction_order import EntryState
from feedd.cache.prefetcher import Prefetcher
from feedd.cache.running_fills import Fills
from feedd.cache.space_queue import SpaceQueue
from feedd.metrics import CACHE_EVICTIONS, CACHE_HITS, CACHE_MISSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from feedd.cache.entry_storage import EntryStorage
    from feedd.cache.policy.eviction_order import Entry
    from feedd.flow.singleflight import Flight
    from feedd.protocols import Clock, Recorder, ShardFetcher
    from feedd.values import ObjectRef

_CLOSE_DEADLINE_S = 60.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """What does not depend on the place.

    Attributes:
        fill_deadline_s: longest time one object may take to arrive.
        prefetch_fills: fills at a time for wishes nobody waits for yet.
        rule: how closely entries are looked at before their use.
    """

    fill_deadline_s: float = 1800.0
    prefetch_fills: int = 4
    rule: CheckRule = field(default_factory=CheckRule)


@dataclass(slots=True)
class _Grant:
    """A claim made for one acquirer, and its interest in the fills of what is not there yet."""

    claim: Claim
    flights: list[Flight[Entry, None]] = field(default_factory=list)


class PlacedCache(CacheView):
    """Whole shards in one place that this object owns while it is open.

    Fills are tasks of a TaskGroup that lives from enter to exit. Used on one event loop; the place works in threads.
    """

    def __init__(
        self, place: EntryStorage, options: CoreOptions, fetcher: ShardFetcher, recorder: Recorder, clock: Clock
    ) -> None:
        self._place = place
        self._options = options
        self._fetcher = fetcher
        self._clock = clock
        self._cache_metrics = CacheMetrics(recorder)
        self._group = asyncio.TaskGroup()
        self._open = False

    async def __aenter__(self) -> Self:
        """Take the place over and find what it holds.

        Raises:
            CacheUnavailable: it cannot be used.
        """
        opened = await self._place.open(self._job_failed)
        options = self._options
        self._index = opened.index
        self._queue: SpaceQueue[_Grant] = SpaceQueue(opened.index.room.group)
        filler = Filler(self._place, self._fetcher, options.fill_deadline_s)
        self._fills = Fills(self._group, self._index, filler, self._cache_metrics, self._clock, self._fill_ended)
        self._prefetcher = Prefetcher(self._index, self._fills, self._cache_metrics, options.prefetch_fills)
        self._checks = Checks(self._group, self._place, self._clock, options.rule)
        self._ahead = AheadChecks(self._group, self._index, self._checks, self._refetch)
        self._strays = Examination(self._place, self._index, self._cache_metrics, opened.strays)
        self._cache_metrics.error("broken", opened.broken_count)
        self._cache_metrics.count(CACHE_EVICTIONS, opened.evicted_count)
        await self._group.__aenter__()
        self._open = True
        self._strays.start(self._group, self._changed)
        self._changed()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        try:
            await self.close()
        finally:
            # all fills have ended; given the body's error it would wrap that in a group
            await self._group.__aexit__(None, None, None)

    async def acquire(self, refs: Sequence[ObjectRef]) -> Pins:
        """Return pins on all of ``refs`` (duplicates allowed), fetching what is missing.

        Raises:
            CacheTooSmall: they cannot fit together even into an empty cache.
            CacheUnavailable: the place cannot be written, or does not answer.
            Draining: the cache is being closed.
            Whatever the fetcher raises.
        """
        unique = tuple(dict.fromkeys(refs))
        while True:
            grant = await self._claim(unique)
            try:
                complete = await self._bring(grant)
            except BaseException:
                self._undo(grant)
                raise
            if complete:
                break
            self._undo(grant)
        files = {ref: self._place.file(ref) for ref in unique}
        return Pins(tuple(files[ref] for ref in refs), lambda: self._undo(grant))

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        """Replace ``owner``'s wish list; see ``Prefetcher``. Failures are counted and dropped.

        What is here already is looked at in time, so that its acquirer need not wait for that.
        """
        if self._open:
            self._prefetcher.wish(owner, refs)
            self._ahead.wish(owner, refs)
            self._changed()

    def note_next_use(self, uses: Iterable[tuple[ObjectRef, float]]) -> None:
        """Tell at which position of the future each object is needed next; ``inf``: never again.

        Positions are remembered for objects not here yet too, until they are set to ``inf``.

        Raises:
            ValueError: a position is not a number.
        """
        self._index.note_next_use(uses)
        self._changed()

    async def discard(self, ref: ObjectRef) -> None:
        """Drop a damaged entry, now or with its last pin; returns at once, the next acquire fetches it again.

        A file that went away seldom goes alone: from now on every file is looked at again before its next use.
        """
        self._checks.doubt()
        await self.renew(ref)

    async def renew(self, ref: ObjectRef) -> None:
        """Drop an entry, now or with its last pin, though nothing is wrong with it or any other."""
        entry = self._index.discard(ref)
        if entry is not None and self._open:
            self._place.remove((ref,))
        self._changed()

    async def close(self) -> None:
        """Cancel fills, send acquirers away, give the place up; idempotent. Entries stay where the place keeps them."""
        if not self._open:
            return
        self._open = False
        self._queue.fail(os_errors.closed())
        self._prefetcher.close()
        self._ahead.close()
        self._strays.close()
        try:
            await self._checks.close()
            await self._fills.cancel_all()
        finally:
            # damaged ones that are still pinned must not look whole to the next start
            self._place.remove([entry.ref for entry in self._index if entry.damaged])
            whole = [one for one in self._index if one.state is EntryState.COMMITTED and not one.damaged]
            whole.sort(key=lambda entry: entry.used_at)
            try:
                if not await self._place.close([entry.ref for entry in whole], _CLOSE_DEADLINE_S):
                    self._cache_metrics.error("unflushed")
            finally:
                self._cache_metrics.retire()

    async def _claim(self, refs: tuple[ObjectRef, ...]) -> _Grant:
        if not self._open:
            raise os_errors.closed()
        too_large = self._strays.too_large(refs)
        if too_large is not None:
            raise os_errors.too_small(refs, too_large, self._place.names)
        needs_space = any(self._index.find(ref) is None for ref in refs)
        full = self._queue.ahead(refs) if needs_space else None  # who needs no space does not wait behind those who do
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
            self._changed()  # whoever was behind us may fit

    def _grant(self, refs: Sequence[ObjectRef]) -> _Grant | FullNow:
        """Claim now, or say what is full; synchronous, so that pins, evictions and fills are one decision."""
        outcome = self._index.reserve_all(refs)
        if not isinstance(outcome, Claim):
            # too large only while files nobody has examined yet take space: those that could never fit were told so
            assert self._strays.left_bytes or not isinstance(outcome, TooLarge), "what can never fit does not get here"
            return outcome if isinstance(outcome, FullNow) else FullNow(0)
        self._fills.evict(outcome.evicted)
        return _Grant(outcome, [self._fills.join(entry) for entry in (*outcome.running, *outcome.missing)])

    async def _bring(self, grant: _Grant) -> bool:
        """Wait until everything claimed is here; False where an entry was lost to somebody else's failed refetch."""
        try:
            claim = grant.claim
            lost_count = await self._refill(grant)
            self._cache_metrics.count(CACHE_HITS, len(claim.present) - lost_count)
            self._cache_metrics.count(CACHE_MISSES, len(claim.running) + len(claim.missing) + lost_count)
            await self._fills.arrive(grant.flights)
            return all(entry.state is EntryState.COMMITTED for entry in claim.entries)
        finally:
            self._leave(grant)

    async def _refill(self, grant: _Grant) -> int:
        """Start or join fetches of entries that are not what was written; return how many."""
        due = [entry for entry in grant.claim.present if self._checks.due(entry) is not None]
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
        """Fetch anew what was found broken before anybody asked for it."""
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
            _log.warning(
                "cached shard is not what was written: fetching it again", url=entry.ref.url, got=finding.value
            )

    def _leave(self, grant: _Grant) -> None:
        while grant.flights:
            self._fills.leave(grant.flights.pop())

    def _undo(self, grant: _Grant) -> None:
        """Take everything about a grant back."""
        self._leave(grant)
        removed = [entry.ref for entry in grant.claim.entries if self._index.unpin(entry)]
        if self._open:
            self._place.remove(removed)
        self._changed()

    def _fill_ended(self, entry: Entry, error: BaseException | None) -> None:
        if error is None:
            self._checks.written(entry)
        self._prefetcher.ended(entry, error)
        self._changed()

    def _changed(self) -> None:
        """Look again at who waits, then at wishes; called after every change of the index."""
        if not self._open:
            return
        self._queue.serve(self._grant)
        if not self._queue.holds_all_up and not self._strays.left_bytes:
            self._prefetcher.pump()
        self._ahead.pump()
        self._cache_metrics.publish(self._index)

    def _job_failed(self, error: BaseException) -> None:
        self._cache_metrics.error("disk")
        _log.warning("cached shard not removed", error=str(error))
