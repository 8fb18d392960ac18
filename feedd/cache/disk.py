"""The shard cache on local disk: a ``ShardCache``."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import structlog

from feedd.cache import boot, layout, trouble
from feedd.cache.disk_thread import DiskThread
from feedd.cache.fill import Filler
from feedd.cache.fills import Fills
from feedd.cache.index import Claim, FullNow
from feedd.cache.lock import DirectoryLock
from feedd.cache.order import EntryState
from feedd.cache.pins import Pins
from feedd.cache.prefetcher import Prefetcher
from feedd.cache.report import CacheEntry
from feedd.cache.space_queue import SpaceQueue
from feedd.cache.tally import Tally
from feedd.errors import CacheUnavailable
from feedd.metrics import CACHE_EVICTIONS, CACHE_HITS, CACHE_MISSES
from feedd.units import format_size
from feedd.values import ShardFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from feedd.cache.boot import Opened
    from feedd.cache.options import CacheOptions
    from feedd.cache.order import Entry
    from feedd.cache.report import CacheStats
    from feedd.flow.singleflight import Flight
    from feedd.protocols import Clock, Recorder, ShardFetcher
    from feedd.values import ObjectRef

_CLOSE_DEADLINE_S = 60.0
_SEEN_FOR_S = 1.0  # so long a file is taken to be still there: no trip to a thread for every batch
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Grant:
    """A claim made for one acquirer, and its interest in the fills of what is not there yet."""

    claim: Claim
    flights: list[Flight[Entry, None]] = field(default_factory=list)


class DiskCache:
    """Whole shards as files of one directory that this object owns while it is open.

    ``async with DiskCache(options, fetcher, recorder, clock) as cache``. Fills are tasks of a TaskGroup that lives
    from enter to exit. Used on one event loop; all file work happens in threads of its own.
    """

    def __init__(self, options: CacheOptions, fetcher: ShardFetcher, recorder: Recorder, clock: Clock) -> None:
        self._options = options
        self._fetcher = fetcher
        self._clock = clock
        self._tally = Tally(recorder)
        self._queue: SpaceQueue[_Grant] = SpaceQueue()
        self._lock = DirectoryLock(options.directory)
        self._group = asyncio.TaskGroup()
        self._open = False
        self._doubted_s = -math.inf

    def __repr__(self) -> str:
        return f"DiskCache({self._options.directory}, {format_size(self._options.size_bytes)})"

    async def __aenter__(self) -> Self:
        """Take the directory over and find what it holds.

        Raises:
            CacheUnavailable: somebody else owns it, it cannot be written, or the disk has no room for a cache.
        """
        self._disk = DiskThread(self._job_failed)
        try:
            opened = await self._disk.change(boot.open_directory, self._options, self._lock)
        except BaseException:
            self._disk.post(self._lock.__exit__)
            await self._disk.close(_CLOSE_DEADLINE_S)
            raise
        self._start(opened)
        await self._group.__aenter__()
        self._open = True
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
            CacheUnavailable: the directory cannot be written.
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
        files = {ref: ShardFile(ref, str(self._filler.path(ref)), layout.data_at(ref)) for ref in unique}
        return Pins(tuple(files[ref] for ref in refs), lambda: self._undo(grant))

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        """Replace ``owner``'s wish list; see ``Prefetcher``. Failures are counted and dropped."""
        if self._open:
            self._prefetcher.wish(owner, refs)
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
        self._doubted_s = self._clock.monotonic_s()
        entry = self._index.discard(ref)
        if entry is not None and self._open:
            self._filler.remove((ref,))
        self._changed()

    def entries(self) -> list[CacheEntry]:
        """Return the whole entries, in no order."""
        return [
            CacheEntry(entry.ref.url, entry.ref.etag, entry.ref.size_bytes, entry.pins)
            for entry in self._index
            if entry.state is EntryState.COMMITTED
        ]

    @property
    def stats(self) -> CacheStats:
        """A snapshot."""
        return self._tally.snapshot(self._index, len(self._queue))

    async def close(self) -> None:
        """Cancel fills, send acquirers away, release the directory; idempotent. Entries stay for the next start."""
        if not self._open:
            return
        self._open = False
        self._queue.fail(trouble.closed())
        self._prefetcher.close()
        try:
            await self._fills.cancel_all()
        finally:
            # damaged ones that are still pinned must not look whole to the next start
            self._filler.remove(entry.ref for entry in self._index if entry.damaged)
            try:
                await self._flush()
            finally:
                self._disk.post(self._lock.__exit__)
                await self._disk.close(_CLOSE_DEADLINE_S)

    def _start(self, opened: Opened) -> None:
        options = self._options
        self._index = opened.index
        self._ledger = opened.ledger
        self._runs = opened.runs
        self._filler = Filler(options, self._fetcher, self._disk, opened.ledger)
        self._fills = Fills(self._group, self._index, self._filler, self._tally, self._clock, self._fill_ended)
        self._prefetcher = Prefetcher(self._index, self._fills, self._tally, options.prefetch_fills)
        self._tally.error("broken", opened.broken_count)
        self._tally.count(CACHE_EVICTIONS, opened.evicted_count)
        if self._index.limit_bytes < options.size_bytes:
            _log.warning(
                "cache is limited by the disk, not by its configured size",
                directory=str(options.directory),
                size=format_size(options.size_bytes),
                limit=format_size(self._index.limit_bytes),
            )

    async def _claim(self, refs: tuple[ObjectRef, ...]) -> _Grant:
        if not self._open:
            raise trouble.closed()
        needed_bytes = sum(map(layout.disk_bytes, refs))
        if needed_bytes > self._index.limit_bytes:
            raise trouble.too_small(refs, needed_bytes, self._index.limit_bytes, self._options)
        needs_space = any(self._index.find(ref) is None for ref in refs)
        if not (needs_space and self._queue):  # who needs no space does not wait behind those who do
            grant = self._grant(refs)
            if grant is not None:
                self._changed()
                return grant
        started_s = self._clock.monotonic_s()
        try:
            return await self._queue.wait(refs, self._undo)
        finally:
            self._tally.space_wait_s += self._clock.monotonic_s() - started_s
            self._changed()  # whoever was behind us may fit

    def _grant(self, refs: Sequence[ObjectRef]) -> _Grant | None:
        """Claim now, or say None; synchronous, so that pins, evictions and fills are one decision."""
        outcome = self._index.reserve_all(refs)
        if isinstance(outcome, FullNow):
            return None
        assert isinstance(outcome, Claim), "what can never fit does not get here"
        self._fills.evict(outcome.evicted)
        return _Grant(outcome, [self._fills.join(entry) for entry in (*outcome.running, *outcome.missing)])

    async def _bring(self, grant: _Grant) -> bool:
        """Wait until everything claimed is on disk; False where an entry was lost to somebody else's failed refetch."""
        try:
            claim = grant.claim
            vanished = await self._refill_vanished(grant)
            self._tally.count(CACHE_HITS, len(claim.present) - vanished)
            self._tally.count(CACHE_MISSES, len(claim.running) + len(claim.missing) + vanished)
            await self._fills.arrive(grant.flights)
            return all(entry.state is EntryState.COMMITTED for entry in claim.entries)
        finally:
            self._leave(grant)

    async def _refill_vanished(self, grant: _Grant) -> int:
        """Start or join fetches of entries whose file is not what it was; return how many."""
        now_s = self._clock.monotonic_s()
        trusted_s = max(now_s - _SEEN_FOR_S, self._doubted_s)
        present = [entry for entry in grant.claim.present if entry.seen_s <= trusted_s]
        if not present:
            return 0
        before = [entry.generation for entry in present]
        vanished_count = 0
        gone = await self._filler.vanished([entry.ref for entry in present])
        if not self._open:
            raise trouble.closed()
        for entry, generation, vanished in zip(present, before, gone, strict=True):
            if not vanished:
                entry.seen_s = now_s
            elif entry.state is EntryState.COMMITTED and entry.generation == generation:
                self._index.reopen(entry)
                self._tally.error("vanished")
            if entry.state is EntryState.RESERVED:
                grant.flights.append(self._fills.join(entry))
                vanished_count += 1
        self._changed()
        return vanished_count

    def _leave(self, grant: _Grant) -> None:
        while grant.flights:
            self._fills.leave(grant.flights.pop())

    def _undo(self, grant: _Grant) -> None:
        """Take everything about a grant back."""
        self._leave(grant)
        removed = [entry.ref for entry in grant.claim.entries if self._index.unpin(entry)]
        if self._open:
            self._filler.remove(removed)
        self._changed()

    def _fill_ended(self, entry: Entry, error: BaseException | None) -> None:
        self._prefetcher.ended(entry, error)
        self._changed()

    def _changed(self) -> None:
        """Look again at who waits, then at wishes; called after every change of the index."""
        if self._open:
            self._queue.serve(self._grant)
            if not self._queue:
                self._prefetcher.pump()
        self._tally.publish(self._index)

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                await self._disk.change(self._ledger.flush, self._runs)
        except (CacheUnavailable, TimeoutError) as error:
            self._tally.error("unflushed")
            _log.warning("cache not flushed: a power cut would empty it", error=str(error) or "timed out")

    def _job_failed(self, error: BaseException) -> None:
        self._tally.error("disk")
        _log.warning("cache file not removed", error=str(error))
