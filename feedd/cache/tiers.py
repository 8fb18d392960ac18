"""Memory above disk as one shard cache, which continues in memory alone while the disk cannot be used."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import fields
from typing import TYPE_CHECKING, Self, TypeAlias

from feedd.cache.cache_report import CacheStats
from feedd.cache.pins import Pins
from feedd.cache.policy.placement import DiskUse, Placement
from feedd.errors import CacheTooSmall, CacheUnavailable
from feedd.metrics import CACHE_BYPASSED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from feedd.cache.cache_report import CacheEntry
    from feedd.cache.caches import DiskCache
    from feedd.cache.disk_watch import DiskWatch
    from feedd.cache.policy.placement import Routes, Tier
    from feedd.protocols import PinnedShards, Recorder
    from feedd.values import NextUses, ObjectRef


class TieredCache:
    """A ``ShardCache`` over two tiers; an object is in at most one of them, unless the disk went away meanwhile.

    An acquirer takes its objects on disk first, then those in memory. A waiter for memory may hold pins on disk, and a
    waiter for disk holds nothing. So no two acquirers can ever wait for each other. Opens and closes both tiers and the
    watch.
    """

    def __init__(self, memory: Tier, disk: Tier, watch: DiskWatch, recorder: Recorder, *, standby: bool) -> None:
        """Put one cache above another.

        Args:
            memory: upper tier, bounded by its own limit.
            disk: lower tier.
            watch: watches the lower tier's disk.
            recorder: counts the objects that bypass the disk.
            standby: use memory only while the disk cannot be used, and free it afterwards.
        """
        self._memory = memory
        self._disk = disk
        self._watch = watch
        self._recorder = recorder
        self._standby = standby
        self._placement = Placement(memory, disk, standby=standby)
        self._stack = AsyncExitStack()
        self._pinned_in_memory: Counter[ObjectRef] = Counter()  # pins in memory, on standby only
        self._spilled: set[ObjectRef] = set()  # objects in memory that belong on disk
        self._refused = False  # whether the disk refused the last fill

    def __repr__(self) -> str:
        return f"TieredCache({self._memory!r}, {self._disk!r})"

    async def __aenter__(self) -> Self:
        """Open the disk tier, the memory tier and the watch.

        Raises:
            CacheUnavailable: the disk tier cannot be opened and does not retry, so the operator must act.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._disk)
            await stack.enter_async_context(self._memory)
            await stack.enter_async_context(self._watch)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close both tiers and the watch."""
        await self._stack.aclose()

    async def acquire(self, refs: Sequence[ObjectRef]) -> Pins:
        """Return pins on all of ``refs`` (duplicates allowed), fetching missing ones.

        Raises:
            CacheTooSmall: the objects cannot fit together even into empty tiers.
            CacheUnavailable: the disk cannot be used, and memory cannot hold the objects either.
            Draining: the cache is closing.
            Whatever the fetcher raises.
        """
        await self._give_memory_back()
        who = object()
        early = f"acquire {id(who)}"
        try:
            routes = self._placement.route(who, dict.fromkeys(refs), self._use(), together=True)
            if routes.disk and not all(map(self._memory.knows, routes.memory)):
                # Filled while the disk fills, but pinned only after that has ended.
                self._memory.prefetch(routes.memory, early)
            on_disk, failure, routes = await self._from_disk(who, routes)
            try:
                in_memory = await self._from_memory(routes, failure)
            except BaseException:
                if on_disk is not None:
                    on_disk.release()
                raise
        finally:
            self._placement.forget(who)
            self._memory.prefetch([], early)
        parts = [part for part in (on_disk, in_memory) if part is not None]
        files = {file.ref: file for part in parts for file in part.files}
        return Pins(tuple(files[ref] for ref in refs), lambda: self._release(parts, routes))

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        """Replace ``owner``'s wish list; each wish goes to its tier."""
        before = self._placement.sent(owner)
        if not refs:
            self._placement.forget(owner)
            self._disk.prefetch([], owner)
            self._memory.prefetch([], owner)
            return
        routes = self._placement.route(owner, dict.fromkeys(refs), self._use(), together=False)
        self._disk.prefetch(routes.disk or _running(self._disk, before.disk), owner)
        self._memory.prefetch(routes.memory or _running(self._memory, before.memory), owner)
        if self._standby:
            self._spilled.update(routes.memory)

    def note_next_use(self, times: NextUses, refs: Sequence[ObjectRef] | None = None) -> None:
        """Tell both tiers who knows when objects are needed next; see ``ShardCache.note_next_use``."""
        self._disk.note_next_use(times, refs)
        self._memory.note_next_use(times, refs)

    async def discard(self, ref: ObjectRef) -> None:
        """Drop a damaged entry from its tier; if that is the disk, probe the disk."""
        if self._disk.knows(ref) and not self._memory.knows(ref):
            self._watch.doubted()
        await self._disk.discard(ref)
        await self._memory.discard(ref)

    async def renew(self, ref: ObjectRef) -> None:
        """Drop an entry from its tier, because a whole copy can be fetched now."""
        await self._disk.renew(ref)
        await self._memory.renew(ref)

    async def close(self) -> None:
        """Close both tiers; idempotent. Entries on disk stay for the next start."""
        try:
            await self._memory.close()
        finally:
            await self._disk.close()

    @property
    def limit_bytes(self) -> int:
        """Upper limit of the bytes of all entries in normal operation; memory on standby does not count."""
        return self._disk.limit_bytes + (0 if self._standby and self._disk.limit_bytes else self._memory.limit_bytes)

    @property
    def stats(self) -> CacheStats:
        """A snapshot of both tiers, added up."""
        both = (self._disk.stats, self._memory.stats)
        sums = {one.name: sum(getattr(stats, one.name) for stats in both) for one in fields(CacheStats)}
        return CacheStats(**(sums | {"limit_bytes": self.limit_bytes}))

    def entries(self) -> list[CacheEntry]:
        """Return the whole entries of both tiers, in no particular order."""
        return self._disk.entries() + self._memory.entries()

    def holds(self, ref: ObjectRef) -> bool:
        """Whether a tier holds the whole object."""
        return self._memory.holds(ref) or self._disk.holds(ref)

    def knows(self, ref: ObjectRef) -> bool:
        """Whether a tier holds the object or is filling it."""
        return self._memory.knows(ref) or self._disk.knows(ref)

    def has_room(self, ref: ObjectRef) -> bool:
        """Whether a missing object could enter a tier now without evicting an entry that is needed sooner."""
        in_memory = not self._standby and self._memory.has_room(ref)
        return in_memory or (self._watch.may_fill() and self._disk.has_room(ref))

    def _use(self) -> DiskUse:
        return DiskUse(read=self._watch.may_read(), fill=self._watch.may_fill())

    async def _from_disk(
        self, who: object, routes: Routes
    ) -> tuple[PinnedShards | None, CacheUnavailable | None, Routes]:
        """Pin the objects on disk; objects that the disk refuses go to memory."""
        failure: CacheUnavailable | None = None
        while routes.disk:
            filling = not all(map(self._disk.knows, routes.disk))
            try:
                async with self._watch.operation():
                    pins = await self._disk.acquire(routes.disk)
            except CacheUnavailable as error:
                failure, self._refused = error, True
                self._watch.failed(error)
                whole = [ref for ref in routes.disk if self._disk.knows(ref)] if self._watch.may_read() else []
                kept = whole if len(whole) < len(routes.disk) else []  # each round asks the disk for less
                routes = self._placement.past_disk(who, kept)
            else:
                if filling:
                    self._refused = False
                    self._watch.filled()
                return pins, failure, routes
        return None, failure, routes

    async def _from_memory(self, routes: Routes, failure: CacheUnavailable | None) -> PinnedShards | None:
        if not routes.memory:
            return None
        try:
            pins = await self._memory.acquire(routes.memory)
        except CacheTooSmall as error:
            if not routes.bypassed_count:
                raise
            raise failure or CacheUnavailable(
                f"the disk is {self._watch.state.value}, and memory cannot hold the objects",
                object=error.object,
                hint=f"repair it, or go on without it: {error.hint}",
                stage="cache",
            ) from error
        if routes.bypassed_count:
            self._recorder.count(CACHE_BYPASSED, routes.bypassed_count)
        if self._standby:
            self._pinned_in_memory.update(routes.memory)
        return pins

    def _release(self, parts: Iterable[PinnedShards], routes: Routes) -> None:
        for part in parts:
            part.release()
        if self._standby:
            self._pinned_in_memory.subtract(routes.memory)
            self._pinned_in_memory = +self._pinned_in_memory
            self._spilled.update(routes.memory)

    async def _give_memory_back(self) -> None:
        """Drop objects from memory that the disk can take again, once they are no longer pinned."""
        if self._spilled and not self._refused and self._watch.may_fill():
            done = {ref for ref in self._spilled if not self._pinned_in_memory[ref]}
            self._spilled -= done
            for ref in done:
                await self._memory.discard(ref)


def _running(tier: Tier, wishes: Iterable[ObjectRef]) -> list[ObjectRef]:
    """Return a wish that starts nothing and cancels nothing; an empty list would cancel running fills."""
    return [ref for ref in wishes if tier.knows(ref)][:1]


AnyCache: TypeAlias = "DiskCache | TieredCache"  # the caches that a node owns
