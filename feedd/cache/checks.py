"""Verification of entries: before their use, in advance, and of files that a start did not know."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from feedd.cache import entry_layout
from feedd.cache.index import EntryState
from feedd.cache.prefetch import WishLists
from feedd.cache.storage import Depth, Finding
from feedd.errors import CacheUnavailable, FeeddError
from feedd.flow.singleflight import SingleFlight
from feedd.metrics import CACHE_EVICTIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.cache.index import CacheIndex, Entry, TooLarge
    from feedd.cache.options import CacheOptions
    from feedd.cache.report import CacheMetrics
    from feedd.cache.storage import EntryStorage, UnindexedFile
    from feedd.protocols import Clock
    from feedd.values import ObjectRef

_SEEN_FOR_S: Final = 1.0  # no thread call per batch: a file seen this recently is assumed to be still there
_COMPACT_SLACK: Final = 64

_Look = tuple["Entry", Depth]
_BATCH: Final = 256  # files at a time: changes of the directory wait for at most one batch
_log = structlog.get_logger(__name__)


class Checks:
    """Verifies entries: the bytes when an entry goes into use, the length of its file from time to time.

    An entry that is in use, or that was verified lately, is not read again. Concurrent requests for the same
    verification share one.
    """

    def __init__(self, group: asyncio.TaskGroup, storage: EntryStorage, clock: Clock, options: CacheOptions) -> None:
        self._storage = storage
        self._clock = clock
        self._by_blocks = options.verify != "off"
        self._again_s = options.verified_for_s if options.verify == "use" else math.inf
        self._whole_s: dict[Entry, float] = {}  # when each entry was last found whole, as closely as options ask
        self._verifying: dict[Entry, int] = {}
        self._flights: SingleFlight[_Look, Finding] = SingleFlight(group)
        self._doubted_s = -math.inf

    def doubt(self) -> None:
        """Verify every entry before its next use: a file that vanished seldom vanishes alone."""
        self._doubted_s = self._clock.monotonic_s()

    def written(self, entry: Entry) -> None:
        """Mark an entry as verified: it was just filled, and its checksums come from the fetched bytes."""
        now_s = self._clock.monotonic_s()
        entry.seen_s = now_s
        self._note(entry, now_s)

    def due(self, entry: Entry) -> Depth | None:
        """Return how closely a committed entry must be verified before its use, or None for not at all."""
        if not self._storage.shared:
            return None
        now_s = self._clock.monotonic_s()
        whole_s = self._whole_s.get(entry)
        idle = entry.pins <= 1 or entry in self._verifying  # the caller's own pin
        if whole_s is None or (idle and now_s - whole_s >= self._again_s):
            return Depth.BLOCKS if self._by_blocks else Depth.HEADER
        return Depth.LENGTH if entry.seen_s <= max(now_s - _SEEN_FOR_S, self._doubted_s) else None

    async def look(self, entries: Sequence[Entry]) -> list[Finding]:
        """Verify entries that are due; each finding is about the file that existed at that moment.

        Raises:
            CacheUnavailable: the disk does not answer.
        """
        depths = [self.due(entry) or Depth.LENGTH for entry in entries]
        shallow = [entry for entry, depth in zip(entries, depths, strict=True) if depth is Depth.LENGTH]
        deep = [(entry, depth) for entry, depth in zip(entries, depths, strict=True) if depth is not Depth.LENGTH]
        found: dict[Entry, Finding] = {}
        flights = [self._flights.join(look, partial(self._look_deep, look)) for look in deep]
        try:
            if shallow:
                answers = await self._storage.look([entry.ref for entry in shallow], Depth.LENGTH)
                found.update(zip(shallow, answers, strict=True))
            if flights:
                await asyncio.wait([flight.result for flight in flights])
            found.update((flight.key[0], flight.result.result()) for flight in flights)
        finally:
            for flight in flights:
                self._flights.leave(flight)
        now_s = self._clock.monotonic_s()
        for entry in shallow:
            if found[entry] is Finding.WHOLE:
                entry.seen_s = now_s
        return [found[entry] for entry in entries]

    async def close(self) -> None:
        """Cancel all running verifications."""
        await self._flights.cancel_all()

    async def _look_deep(self, look: _Look) -> Finding:
        entry, depth = look
        generation = entry.generation
        self._verifying[entry] = self._verifying.get(entry, 0) + 1
        try:
            (finding,) = await self._storage.look((entry.ref,), depth)
        finally:
            self._verifying[entry] -= 1
            if not self._verifying[entry]:
                del self._verifying[entry]
        if finding is Finding.WHOLE and entry.generation == generation:
            entry.seen_s = now_s = self._clock.monotonic_s()
            self._note(entry, now_s)
        return finding

    def _note(self, entry: Entry, now_s: float) -> None:
        self._whole_s[entry] = now_s
        if len(self._whole_s) >= self._compact_at:
            self._whole_s = {one: s for one, s in self._whole_s.items() if one.state is not EntryState.GONE}
            self._compact_at = 2 * len(self._whole_s) + _COMPACT_SLACK

    _compact_at = _COMPACT_SLACK


class EarlyChecks:
    """Verifies idle wished-for entries, one at a time; broken ones are handed to ``refetch`` at once."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        index: CacheIndex,
        checks: Checks,
        refetch: Callable[[Entry, Finding], Awaitable[None]],
    ) -> None:
        self._group = group
        self._index = index
        self._checks = checks
        self._refetch = refetch
        self._wishes = WishLists()
        self._task: asyncio.Task[None] | None = None

    def wish(self, owner: str, refs: Sequence[ObjectRef]) -> None:
        """Replace the owner's list of wishes."""
        self._wishes.replace(owner, [ref for ref in refs if self._due(ref) is not None])

    def pump(self) -> None:
        """Start verifying if an entry is due."""
        if self._wishes and self._task is None:
            self._task = self._group.create_task(self._run())

    def close(self) -> None:
        """Stop verifying and drop all wishes."""
        self._wishes.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while (entry := self._next()) is not None:
                await self._look(entry)
        finally:
            self._task = None

    async def _look(self, entry: Entry) -> None:
        generation = entry.generation
        try:
            (finding,) = await self._checks.look((entry,))
        except FeeddError:
            return  # the acquirer meets the same error and reports it
        if finding is not Finding.WHOLE and entry.generation == generation:
            await self._refetch(entry, finding)

    def _next(self) -> Entry | None:
        for owner in self._wishes.owners():
            while (ref := self._wishes.head(owner)) is not None:
                self._wishes.drop_head(owner)
                entry = self._due(ref)
                if entry is not None:
                    self._wishes.served(owner)
                    return entry
        return None

    def _due(self, ref: ObjectRef) -> Entry | None:
        """Return the object's entry if its bytes must be verified before use, else None."""
        entry = self._index.find(ref)
        if entry is None or entry.state is not EntryState.COMMITTED or entry.pins:
            return None
        return entry if self._checks.due(entry) in {Depth.HEADER, Depth.BLOCKS} else None


