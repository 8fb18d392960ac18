"""Converts objects that cannot be read in place: fetches them, lets a worker convert them, stores the shard."""

from __future__ import annotations

import asyncio
import bisect
import math
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from feedd.errors import BadShard, CacheUnavailable, FeeddError, ResourceExhausted, StoreUnavailable
from feedd.fetch.packs import InflightPacks
from feedd.flow.budget import ByteBudget
from feedd.flow.lru import WeightedLru
from feedd.flow.memory import available_bytes
from feedd.flow.pools import CACHE_DISK
from feedd.flow.range_sinks import FileSink
from feedd.flow.tasks import run_all, within
from feedd.metrics import PIPELINE_MADE, PIPELINE_MADE_BYTES, PIPELINE_MADE_SECONDS, PIPELINE_MAKING
from feedd.tables import registry
from feedd.tables.columns import TYPES
from feedd.tables.facts import ConversionFact
from feedd.tables.files import MappedObject
from feedd.tables.objects import (
    CHARGE_BYTES_MAX,
    FetchedRanges,
    MemoryFile,
    ObjectRanges,
    charge_bytes,
    copy_into,
    joined,
    note_all_written,
)
from feedd.tables.registry import requests_max
from feedd.tables.task import ConvertedShard, MakeTask, TablePlan
from feedd.units import MIB, format_duration, format_size
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from feedd.protocols import FetchWatch, Recorder, SpanFetcher
    from feedd.range_sink import RangeSink
    from feedd.shard_index import ShardIndex
    from feedd.tables.facts import ConversionLog
    from feedd.tables.task import MissingRanges
    from feedd.values import ObjectRef

    Make = Callable[[MakeTask], Awaitable[ConvertedShard | MissingRanges]]


_RESERVE_BYTES: Final = 256 * MIB  # memory that conversions leave to other parts
_MISJUDGED_MAX: Final = 1024  # objects whose footer told a wrong size
_INDEXES_BYTES: Final = 8 << 20  # the indexes of some thousand conversions
_TABLE: Final = "table"
_INDEX_BYTES, _FIELD_BYTES = 1 << 10, 1 << 8  # what a regular index takes, and each of its fields


def formed(refs: Sequence[ObjectRef], named: Mapping[int, str] | None = None) -> tuple[ObjectRef, ...]:
    """Return listed objects as shards: objects that cannot be read in place get their conversion.

    Args:
        refs: objects as listed.
        named: format names given in URLs, by index of the object.
    """
    names = named or {}
    found = (registry.conversion_of(names.get(at, ""), ref.key) for at, ref in enumerate(refs))
    return tuple(
        ref if conversion is None else replace(ref, conversion=conversion)
        for ref, conversion in zip(refs, found, strict=True)
    )


