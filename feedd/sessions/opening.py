"""Opens sessions: resolves dataset, recipe and assignment, reads the first shard and allocates the arena."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from feedd.batching.assembler import KEY_SPECS, Assembler, AssemblerOptions
from feedd.batching.bad_samples import BadSampleOptions
from feedd.batching.batch_recipes import estimated_bytes, resolve
from feedd.batching.plain_batches import are_plain
from feedd.batching.recent_bad_samples import RecentBadSamples
from feedd.batching.slot_layout import aligned
from feedd.catalog.dataset_catalog import DatasetCatalog
from feedd.catalog.index_prefetcher import IndexPrefetcher
from feedd.catalog.label_fields import Labelling, forget, with_tables
from feedd.catalog.late_fields import LateFields
from feedd.catalog.learned_counts import Learned
from feedd.catalog.object_grouper import object_bytes
from feedd.catalog.open_request import Request, shortened
from feedd.catalog.wanted_columns import narrowed
from feedd.dataset.passed_over import amount_of
from feedd.dataset.step_counts import Uneven
from feedd.errors import CacheTooSmall, NotFound, ObjectChanged, Unsupported
from feedd.flow.arena import Arena
from feedd.flow.memory import ArenaBudget
from feedd.flow.open_progress import enter_stage
from feedd.flow.pools import CPU, LOCAL_FILES
from feedd.flow.tasks import both
from feedd.notices import NoticeKind, notices_of, summed
from feedd.ordering.sorted_windows import SortedWindows
from feedd.recipe.bad_sample_policy import BadSamples
from feedd.sessions.column_types import typed
from feedd.sessions.decoded_cache import DecodedRoom, with_predecoded
from feedd.sessions.group_members import SharedCopies, SharedLeases
from feedd.sessions.job_sharing import LEASES_MOST, SharedBatches, Sharing, slots_to_lease
from feedd.sessions.next_epoch_prefetch import NextEpochPrefetch
from feedd.sessions.notice_log import NoticeLog
from feedd.sessions.own_batches import BatchDecoder, Batches, OwnBatches
from feedd.sessions.prefetch_driver import PrefetchDriver, ReaderGroups
from feedd.sessions.rank_plan import planned, windows_of
from feedd.sessions.session import Session, SessionParts, session_of
from feedd.sessions.shared_batches import WINDOW_BATCHES
from feedd.sessions.slot_counts import fixed_bytes, may_differ, run_and_slots, slots_for, within
from feedd.units import format_size
from feedd.values import Cursor, SessionInfo

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    from feedd.batching.batch_recipes import Recipes, Resolved
    from feedd.batching.quarantine import Quarantine
    from feedd.catalog.label_fields import Tables
    from feedd.catalog.stages import PipelineOptions, Stages
    from feedd.dataset.listing import DatasetView, Listing
    from feedd.open_spec import DataSpec, OpenSpec
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.ordering.sorted_windows import Orders
    from feedd.sessions.group_members import GroupMember
    from feedd.sessions.rank_plan import Planned
    from feedd.tables.cache import ConvertingCache
    from feedd.values import TensorSpec

    Classes = Mapping[str, tuple[str, ...]]

_WINDOWS_BYTES = 128 << 20


class Pipeline:
    """Implements ``FeedBackend``: opens sessions on top of the stages.

    Attributes:
        windows: the sorted windows of all plans that sessions read.
        bad_samples: the latest samples that could not be decoded.
    """

    def __init__(
        self,
        stages: Stages,
        options: PipelineOptions,
        group: asyncio.TaskGroup,
        learned: Learned | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.stages = stages
        self.catalog = DatasetCatalog(stages, group, learned or Learned(), options.span_bytes)
        self._options = options
        self._quarantine = quarantine
        self.bad_samples = RecentBadSamples(stages.clock)
        self._budget = ArenaBudget(options.arena_bytes, stages.recorder, per_owner_bytes=options.arena_per_owner_bytes)
        self.windows = SortedWindows(_WINDOWS_BYTES)
        self._reader_groups = ReaderGroups(options.readahead_bytes)
        self._labelling = Labelling(stages.sources)
        self._sharing = Sharing()
        self._notice_log = NoticeLog(stages.recorder)
        self._group = group
        self._numbers = itertools.count(1)

    @property
    def cache(self) -> ConvertingCache:
        """The cache, for commands that list its entries."""
        return self.stages.cache

    async def open(self, spec: OpenSpec) -> Session:
        """Open a session; this takes about as long as one listing and one shard of each source.

        Raises:
            BadRequest: the recipe, sharding, weights or numbers are invalid or unsupported.
            NotFound, PermissionDenied, StoreUnavailable: raised by the store.
            BadShard: the first shard does not have the format that its name states.
            ResourceExhausted: there is no memory for the arena.
        """
        if any(url.startswith("channel://") for url in spec.data.urls):
            from feedd.catalog.channel_urls import with_channel  # noqa: PLC0415 - only jobs of SageMaker have channels

            spec = await LOCAL_FILES.run(with_channel, spec, self._options.channel_root)
        access = self._options.access_rules.of(spec.owner)
        request = await CPU.run(Request.of, spec, self._options.window_shards, access)  # weights are many fractions
        self.stages.pool.prepare(itertools.chain.from_iterable(request.wanted))
        if request.policy is BadSamples.QUARANTINE and self._quarantine is None:
            raise Unsupported("this daemon has no quarantine file configured", object="bad_samples")
        enter_stage(f"listing {shortened(spec.data.urls)}")
        with self.stages.sources.listing(), self.catalog.started(request.sources, access, request.cuts):
            request = await with_tables(self.stages.sources, request)
            listing, tables = await both(self._listing(request), self._labelling.tables(request))
        try:
            return await self._listed(request, listing, tables)
        finally:
            await forget(tables)

    async def _listing(self, request: Request) -> Listing:
        """Return the listing of a request; of a run that goes on, the one that it began with, if it is held."""
        expected = request.spec.session.expect_fingerprint
        known = (lambda held: request.fingerprint(held) == expected) if expected else None
        return await self.catalog.mixed(request.sources, known, request.access, request.cuts)

    async def _listed(self, request: Request, listing: Listing, tables: Tables) -> Session:
        """Open a session on a listing."""
        spec, expected = request.spec, request.spec.session.expect_fingerprint
        await CPU.run(refuse_too_large, listing, self.stages.cache.limit_bytes)
        mark = await CPU.run(request.fingerprint, listing)  # on a thread: the fingerprint covers a format per shard
        if expected and mark != expected:
            raise ObjectChanged(
                f"expected the dataset with fingerprint {expected.hex()}, got {mark.hex()}",
                object=" ".join(spec.data.urls),
                hint="objects, recipe, topology or fetch.span_size changed since this run began: start the run anew",
                stage="plan",
            )
        enter_stage(f"reading the first shards of {shortened(spec.data.urls)}")
        await self.stages.lost.renew(listing.packs, self.stages.sources, self.stages.cache)
        try:
            view = await CPU.run(narrowed, listing.as_listed, request.read)  # microseconds per shard
            view = view if view is listing.as_listed else await typed(self.stages.cache, view, request.read)
            room = DecodedRoom(self.stages.cache.limit_bytes, self._options.ready_bytes)
            view = await CPU.run(with_predecoded, view, request, room)  # some ten microseconds per shard
            return await self._open(request, view, mark, tables)
        except (ObjectChanged, NotFound):
            self.catalog.forget(listing)  # the listing is out of date, so the next open lists again
            raise

    async def _open(self, request: Request, view: DatasetView, mark: bytes, tables: Tables) -> Session:
        async with AsyncExitStack() as undo:
            orders = windows_of(self.windows, view, request)
            leave_windows = (lambda: None) if orders is None else partial(self.windows.leave, orders)
            undo.callback(leave_windows)  # a mixture sorts its own windows and shares none
            plan, reader = await CPU.run(_with_reader, view, request, orders)  # takes microseconds per shard
            one = _Opening(next(self._numbers), request, view, mark, tables, plan, reader, undo)
            cache = self.stages.cache
            index_prefetcher = IndexPrefetcher(self.catalog.readings, view, cache)
            prefetch_driver = PrefetchDriver(
                f"session-{one.number}", view, one.reader, cache, self._reader_groups, index_prefetcher
            )
            undo.push_async_callback(prefetch_driver.ended)
            undo.callback(prefetch_driver.close)
            prefetch_driver.begin(Cursor(request.spec.session.epoch))
            memory, batches, classes = await self._batches(one)
            tell_late = partial(self._notice_log.log_more, request.spec.data.urls, NoticeKind.LATE_FIELDS)
            late = LateFields(view, [source.fields for source in memory.found], tell_late)
            left_out = [source.left_out for source in memory.found]
            reasons = summed([view.listing.passed_over.reasons, *left_out, {NoticeKind.LATE_FIELDS: late.amount}])
            notices = notices_of(reasons)
            self._notice_log.note(request.spec.data.urls, notices)
            info = replace(
                one.info(memory.recipes),
                notices=notices,
                run_batches=batches.run_batches,
                batch_bytes=batches.batch_bytes,
                shared_slot_count=batches.shared_slot_count,
                classes=classes,
            )
            parts = SessionParts(
                info,
                self.catalog,
                view,
                one.reader,
                prefetch_driver,
                batches,
                leave_windows=leave_windows,
                late=late,
                stride=request.spec.session.consumer_count,
            )
            undo.pop_all()
        return session_of(parts, self.stages, request.spec.order.topology.rank)

    async def _batches(self, one: _Opening) -> tuple[_Memory, Batches, Classes]:
        """Resolve the recipes; return the memory for their batches, their maker, and the class names of labels."""
        spec, asked = one.request.spec, one.request.spec.session
        size = fixed_bytes(one.request) if one.reader.assigned.size else 1
        arena: Arena | None = None
        more = size is not None and may_differ(asked, size)  # the slots then depend on the recipes
        if size is not None and not asked.shared_arena and not more:  # allocation takes long: both at once
            (recipes, found, classes), arena = await both(self._resolved(one), self._arena(one, size))
        else:
            recipes, found, classes = await self._resolved(one)
            size = size or estimated_bytes(_specs(spec.data, recipes), spec.order.batch_size, found)
        memory = _Memory(self, size, one.request, recipes, found)
        if asked.share and asked.shared_arena and (leases := await self._leases(one, memory)) is not None:
            return memory, leases, classes
        run_batches = 1
        if arena is None:
            slots, plain = 0, not (spec.data.keys or asked.share or one.request.filters) and are_plain(recipes)
            if plain:
                join = one.plan.uneven is Uneven.JOIN
                run_batches, slots = run_and_slots(asked, size, self._options.slots_max, join=join)
            arena = await self._arena(one, size, run_batches=run_batches, slots=slots)
        if asked.share:
            return memory, await self._copies(one, memory, arena), classes
        options = replace(self._assembling(one.number, one.request), run_batches=run_batches)
        assembler = Assembler(self.stages, recipes, arena, options)
        return memory, self._own(one, arena, assembler), classes

    async def _resolved(self, one: _Opening) -> tuple[Recipes, list[Resolved], Classes]:
        """Label the samples, then resolve the recipes, because recipes may name labels."""
        classes = await self._labelling.label(one.view.listing, one.request, one.tables)
        return *await resolve(self.stages, self.catalog, one.view, one.reader, one.request), classes

    async def _leases(self, one: _Opening, memory: _Memory) -> SharedLeases | None:
        """Join a group whose batches the session leases in place, or return None if the group has too few slots."""
        asked, key = one.request.spec.session, one.group_key
        count = asked.prefetch_batches or min(slots_for(memory.slot_bytes, asked.consumer_count), LEASES_MOST)
        leases = SharedLeases(within(count, self._options.slots_max))
        group = await self._sharing.join(key, leases, lambda: memory.for_leasing(leases.slot_count))
        if leases.admitted(group):
            self._enter(one, leases, group)
            return leases
        await self._sharing.leave(key, leases)
        return None

    async def _copies(self, one: _Opening, memory: _Memory, arena: Arena) -> SharedCopies:
        """Join a group whose batches the session copies into its own arena."""
        copies = SharedCopies(arena, partial(self.stages.pool.detach, one.number))
        self._enter(one, copies, await self._sharing.join(one.group_key, copies, memory.shared))
        return copies

    def _enter(self, one: _Opening, member: GroupMember, group: SharedBatches) -> None:
        leave = partial(self._sharing.leave, one.group_key)
        one.undo.push_async_callback(leave, member)
        member.enter(group, BatchDecoder(self.stages, self.catalog, one.view, group.assembler), leave)

    def _own(self, one: _Opening, arena: Arena, assembler: Assembler) -> OwnBatches:
        """Return the batches of a session that shares none; the next epoch's first batches use its free slots."""
        asked = one.request.spec.session
        decoder = BatchDecoder(self.stages, self.catalog, one.view, assembler)
        first, stride = asked.consumer_index, asked.consumer_count
        prefetch = NextEpochPrefetch(arena, decoder, one.plan.reader, self._group, first=first, stride=stride)
        return OwnBatches(arena, decoder, prefetch, stride)

    async def decoded(self, slot_count: int, slot_bytes: int, request: Request, recipes: Recipes) -> SharedBatches:
        """Return memory for the batches of a group, which are decoded once for all its sessions.

        Raises:
            ResourceExhausted: no memory is left.
        """
        number = next(self._numbers)
        arena = await Arena.create(slot_count, slot_bytes, self._budget.of(request.spec.owner))
        self.stages.pool.attach(number, arena.fd, arena.size_bytes, request.spec.owner)
        assembler = Assembler(self.stages, recipes, arena, self._assembling(number, request))
        return SharedBatches(arena, assembler, self.stages, self._group)

    async def close(self) -> None:
        """Cancel running listings and index reads."""
        await self.catalog.close()

    def _assembling(self, number: int, request: Request) -> AssemblerOptions:
        """Return the options of an assembler that fills an arena."""
        spec, policy = request.spec, request.policy
        handler = BadSampleOptions(policy, spec.data.bad_samples_max, self._quarantine, self.bad_samples, spec.owner)
        budget = self._budget.of(spec.owner)
        return AssemblerOptions(number, spec.data.keys, handler, budget, request.filters)

    async def _arena(self, one: _Opening, size_bytes: int, *, run_batches: int = 1, slots: int = 0) -> Arena:
        """Allocate the slots and attach them to the workers.

        Args:
            one: the session that gets the slots.
            size_bytes: size of a batch.
            run_batches: batches of each slot.
            slots: number of slots; 0: as the request says.
        """
        asked = one.request.spec.session
        count = slots or within(
            asked.prefetch_batches or slots_for(size_bytes, asked.consumer_count), self._options.slots_max
        )
        slot_bytes = aligned(size_bytes) * run_batches if run_batches > 1 else size_bytes
        arena = await Arena.create(count, slot_bytes, self._budget.of(one.request.spec.owner), gradual=not asked.share)
        one.undo.callback(arena.close)
        self.stages.pool.attach(one.number, arena.fd, arena.size_bytes, one.request.spec.owner)
        one.undo.callback(self.stages.pool.detach, one.number)
        return arena


