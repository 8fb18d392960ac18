"""Opening sessions: dataset, recipe and assignment resolved, the first shard looked at, the arena allocated."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from feedd.batch.layout import slot_bytes
from feedd.decode.recipe import check_fields, default_fields, needs_resolve, parse_field, spec_of
from feedd.errors import BadRequest, ObjectChanged
from feedd.flow.arena import Arena, ArenaBudget
from feedd.pipeline.assemble import KEY_SPECS, Assembler, AssemblerOptions
from feedd.pipeline.future import Crowd, Outlook
from feedd.pipeline.session import Session, SessionParts
from feedd.pipeline.shelf import Shelf
from feedd.plan.reader import Reader, ReaderOptions
from feedd.plan.sharding import check_mode
from feedd.values import Cursor, SessionInfo

if TYPE_CHECKING:
    import asyncio

    import numpy as np
    from numpy.typing import NDArray

    from feedd.cache.disk import DiskCache
    from feedd.pipeline.stages import PipelineOptions, Stages
    from feedd.plan.listing import Listing
    from feedd.values import FieldRecipe, OpenSpec, ShardIndex, TensorSpec

_LEAST_SLOTS = 2


class Pipeline:
    """Seam ``FeedBackend``: sessions over the stages."""

    def __init__(self, stages: Stages, options: PipelineOptions, group: asyncio.TaskGroup) -> None:
        self.stages = stages
        self.shelf = Shelf(stages, group)
        self._options = options
        self._budget = ArenaBudget(options.arena_bytes)
        self._crowd = Crowd()
        self._numbers = itertools.count(1)

    @property
    def cache(self) -> DiskCache:
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
        assigned = listing.assigned(spec)
        options = ReaderOptions(spec.seed, spec.shuffle, window, spec.batch_size, spec.topology)
        reader = Reader(assigned, options, listing.counts)
        number = next(self._numbers)
        outlook = Outlook(f"session-{number}", listing, reader, self.stages.cache, self._crowd)
        try:
            outlook.enter(Cursor(spec.epoch))
            recipes, index = await self._resolve(spec, listing, reader, wanted)
            specs = tuple(spec_of(recipe) for recipe in recipes)
            arena = await self._arena(spec, specs, recipes, index)
        except BaseException:
            outlook.close()
            raise
        try:
            self.stages.pool.attach(number, arena.fd, arena.size_bytes)
        except BaseException:
            outlook.close()
            arena.close()
            raise
        budget = AssemblerOptions(number, spec.keys, spec.bad_samples_max)
        assembler = Assembler(self.stages, recipes, specs, arena, budget)
        info = self._info(listing, assigned, specs + (KEY_SPECS if spec.keys else ()), mark)
        parts = SessionParts(info, listing, reader, outlook, assembler, arena)
        return Session(parts, self.stages, self.shelf)

    async def close(self) -> None:
        """End listings and index reads under way."""
        await self.shelf.close()

    async def _resolve(
        self, spec: OpenSpec, listing: Listing, reader: Reader, wanted: tuple[FieldRecipe, ...]
    ) -> tuple[tuple[FieldRecipe, ...], ShardIndex | None]:
        """Hold the recipe against the first shard this session reads; with no shard there is nothing to hold."""
        order = reader.epoch_map(Cursor(spec.epoch)).order
        if not len(order):
            return wanted, None
        shard = int(order[0])
        index = await self.shelf.index(listing, shard)
        recipes = wanted or default_fields(index.fields)
        if not recipes:
            raise BadRequest(
                "expected samples in the first shard, got none",
                object=listing.refs[shard].url,
                hint="name fields= if only this shard is empty",
                stage="decode",
            )
        if index.sample_count:
            check_fields(recipes, index.fields)
        if any(needs_resolve(recipe) for recipe in recipes):
            with await self.stages.cache.acquire([listing.refs[shard]]) as pinned:
                recipes = await self.stages.pool.resolve(pinned.files[0], index, recipes)
        return recipes, index

    async def _arena(
        self, spec: OpenSpec, specs: tuple[TensorSpec, ...], recipes: tuple[FieldRecipe, ...], index: ShardIndex | None
    ) -> Arena:
        whole = specs + (KEY_SPECS if spec.keys else ())
        size = slot_bytes(whole, spec.batch_size, index, recipes) if index is not None else 1
        slots = min(max(spec.prefetch_batches, _LEAST_SLOTS), self._options.slots_max)
        return await Arena.create(slots, size, self._budget)

    def _info(
        self, listing: Listing, assigned: NDArray[np.int64], specs: tuple[TensorSpec, ...], mark: bytes
    ) -> SessionInfo:
        return SessionInfo(
            specs=specs,
            fingerprint=mark,
            shard_count=len(listing.refs),
            assigned_shard_count=int(assigned.shape[0]),
            assigned_bytes=int(listing.sizes[assigned].sum()),
        )