class Converter:
    """A ``ShardFetcher`` that converts refs with a conversion, and fetches all others.

    A shard of unknown size is first converted into memory (``bring``), and copied from there when it is fetched. A
    shard of known size is written directly to its target. If a footer tells the layout of a table, ``bring`` only
    fetches the footer. The table is then written some row groups at a time, and read meanwhile.

    Args:
        fetcher: fetches objects.
        make: has a worker convert an object.
        facts: known results of earlier conversions.
        recorder: counts conversions.
        inflight: told about tables that can be read while they grow.
        limit_bytes: maximum size of one converted shard.
        makings: maximum number of workers that convert at one time; outlines do not count. So many large objects may be
            in memory, or more small ones (see ``charge_bytes``), because small ones mostly wait for the store.
        deadline_s: maximum seconds of one conversion, waiting and fetching included.
        available: returns the bytes of memory that can still be taken; None: unknown.

    Attributes:
        make: as given.
        expect: called with a converter's name before an object is fetched for it.
        facts: as given.
        indexes: indexes that the latest conversions told.
        fresh: shards that are not in the cache yet.
        ranges: fetches objects, or copies them from the cache.
        is_needed_now: whether a caller waits for the shard of a listed object now.
        misjudged_count: how often values were missing although a footer said otherwise. The table then gets another
            layout, and indexes that were taken before no longer hold.
    """

    def __init__(
        self,
        fetcher: SpanFetcher,
        make: Make,
        facts: ConversionLog,
        recorder: Recorder,
        inflight: InflightPacks | None = None,
        *,
        limit_bytes: int,
        makings: int = 2,
        deadline_s: float = 1800.0,
        available: Callable[[], int | None] = available_bytes,
    ) -> None:
        self.make, self.facts = make, facts
        self.expect: Callable[[str], None] = lambda _: None
        self.indexes: WeightedLru[ObjectRef, ShardIndex] = WeightedLru(_INDEXES_BYTES)
        self.fresh = FreshShards(recorder)
        self.ranges = ObjectRanges(fetcher)
        self.is_needed_now: Callable[[ObjectRef], bool] = lambda _: False
        self.misjudged_count = 0
        self._fetcher, self._recorder = fetcher, recorder
        self._inflight = InflightPacks() if inflight is None else inflight
        self._limit_bytes, self._makings = min(limit_bytes, 1 << 62), makings
        self._deadline_s, self._available = deadline_s, available
        self._memory = ByteBudget(makings * CHARGE_BYTES_MAX)
        self._semaphore = asyncio.Semaphore(makings)
        self._outline_semaphore = asyncio.Semaphore(1)
        self._running_count = 0
        self._misjudged: WeightedLru[ObjectRef, ObjectRef] = WeightedLru(_MISJUDGED_MAX)

    def __repr__(self) -> str:
        return f"Converter({self._fetcher!r})"

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        """Fill ``sink``; see ``ShardFetcher.fetch``.

        Raises, in addition:
            BadShard, Unsupported: the object cannot be converted.
            CacheUnavailable: the shard now has another size than before; a retry converts it again.
            StoreUnavailable: the conversion took longer than its deadline.
        """
        if ref.conversion is None:
            await self._fetcher.fetch(ref, sink, watch)
            return
        fresh = self.fresh.take(ref)
        try:
            held = None if fresh is None else fresh.file
            if isinstance(held, MemoryFile):
                await copy_into(sink, held.fd)
            else:
                async with self._in_time(ref):
                    await self._make_into(ref, sink, _whenever if watch is None else watch.urgency, held)
        finally:
            if fresh is not None:
                self.fresh.free(fresh)
        if watch is not None:
            watch.arrived(ByteRange(0, ref.size_bytes), sink)

    async def bring(self, ref: ObjectRef, urgency: Callable[[], float]) -> ObjectRef:
        """Learn the size of a listed object's shard, if need be by converting it in memory; return the shard's ref.

        Raises:
            BadShard, Unsupported: the object cannot be converted.
            ResourceExhausted: not enough memory.
            StoreUnavailable: the conversion took longer than its deadline.
            FeeddError: any error of the fetcher.
        """
        async with self._in_time(ref):
            return await self._bring(ref, urgency)

    def _in_time(self, ref: ObjectRef) -> AbstractAsyncContextManager[object]:
        """Return a context manager that ends a conversion at its deadline."""
        message = f"expected a conversion to end within {format_duration(self._deadline_s)}, got no result"
        return within(self._deadline_s, lambda: StoreUnavailable(message, object=ref.url, stage="cache"))

    async def _bring(self, ref: ObjectRef, urgency: Callable[[], float]) -> ObjectRef:
        async with self._admitted(ref):
            file, source = MemoryFile("feedd-made"), FetchedRanges(ref.size_bytes, self._recorder)
            try:
                self.fresh.make_room()
                task = self._task(ref, file.fd, 0, self._memory_left(ref.size_bytes, ref))
                outcome = await self._converted_or_planned(
                    ref, task, source, urgency, may_plan=self._misjudged.get(ref) is None
                )
            except BaseException:
                file.close()
                source.close()
                raise
            kept: MemoryFile | FetchedRanges
            if isinstance(outcome, ConvertedShard):
                fact, kept = ConversionFact(ref.size_bytes, outcome.size_bytes, outcome.format_name), file
                source.close()
            else:
                fact, kept = ConversionFact(ref.size_bytes, outcome.size_bytes, _TABLE), source
                file.close()
            shard = replace(ref, size_bytes=fact.size_bytes)
            self._keep_index(shard, outcome.index)
            self.fresh.put(shard, kept)
            if self.facts.note(ref, fact):
                await CACHE_DISK.run(self.facts.keep, ref, fact)
            return shard

    @asynccontextmanager
    async def _admitted(self, ref: ObjectRef) -> AsyncIterator[None]:
        """Wait until another conversion may run, and count it while it runs.

        Outlines wait for each other only: opens wait for them, and other conversions may be for later.
        """
        outline = registry.is_outline(ref.conversion)
        async with self._outline_semaphore if outline else self._memory.reserve(charge_bytes(ref)):
            self._running_count += 1
            try:
                yield
            finally:
                self._running_count -= 1

    async def _make_into(
        self, shard: ObjectRef, sink: RangeSink, urgency: Callable[[], float], fetched: FetchedRanges | None
    ) -> None:
        """Convert a shard of known size directly into its sink.

        Args:
            shard: the shard.
            sink: as long as the shard.
            urgency: see ``FetchWatch``.
            fetched: what the conversion needs, which stays the caller's; None: it must be fetched.
        """
        fact = self.facts.origin(shard)
        if fact is None:
            raise _unknown(shard, "an object that was never converted")
        ref = replace(shard, size_bytes=fact.object_bytes)
        async with self._admitted(ref):
            memory_bytes = self._memory_left(ref.size_bytes, ref)
            source = fetched or FetchedRanges(ref.size_bytes, self._recorder)
            try:
                if isinstance(sink, FileSink):
                    task = self._task(ref, sink.file.fd, sink.offset, memory_bytes, shard.size_bytes)
                    size_bytes = await self._filled(ref, shard, sink, task, source, urgency)
                    if size_bytes == shard.size_bytes:
                        await note_all_written(sink)
                else:
                    with MemoryFile("feedd-made") as file:
                        made = await self._again(ref, self._task(ref, file.fd, 0, memory_bytes), source, urgency)
                        size_bytes = made.size_bytes
                        if size_bytes == shard.size_bytes:
                            await copy_into(sink, file.fd)
                            self._keep_index(shard, made.index)
            finally:
                if fetched is None:
                    source.close()
        if size_bytes != shard.size_bytes:
            self.facts.forget(ref)
            self.indexes.pop(shard)
            self._misjudged.put(ref, ref, 1)
            self.misjudged_count += 1
            raise _unknown(shard, f"{size_bytes}")

    async def _filled(
        self,
        ref: ObjectRef,
        shard: ObjectRef,
        sink: FileSink,
        task: MakeTask,
        source: FetchedRanges,
        urgency: Callable[[], float],
    ) -> int:
        """Convert a shard into its entry, by row groups if its object tells the layout; return the shard's size."""
        may_plan = self._misjudged.get(ref) is None
        outcome: ConvertedShard | TablePlan | None = source.plan if may_plan else None
        if outcome is None:
            outcome = await self._again(ref, task, source, urgency, may_plan=may_plan)
        if isinstance(outcome, TablePlan) and outcome.size_bytes != shard.size_bytes:
            outcome = await self._again(ref, task, source, urgency)  # values were missing when it was converted before
        self._keep_index(shard, outcome.index)
        if isinstance(outcome, ConvertedShard):
            return outcome.size_bytes
        growing = GrowingTable(ref, shard, sink, outcome, hurried=self.is_needed_now(ref))
        readable = outcome.index is not None
        fits = await self._fill(growing, task, source, urgency, readable=readable)
        return outcome.size_bytes if fits else -1

    def _keep_index(self, shard: ObjectRef, index: ShardIndex | None) -> None:
        if index is not None:
            self.indexes.put(shard, index, _INDEX_BYTES + _FIELD_BYTES * len(index.fields))

    async def _again(
        self,
        ref: ObjectRef,
        task: MakeTask,
        source: FetchedRanges,
        urgency: Callable[[], float],
        *,
        may_plan: bool = False,
    ) -> ConvertedShard | TablePlan:
        try:
            return await self._converted_or_planned(ref, task, source, urgency, may_plan=may_plan)
        except BadShard:
            self.facts.forget(ref)  # the shard may only have grown: a new conversion learns its size
            raise

    def _task(self, ref: ObjectRef, out_fd: int, out_at: int, memory_bytes: int, entry_bytes: int = -1) -> MakeTask:
        sizes = self._limit_bytes, memory_bytes, entry_bytes
        assert ref.conversion is not None
        return MakeTask(ref.conversion, ref.url, ref.size_bytes, (), -1, out_fd, out_at, *sizes)

    def _memory_left(self, object_bytes: int, ref: ObjectRef) -> int:
        """Return the memory available for a shard in addition to its object, for each worker that may convert."""
        running_count = min(max(1, self._running_count), self._makings)
        while True:
            left = self._available()
            if left is None:
                return 1 << 62
            memory_bytes = (left - _RESERVE_BYTES) // running_count - object_bytes
            if memory_bytes > 0 or not self.fresh:
                break
            self.fresh.drop_oldest()
        if memory_bytes <= 0:
            raise ResourceExhausted(
                f"expected memory for an object of {format_size(object_bytes)} and its converted shard, got "
                f"{format_size(max(left, 0))} left",
                object=ref.url,
                hint="give the daemon more memory, or store smaller shards",
                stage="cache",
            )
        return memory_bytes

    async def _converted_or_planned(
        self, ref: ObjectRef, task: MakeTask, source: FetchedRanges, urgency: Callable[[], float], *, may_plan: bool
    ) -> ConvertedShard | TablePlan:
        """Fetch the ranges that the conversion needs, until a worker has made the shard, or knows its layout.

        Args:
            ref: the object.
            task: the conversion.
            source: ranges that are there; gets the others.
            urgency: see ``FetchWatch``.
            may_plan: if the object tells the layout of the shard, return that, and fetch no values.
        """
        plain, conversion = replace(ref, conversion=None), task.conversion
        self.expect(conversion.name)
        rounds = requests_max(conversion.name)
        try:
            wanted = () if source.spans else registry.first_ranges(conversion, MappedObject(-1, ref.size_bytes))
            for _ in range(rounds):
                await self.ranges.fetch(plain, wanted, source, urgency, again=conversion.params == TYPES)
                outcome = await self._ask_worker(replace(task, spans=source.spans, source_fd=source.file.fd))
                if isinstance(outcome, ConvertedShard):
                    self._count(conversion.name, outcome)
                    return outcome
                if may_plan and outcome.plan is not None and outcome.plan.size_bytes <= self._limit_bytes:
                    source.plan = outcome.plan
                    return outcome.plan
                wanted = outcome.ranges
        except FeeddError as error:
            error.object = error.object or ref.url
            raise
        message = f"expected to convert the object, got {rounds} requests for more of its ranges"
        raise BadShard(message, object=ref.url, stage="decode")

    async def _fill(
        self,
        growing: GrowingTable,
        task: MakeTask,
        source: FetchedRanges,
        urgency: Callable[[], float],
        *,
        readable: bool,
    ) -> bool:
        """Convert a table into its entry, some row groups at a time; return False if the object contradicts its footer.

        Args:
            growing: the table.
            task: the conversion.
            source: has the footer; gets the other ranges.
            urgency: see ``FetchWatch``.
            readable: whether the index of the table is known, so that rows can be read while others are converted.
        """
        footer, plain = source.spans, replace(growing.ref, conversion=None)
        busy_s = 0.0
        fits = True

        async def convert_parts() -> None:
            nonlocal busy_s, fits
            while fits and (part := growing.begin()) is not None:
                ranges = growing.ranges_in(part)
                await self.ranges.fetch(plain, ranges, source, urgency, again=False)
                spans = joined((*footer, *ranges))
                groups = growing.groups_in(part)
                made = await self._ask_worker(replace(task, spans=spans, source_fd=source.file.fd, groups=groups))
                assert isinstance(made, ConvertedShard), "all ranges are there"
                fits = fits and made.size_bytes == growing.shard.size_bytes
                if fits:
                    busy_s += made.busy_s
                    growing.finish(part)
                    self._inflight.progressed(growing)

        whole = False
        if readable:
            self._inflight.began(growing)
        try:
            await run_all(convert_parts() for _ in range(_PARTS_AT_ONCE))
            whole = fits
        except FeeddError as error:
            error.object = error.object or growing.ref.url
            raise
        finally:
            self._inflight.ended(growing, whole=whole)
        if fits:
            self._count(task.conversion.name, ConvertedShard(growing.shard.size_bytes, _TABLE, busy_s))
        return fits

    async def _ask_worker(self, task: MakeTask) -> ConvertedShard | MissingRanges:
        """Let a worker convert an object. If images kill it, retry without decoding them: they are then bad samples."""
        async with nullcontext() if registry.is_outline(task.conversion) else self._semaphore:
            try:
                return await self.make(task)
            except BadShard:
                conversion = registry.undecoded(task.conversion)
                if conversion == task.conversion:
                    raise
            return await self.make(replace(task, conversion=conversion))

    def _count(self, converter: str, made: ConvertedShard) -> None:
        self._recorder.count(PIPELINE_MADE, conversion=converter)
        self._recorder.count(PIPELINE_MADE_BYTES, made.size_bytes, conversion=converter)
        self._recorder.count(PIPELINE_MADE_SECONDS, made.busy_s, conversion=converter)