def refuse_too_large(listing: Listing, limit_bytes: int) -> None:
    """Refuse a dataset with shards that can never be in the cache; spans of large objects are shards of their own.

    Raises:
        CacheTooSmall: shards are larger than the cache; all of them are counted, and the first are named.
    """
    numbers = np.flatnonzero(listing.sizes > limit_bytes).tolist() if limit_bytes else []
    lost = [ref for ref in map(listing.refs.__getitem__, numbers) if ref.conversion is None]  # others change their size
    if lost:
        message = f"expected shards of at most {format_size(limit_bytes)}, the cache's limit, got larger ones: "
        hint = "raise cache.size, or write smaller shards: only files of tokens and .npy files are read in spans"
        raise CacheTooSmall(message + amount_of(lost).text, object=lost[0].url, hint=hint, stage="cache")


@dataclass(frozen=True, slots=True)
class _Opening:
    """A session that is being opened.

    Attributes:
        number: number of the session and of its arena.
        request: the client's request.
        view: the dataset as the session reads it.
        mark: the fingerprint.
        tables: the label tables that have been read.
        plan: what the rank reads.
        reader: a reader that is in the session's epoch.
        undo: releases everything if the session does not open.
    """

    number: int
    request: Request
    view: DatasetView
    mark: bytes
    tables: Tables
    plan: Planned
    reader: AnyReader
    undo: AsyncExitStack

    @property
    def group_key(self) -> tuple[object, ...]:
        """The key that sessions with the same batches share."""
        spec, plan = self.request.spec, self.plan
        order, data = spec.order, spec.data
        key = (spec.owner, spec.session.share, order.batch_size, order.topology, data.keys)
        bad = data.bad_samples_max, data.bad_samples
        return (*key, *bad, self.mark, plan.uneven, plan.steps, data.decoded_cache)

    def info(self, recipes: Recipes) -> SessionInfo:
        """Return the answer to Open, as far as the plan and the recipes determine it."""
        spec, reader, view = self.request.spec, self.reader, self.view
        sizes = view.listing.sizes[reader.assigned]
        return SessionInfo(
            specs=_specs(spec.data, recipes),
            fingerprint=self.mark,
            shard_count=len(view.refs),
            assigned_shard_count=int(reader.assigned.shape[0]),
            assigned_bytes=int(sizes.sum()),
            largest_shard_bytes=int(sizes.max(initial=0)),
            object_bytes=object_bytes(view.listing.sizes, view.listing.packs),
            steps=reader.steps(spec.session.epoch),
            uneven=self.plan.uneven.value,
            left_out=0 if spec.session.consumer_index else reader.left_out(),
        )


@dataclass(frozen=True, slots=True)
class _Memory:
    """Allocates memory for batches like the batches of one session."""

    pipeline: Pipeline
    slot_bytes: int
    request: Request
    recipes: Recipes
    found: Sequence[Resolved]

    async def shared(self, slot_count: int = WINDOW_BATCHES) -> SharedBatches:
        """Allocate memory for jobs that share batches as copies."""
        return await self.pipeline.decoded(slot_count, self.slot_bytes, self.request, self.recipes)

    async def for_leasing(self, lease_count: int) -> SharedBatches:
        """Allocate memory for jobs that share batches as leases, ``lease_count`` each."""
        return await self.shared(slots_to_lease(lease_count, self.slot_bytes))


def _with_reader(view: DatasetView, request: Request, orders: Orders | None) -> tuple[Planned, AnyReader]:
    """Return the plan, and a reader that is in the session's epoch."""
    plan = planned(view, request, orders)
    reader = plan.reader()
    if reader.assigned.size:
        reader.access_at(view, Cursor(request.spec.session.epoch)).prepare()
    return plan, reader


def _specs(data: DataSpec, recipes: Recipes) -> tuple[TensorSpec, ...]:
    return recipes.specs + (KEY_SPECS if data.keys else ())
