"""Opening sessions: dataset, recipe and assignment resolved, the first shard looked at, the arena allocated."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from feedd.batch.layout import lay_out, slot_bytes
from feedd.decode.recipe import check_fields, default_fields, needs_resolve, parse_field, spec_of
from feedd.errors import BadRequest, NotFound, ObjectChanged
from feedd.flow.arena import Arena, ArenaBudget
from feedd.flow.tasks import both
from feedd.pipeline.ahead import AHEAD_BATCHES, Ahead, AheadParts
from feedd.pipeline.assemble import KEY_SPECS, Assembler, AssemblerOptions
from feedd.pipeline.future import Crowd, Outlook
from feedd.pipeline.learned import Learned
from feedd.pipeline.pinned import with_pinned
from feedd.pipeline.session import Session, SessionParts
from feedd.pipeline.sharing import WINDOW_BATCHES, SharedBatches, Sharing
from feedd.pipeline.shelf import Shelf
from feedd.plan.reader import Reader, ReaderOptions
from feedd.plan.sharding import check_mode
from feedd.plan.steps import Uneven, parse_uneven
from feedd.values import Cursor, FieldKind, SessionInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from feedd.cache.tiers import AnyCache
    from feedd.pipeline.stages import PipelineOptions, Stages
    from feedd.plan.listing import Listing
    from feedd.values import FieldRecipe, OpenSpec, ShardIndex, TensorSpec

_LEAST_SLOTS = 2
_AUTO_BYTES, _AUTO_LEAST, _AUTO_MOST = 64 << 20, 4, 16


class Pipeline:
    """Seam ``FeedBackend``: sessions over the stages."""

    def __init__(
        self, stages: Stages, options: PipelineOptions, group: asyncio.TaskGroup, learned: Learned | None = None
    ) -> None:
        self.stages = stages
        self.shelf = Shelf(stages, group, learned or Learned())
        self._options = options
        self._budget = ArenaBudget(options.arena_bytes)
        self._crowd = Crowd()
        self._sharing = Sharing()
        self._group = group
        self._numbers = itertools.count(1)

    @property
    def cache(self) -> AnyCache:
        """The cache, for listings of its entries."""
        return self.stages.cache

    async def open(self, spec: OpenSpec) -> Session:
        """Resolve and open; takes as long as one listing and one shard.

        Raises:
            BadRequest: recipe, sharding or numbers that cannot be served.
            NotFound, PermissionDenied, StoreUnavailable: said by the store.
            BadShard: the first shard is not what its name says.
            ResourceExhausted: no memory for the arena.
        """
        check_mode(spec.sharding)
        parse_uneven(spec.uneven)
        wanted = tuple(parse_field(name, text) for name, text in spec.fields)
        window = spec.window_shards or self._options.window_shards
        listing = await self.shelf.listing(
            spec.urls, lambda held: held.fingerprint(spec, wanted, window) == spec.expect_fingerprint
        )
        mark = listing.fingerprint(spec, wanted, window)
        if spec.expect_fingerprint and mark != spec.expect_fingerprint:
            raise ObjectChanged(
                f"expected the dataset with fingerprint {spec.expect_fingerprint.hex()}, got {mark.hex()}",
                object=" ".join(spec.urls),
                hint="objects, recipe or topology changed since this run began: start the run anew",
                stage="plan",
            )
        try:
            return await self._open(spec, listing, wanted, mark)
        except (ObjectChanged, NotFound):
            self.shelf.forget(listing)  # it names what is no longer there: the next open lists anew
            raise

    async def _open(self, spec: OpenSpec, listing: Listing, wanted: tuple[FieldRecipe, ...], mark: bytes) -> Session:
        uneven = listing.settled(parse_uneven(spec.uneven))
        # balancing by size takes microseconds per shard
        shares = await asyncio.to_thread(listing.shares, spec)
        steps = await asyncio.to_thread(listing.steps, spec, uneven)
        window = spec.window_shards or self._options.window_shards
        wrap = uneven in {Uneven.PAD, Uneven.REPEAT}
        options = ReaderOptions(
            spec.seed, spec.shuffle, window, spec.batch_size, spec.topology, steps, wrap, spec.window_bytes
        )
        reader = Reader(shares, options, listing.counts)
        assigned = reader.assigned
        number = next(self._numbers)
        size = _fixed_bytes(spec, wanted) if assigned.size else 1
        async with AsyncExitStack() as undo:
            outlook = Outlook(f"session-{number}", listing, reader, self.stages.cache, self._crowd)
            undo.callback(outlook.close)
            outlook.enter(Cursor(spec.epoch))
            resolving = self._resolve(spec, listing, reader, wanted)
            if size is not None:  # allocating memory takes as long as fetching a shard: do both at once
                (recipes, _), arena = await both(resolving, self._arena(undo, number, spec, size))
            else:
                recipes, index = await resolving
                assert index is not None
                size = slot_bytes(_specs(spec, recipes), spec.batch_size, index, recipes)
                arena = await self._arena(undo, number, spec, size)
            budget = AssemblerOptions(number, spec.keys, spec.bad_samples_max)
            assembler = Assembler(self.stages, recipes, tuple(map(spec_of, recipes)), arena, budget)
            info = _info(listing, assigned, _specs(spec, recipes), mark)
            info = replace(info, steps=reader.steps(), uneven=uneven.value)
            info = replace(info, left_out=0 if spec.consumer_index else reader.left_out())
            session = Session(SessionParts(info, listing, reader, outlook, assembler, arena), self.stages, self.shelf)
            memory = _Memory(self, session.slots.slot_bytes, spec, recipes)
            if spec.share:
                await self._join(session, spec, (mark, uneven, steps), memory)
            else:
                first = tuple(spec.consumer_index + n * spec.consumer_count for n in range(AHEAD_BATCHES))
                shares_of, counts = shares, listing.counts
                ahead = AheadParts(
                    memory.ahead, lambda: Reader(shares_of, options, counts), first, listing, self.shelf, self._group
                )
                session.look_ahead(Ahead(ahead))
            undo.pop_all()
        return session

    async def _join(self, session: Session, spec: OpenSpec, plan: tuple[object, ...], memory: _Memory) -> None:
        """Put a session into the group of those that ask for the same batches."""
        key = (spec.share, spec.batch_size, spec.topology, spec.keys, spec.bad_samples_max, *plan)
        shared = await self._sharing.join(key, session, memory.shared)
        session.take_part(shared, lambda member: self._sharing.leave(key, member))

    async def decoded(
        self, slot_count: int, slot_bytes: int, spec: OpenSpec, recipes: tuple[FieldRecipe, ...], *, counted: bool
    ) -> SharedBatches:
        """Return memory for decoded batches that are copied from there into sessions' slots.

        Raises:
            ResourceExhausted: there is none left.
        """
        number = next(self._numbers)
        arena = await Arena.create(slot_count, slot_bytes, self._budget)
        self.stages.pool.attach(number, arena.fd, arena.size_bytes)
        options = AssemblerOptions(number, spec.keys, spec.bad_samples_max)
        assembler = Assembler(self.stages, recipes, tuple(map(spec_of, recipes)), arena, options)
        return SharedBatches(arena, assembler, self.stages, self._group, counted=counted)

    async def close(self) -> None:
        """End listings and index reads under way."""
        await self.shelf.close()

    async def _resolve(
        self, spec: OpenSpec, listing: Listing, reader: Reader, wanted: tuple[FieldRecipe, ...]
    ) -> tuple[tuple[FieldRecipe, ...], ShardIndex | None]:
        """Hold the recipe against the first shard this session reads, or the first that can tell what data must."""
        order = reader.epoch_map(Cursor(spec.epoch)).order.tolist()
        told = bool(wanted) and not any(needs_resolve(recipe) for recipe in wanted)
        if told and not order:
            return wanted, None
        # A node without shards looks at the others': its ranks must know the same fields.
        for shard in order or range(len(listing.refs)):
            index = await self.shelf.index(listing, shard)
            if told or index.sample_count:
                break
        recipes = wanted or default_fields(index.fields)
        if not recipes:
            raise BadRequest(
                "expected samples in the shards of this node, got none",
                object=listing.refs[shard].url,
                hint="name fields= if that is as it should be",
                stage="decode",
            )
        if index.sample_count:
            check_fields(recipes, index.fields)
        if any(needs_resolve(recipe) for recipe in recipes):
            recipes = await with_pinned(
                self.stages.cache,
                [listing.refs[shard]],
                lambda files: self.stages.pool.resolve(files[0], index, recipes),
            )
        return recipes, index

    def _slot_count(self, spec: OpenSpec, size_bytes: int) -> int:
        """Return the slots to grant."""
        slots = spec.prefetch_batches or slots_for(size_bytes, spec.consumer_count)
        return min(max(slots, _LEAST_SLOTS), self._options.slots_max)

    async def _arena(self, undo: AsyncExitStack, number: int, spec: OpenSpec, size_bytes: int) -> Arena:
        """Allocate the slots and make them known to the workers, which map them while the first shard arrives."""
        arena = await Arena.create(self._slot_count(spec, size_bytes), size_bytes, self._budget)
        undo.callback(arena.close)
        self.stages.pool.attach(number, arena.fd, arena.size_bytes)
        undo.callback(self.stages.pool.detach, number)
        return arena


class _Memory:
    """Memory for batches like those of one session."""

    def __init__(self, pipeline: Pipeline, slot_bytes: int, spec: OpenSpec, recipes: tuple[FieldRecipe, ...]) -> None:
        self._pipeline, self._slot_bytes, self._spec, self._recipes = pipeline, slot_bytes, spec, recipes

    async def shared(self) -> SharedBatches:
        """For jobs that share."""
        return await self._pipeline.decoded(WINDOW_BATCHES, self._slot_bytes, self._spec, self._recipes, counted=True)

    async def ahead(self) -> SharedBatches:
        """For the next epoch's first batches."""
        return await self._pipeline.decoded(AHEAD_BATCHES, self._slot_bytes, self._spec, self._recipes, counted=False)