_COUNT_MAX: Final = 8  # or more, as long as all together are small
SMALL_BYTES: Final = 64 * MIB
"""Bytes of all shards together, below which more of them may be in memory."""


def _unknown(shard: ObjectRef, got: str) -> CacheUnavailable:
    message = f"expected a converted shard of {shard.size_bytes} bytes as before, got {got}"
    return CacheUnavailable(message, object=shard.url, stage="cache")


def _whenever() -> float:
    return math.inf


_PARTS_AT_ONCE: Final = 3  # of a table: one is fetched while others are converted


@dataclass(slots=True)
class FreshShard:
    """One shard.

    Attributes:
        file: the shard, or ranges of its object.
        size_bytes: size of the shard.
    """

    file: MemoryFile | FetchedRanges
    size_bytes: int


class FreshShards:
    """The shards in memory, the oldest first. They own their memory.

    Args:
        recorder: measures the memory.

    Attributes:
        on_free: called when the memory of a shard is free.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self._recorder = recorder
        self._shards: dict[ObjectRef, FreshShard] = {}

    def __len__(self) -> int:
        return len(self._shards)

    def __contains__(self, shard: ObjectRef) -> bool:
        return shard in self._shards

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards together."""
        return sum(fresh.size_bytes for fresh in self._shards.values())

    def put(self, shard: ObjectRef, file: MemoryFile | FetchedRanges) -> None:
        """Keep a shard, and own ``file``; an earlier one of the same name is freed."""
        self.drop(shard)
        if isinstance(file, MemoryFile):
            self._recorder.move(PIPELINE_MAKING, shard.size_bytes)
        self._shards[shard] = FreshShard(file, shard.size_bytes)

    def take(self, shard: ObjectRef) -> FreshShard | None:
        """Return a shard, which the caller frees; None: it is not in memory."""
        return self._shards.pop(shard, None)

    def free(self, fresh: FreshShard) -> None:
        """Free the memory of a shard that was taken."""
        if isinstance(fresh.file, MemoryFile):
            self._recorder.move(PIPELINE_MAKING, -fresh.size_bytes)
        fresh.file.close()
        self.on_free()

    def drop(self, shard: ObjectRef) -> None:
        """Free the memory of a shard, if it is in memory."""
        fresh = self.take(shard)
        if fresh is not None:
            self.free(fresh)

    def drop_oldest(self) -> None:
        """Free the memory of the shard that has been in memory for longest."""
        self.drop(next(iter(self._shards)))

    def make_room(self) -> None:
        """Drop the oldest shards until another one may come."""
        while len(self) >= _COUNT_MAX and self.size_bytes >= SMALL_BYTES:
            self.drop_oldest()

    def keep_only(self, wanted: Callable[[ObjectRef], bool]) -> None:
        """Free the memory of shards that are not wanted any more."""
        for shard in [one for one in self._shards if not wanted(one)]:
            self.drop(shard)


