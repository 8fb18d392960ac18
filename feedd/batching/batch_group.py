"""Several batches at a time, where all of each are plain copies of numbers: each alone would cost mostly itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from feedd.batching.failure_budget import failure_of
from feedd.batching.gather import gather
from feedd.batching.slot_layout import lay_out
from feedd.values import BatchReady
from feedd.workers.fixed_width import plain_numbers
from feedd.workers.work import DecodeTask, FieldWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.batching.bad_samples import BadSampleHandler
    from feedd.batching.batch_recipes import Recipes
    from feedd.batching.slot_layout import Layout
    from feedd.catalog.lost_objects import Reasons
    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan, BatchPlanGroup
    from feedd.recipe.bad_sample_policy import Failure
    from feedd.values import ShardFile, ShardIndex, SlotRef
    from feedd.workers.work import BadRow
    from feedd.workers.worker_pool import DecodePool

_BATCHES_MAX = 22  # a third of 64 slots
_ALL_BYTES_MAX = 24 << 20  # of all of them: the first is handed out when the last is done
_BYTES_MAX = 4 << 20  # of each
_SLOTS_ENOUGH = 16  # six at a time, while as many are read and as many are on their way
_SLOTS_BYTES = 4 << 20  # of all slots that nobody asked for


def are_plain(recipes: Recipes) -> bool:
    """Whether all of a batch are plain copies of numbers, so that several can be made at once."""
    if len(recipes.distinct) > 1 or any(recipes.pads):
        return False
    return all(plain_numbers(field) is not None for field in recipes.distinct[0])


def slots_together(asked: int, slot_bytes: int) -> int:
    """Return the slots to grant for batches that can be made several at once, where so many were asked for.

    A batch made and sent alone costs the event loop five times what it costs among others. So small batches get the
    few slots that it takes to make several at once: what they take of memory is next to nothing.
    """
    return max(asked, min(_SLOTS_ENOUGH, _SLOTS_BYTES // slot_bytes))


class BatchGroup:
    """Fills several slots of one session's arena at once.

    Args:
        pool: decodes.
        recipes: of the session.
        arena: its memory.
        arena_id: as the pool knows it.
        remedy: for bad samples.
    """

    def __init__(
        self, pool: DecodePool, recipes: Recipes, arena: Arena, arena_id: int, bad_sample_handler: BadSampleHandler
    ) -> None:
        self._pool = pool
        self._recipes = recipes
        self._arena = arena
        self._arena_id = arena_id
        self._bad_sample_handler = bad_sample_handler
        self._layouts: dict[int, Layout] = {}  # by rows: nothing else decides

    @property
    def batches_max(self) -> int:
        """How many it can make at once; 1: batches of this session are not of this kind."""
        if self._arena.slot_bytes > _BYTES_MAX or not are_plain(self._recipes):
            return 1
        returned = -(-self._arena.slot_count // 3)  # so many at once, by the client: others would be made apart
        return max(min(_BATCHES_MAX, returned, _ALL_BYTES_MAX // self._arena.slot_bytes), 1)

    async def fill(
        self,
        several: BatchPlanGroup,
        slots: Sequence[SlotRef],
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        lost: Reasons,
        *,
        early: bool = False,
    ) -> list[BatchReady]:
        """Decode up to ``batches_max`` batches, each into its slot, as ``Assembler.fill`` would one by one.

        Args:
            several: the batches.
            slots: one for each.
            indexes: of all their shards.
            files: likewise, pinned.
            lost: what did not come with them.
            early: nobody asked for them yet.

        Raises:
            BadSample: see ``Assembler.fill``.
        """
        recipe = self._recipes.distinct[0]
        gathered = gather(indexes, several.shard_no, several.ordinal, recipe)
        layouts = [self._layout(len(drawn.ordinal)) for drawn in several.batches]
        slot_at = [slot.index * self._arena.slot_bytes for slot in slots]
        fields = tuple(
            FieldWork(
                field,
                several.shard_no,
                span.start,
                span.size,
                np.concatenate([one.places[number].out_at + at for one, at in zip(layouts, slot_at, strict=True)]),
            )
            for number, (field, span) in enumerate(zip(recipe, gathered.spans, strict=True))
        )
        seeds = np.zeros(len(several.ordinal), np.uint64)  # nothing is left to chance where numbers are copied
        result = await self._pool.decode(DecodeTask(files, self._arena_id, 0, fields, seeds))
        ready: list[BatchReady] = []
        first = 0
        for drawn, slot, layout in zip(several.batches, slots, layouts, strict=True):
            again = b"" if drawn.again is None else drawn.again.tobytes()
            batch = BatchReady(drawn.cursor, layout.rows, layout.regions, layout.size_bytes, again=again)
            bad = [one for one in result.bad if 0 <= one.row - first < layout.rows]
            failures = self._failures(several, drawn, indexes, files, bad, first, lost) if bad else []
            if not early:
                # An empty list is charged, too: a step may be made again without a failure.
                await self._bad_sample_handler.charge(drawn.cursor, failures)
            elif failures:
                raise failures[0].error("it is met again when the batch is asked for")
            if failures:
                batch = await self._bad_sample_handler.applied(self._arena.view(slot), layout, batch, failures)
            ready.append(batch)
            first += layout.rows
        return ready

    def _failures(
        self,
        several: BatchPlanGroup,
        drawn: BatchPlan,
        indexes: Sequence[ShardIndex],
        files: Sequence[ShardFile],
        bad: Sequence[BadRow],
        first: int,
        lost: Reasons,
    ) -> list[Failure]:
        """Return what is wrong with rows of one of the batches, whose first row is ``first``."""
        rows = drawn.rows()
        own = [several.shards.index(shard) for shard in rows.shards.tolist()]
        where = rows, [indexes[at] for at in own], [files[at] for at in own]
        recipe = self._recipes.distinct[0]
        found = []
        for one in bad:
            told = lost.get(int(several.shard_no[one.row]), {}).get(int(several.ordinal[one.row]))
            row = replace(one, row=one.row - first, reason=one.reason if told is None else told[1])
            found.append(failure_of(*where, recipe, row, told=told is not None))
        return found

    def _layout(self, rows: int) -> Layout:
        layout = self._layouts.get(rows)
        if layout is None:
            layout = self._layouts[rows] = lay_out(self._recipes.specs, rows, {})
        return layout