class Examination:
    """Examines unlisted files and indexes the whole ones; until then the index leaves their space free.

    Attributes:
        left_bytes: disk bytes of the files not examined yet.
        limit_bytes: the index's limit once all files are examined.
    """

    def __init__(
        self, place: EntryStorage, index: CacheIndex, metrics: CacheMetrics, unindexed: Sequence[UnindexedFile]
    ) -> None:
        self._storage = place
        self._index = index
        self._cache_metrics = metrics
        self._unindexed = unindexed
        self._task: asyncio.Task[None] | None = None
        self.limit_bytes = index.limit_bytes
        self.left_bytes = sum(file.disk_bytes for file in unindexed)
        index.space.limit_bytes -= self.left_bytes

    def start(self, group: asyncio.TaskGroup, changed: Callable[[], None]) -> None:
        """Start examining; ``changed`` is called whenever there may be more room."""
        if self._unindexed:
            self._task = group.create_task(self._run(changed))

    def close(self) -> None:
        """Stop; the remaining files are examined after the next start."""
        if self._task is not None:
            self._task.cancel()

    def too_large(self, refs: Sequence[ObjectRef]) -> TooLarge | None:
        """Return why even an empty cache cannot hold ``refs`` together once all files are examined, or None."""
        room = self._index.space
        room.limit_bytes, held_bytes = self.limit_bytes, room.limit_bytes
        try:
            return room.too_large(refs)
        finally:
            room.limit_bytes = held_bytes

    async def _run(self, changed: Callable[[], None]) -> None:
        for start in range(0, len(self._unindexed), _BATCH):
            batch = self._unindexed[start : start + _BATCH]
            try:
                refs = await self._storage.identify(batch)
            except CacheUnavailable as error:
                self._cache_metrics.error("disk")
                _log.warning("cache files not examined", count=len(batch), error=str(error))
                refs = []
            self._enter(batch, refs)
            changed()

    def _enter(self, batch: Sequence[UnindexedFile], refs: Sequence[ObjectRef]) -> None:
        batch_bytes = sum(file.disk_bytes for file in batch)
        self.left_bytes -= batch_bytes
        self._index.space.limit_bytes += batch_bytes
        self._cache_metrics.error("broken", len(batch) - len(refs))
        unknown = [(ref, entry_layout.disk_bytes(ref)) for ref in refs if self._index.find(ref) is None]
        unwanted = self._index.adopt_all(unknown)
        self._storage.remove(unwanted)
        self._cache_metrics.count(CACHE_EVICTIONS, len(unwanted))