_PART_BYTES_MAX: Final = 16 << 20  # fetched for one part: enough for the rate, and little of the memory


class GrowingTable:
    """A table being converted: an ``InflightPack`` whose objects are rows. Used on one event loop; bookkeeping only.

    A reader awaits the first and the last row that it needs, and gets all rows between them.

    Args:
        ref: the object, as listed.
        shard: the table.
        sink: the table's place in a file.
        plan: the row groups.
        hurried: whether a reader waits now. Then the first part is one item of ``plan.groups``, and each later part is
            twice as large, because small parts take more CPU time.

    Attributes:
        ref: as given.
        shard: as given.
        file_sink: as given.
    """

    def __init__(self, ref: ObjectRef, shard: ObjectRef, sink: FileSink, plan: TablePlan, *, hurried: bool) -> None:
        self.ref, self.shard, self.file_sink = ref, shard, sink
        self._groups = plan.groups
        self._row_ends = [one.row_end for one in plan.groups]
        self._left = set(range(len(plan.groups)))  # not begun
        self._undone = set(self._left)
        self._needed: dict[int, range] = {}  # in ``plan.groups``, by ticket
        self._count_max = 1 if hurried else len(plan.groups)

    def missing(self, objects: set[int]) -> set[int]:
        """Return ``objects`` unless all rows from the first to the last one are there."""
        return set() if self._undone.isdisjoint(self._items_with(objects)) else objects

    def whole(self, objects: set[int]) -> bool:
        """Whether all rows from the first to the last one are there."""
        return not self.missing(objects)

    def expedite(self, ticket: int, objects: set[int]) -> None:
        """Convert these rows before others."""
        self._needed[ticket] = self._items_with(objects)

    def begin(self) -> range | None:
        """Return the next part to convert, as indices in ``plan.groups``; None: all have begun."""
        if not self._left:
            return None
        needed = (index for _, indices in sorted(self._needed.items()) for index in indices if index in self._left)
        start = end = next(needed, min(self._left))
        size_bytes = 0
        while end in self._left and end - start < self._count_max:
            size_bytes += sum(span.size_bytes for span in self._groups[end].ranges)
            if end > start and size_bytes > _PART_BYTES_MAX:
                break
            end += 1
        self._count_max *= 2
        part = range(start, end)
        self._left.difference_update(part)
        return part

    def finish(self, part: range) -> None:
        """Record that a part is there."""
        self._undone.difference_update(part)

    def groups_in(self, part: range) -> range:
        """Return the numbers of the row groups of a part."""
        start = self._groups[part.start - 1].group_end if part.start else 0
        return range(start, self._groups[part.stop - 1].group_end)

    def ranges_in(self, part: range) -> tuple[ByteRange, ...]:
        """Return the ranges of the object that a part is converted from."""
        return tuple(span for one in self._groups[part.start : part.stop] for span in one.ranges)

    def _items_with(self, rows: set[int]) -> range:
        if not rows:
            return range(0)
        first, last = (bisect.bisect_right(self._row_ends, row) for row in (min(rows), max(rows)))
        return range(first, last + 1)