def slots_for(size_bytes: int, consumer_count: int = 1) -> int:
    """Return the slots for batches of this size: small ones get more, so that one message carries several leases.

    A rank's consumers (DataLoader workers) share what one would get: allocating it is most of what an open takes.
    """
    return min(max(_AUTO_BYTES // size_bytes // consumer_count, _AUTO_LEAST), _AUTO_MOST)


def _specs(spec: OpenSpec, recipes: tuple[FieldRecipe, ...]) -> tuple[TensorSpec, ...]:
    return tuple(spec_of(recipe) for recipe in recipes) + (KEY_SPECS if spec.keys else ())


def _fixed_bytes(spec: OpenSpec, wanted: tuple[FieldRecipe, ...]) -> int | None:
    """Return the bytes of a slot where the recipe alone tells them: named fields, all DENSE."""
    if not wanted or spec.keys or any(needs_resolve(recipe) for recipe in wanted):
        return None
    specs = _specs(spec, wanted)
    if any(one.kind is not FieldKind.DENSE for one in specs):
        return None
    return lay_out(specs, spec.batch_size, {}).size_bytes


def _info(listing: Listing, assigned: NDArray[np.int64], specs: tuple[TensorSpec, ...], mark: bytes) -> SessionInfo:
    return SessionInfo(
        specs=specs,
        fingerprint=mark,
        shard_count=len(listing.refs),
        assigned_shard_count=int(assigned.shape[0]),
        assigned_bytes=int(listing.sizes[assigned].sum()),
    )
