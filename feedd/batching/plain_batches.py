"""Batches that are plain copies of numbers. Several are filled at a time, because a single one is mostly overhead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from feedd.batching.bad_samples import failure_of
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
    from feedd.catalog.stages import Stages
    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan, BatchPlanGroup
    from feedd.recipe.bad_sample_policy import Failure
    from feedd.values import ShardFile, ShardIndex, SlotRef
    from feedd.workers.work import BadRow

_BATCHES_MAX = 22  # a third of 64 slots
_ALL_BYTES_MAX = 24 << 20  # of all batches of a call: the first is delivered when the last is done
_BYTES_MAX = 4 << 20  # of each batch
_SLOTS_ENOUGH = 16  # about six are made, six are read and six are in transit
_SLOTS_BYTES = 4 << 20  # of all slots beyond the requested ones


def are_plain(recipes: Recipes) -> bool:
    """Whether all fields are plain copies of numbers, so that several batches can be made at once."""
    if len(recipes.distinct) > 1 or any(recipes.pads):
        return False
    return all(plain_numbers(field) is not None for field in recipes.distinct[0])


def slots_for_groups(asked: int, slot_bytes: int) -> int:
    """Return the slots to grant if several batches can be made at once and ``asked`` slots were requested.

    A batch made and sent alone costs the event loop five times as much as a batch in a group. So small batches get the
    few slots that groups need; their memory is negligible.
    """
    return max(asked, min(_SLOTS_ENOUGH, _SLOTS_BYTES // slot_bytes))


class PlainBatches:
    """Fills slots of one session's arena with plain copies of numbers: one batch, or several in one decode task."""

    def __init__(
        self, stages: Stages, recipes: Recipes, arena: Arena, arena_id: int, bad_sample_handler: BadSampleHandler
    ) -> None:
        """Bind.

        Args:
            stages: have the decode pool and the list of lost objects.
            recipes: the session's.
            arena: the session's memory.
            arena_id: the number by which decode workers know the arena.
            bad_sample_handler: the session's.
        """
        self._stages = stages
        self._recipes = recipes
        self._arena = arena
        self._arena_id = arena_id
        self._bad_sample_handler = bad_sample_handler
        self._layouts: dict[int, Layout] = {}  # by row count, which alone determines them

    @property
    def batches_max(self) -> int:
        """Number of batches per call. 1: the session's batches are not plain copies, or too large."""
        if self._arena.slot_bytes > _BYTES_MAX or not are_plain(self._recipes):
            return 1
        returned = -(-self._arena.slot_count // 3)  # slots that the client returns together
        return max(min(_BATCHES_MAX, returned, _ALL_BYTES_MAX // self._arena.slot_bytes), 1)

    async def fill(
        self,
        group: BatchPlanGroup,
        slots: Sequence[SlotRef],
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        *,
        early: bool = False,
    ) -> list[BatchReady]:
        """Decode up to ``batches_max`` batches, each into its slot; see ``Assembler.fill``.

        Raises:
            BadSample: see ``Assembler.fill``.
        """
        indexes, lost = await self._stages.lost.without(indexes, files)
        recipe = self._recipes.distinct[0]
        gathered = gather(indexes, group.shard_no, group.ordinal, recipe)
        layouts = [self._layout(len(plan.ordinal)) for plan in group.batches]
        slot_at = [slot.index * self._arena.slot_bytes for slot in slots]
        fields = tuple(
            FieldWork(
                field,
                group.shard_no,
                span.start,
                span.size,
                np.concatenate(
                    [layout.fields[number].out_at + at for layout, at in zip(layouts, slot_at, strict=True)]
                ),
            )
            for number, (field, span) in enumerate(zip(recipe, gathered.spans, strict=True))
        )
        seeds = np.zeros(len(group.ordinal), np.uint64)  # copies of numbers use no random draws
        result = await self._stages.pool.decode(DecodeTask(files, self._arena_id, 0, fields, seeds))
        failures: Sequence[Failure] = ()
        if result.bad:
            failures = self._failures(group, indexes, files, result.bad, lost)
            failures = await self._stages.lost.with_object_names(failures, files)
        ready: list[BatchReady] = []
        first = 0
        for plan, slot, layout in zip(group.batches, slots, layouts, strict=True):
            end = first + layout.rows
            own = [replace(failure, row=failure.row - first) for failure in failures if first <= failure.row < end]
            ready.append(await self._judged(plan, slot, layout, own, early=early))
            first = end
        return ready

    async def _judged(
        self, plan: BatchPlan, slot: SlotRef, layout: Layout, failures: Sequence[Failure], *, early: bool
    ) -> BatchReady:
        """Return a decoded batch after its bad samples are handled."""
        if not early:
            # An empty list is charged too, because a repeated step may have no failure.
            await self._bad_sample_handler.charge(plan.cursor, failures)
        elif failures:
            raise failures[0].error("reported again when the batch is requested")
        again = b"" if plan.again is None else plan.again.tobytes()
        batch = BatchReady(plan.cursor, layout.rows, layout.regions, layout.size_bytes, again=again)
        if not failures:
            return batch
        return await self._bad_sample_handler.applied(self._arena.view(slot), layout, batch, failures)

    def _failures(
        self,
        group: BatchPlanGroup,
        indexes: Sequence[ShardIndex],
        files: Sequence[ShardFile],
        bad: Sequence[BadRow],
        lost: Reasons,
    ) -> Sequence[Failure]:
        """Return why rows of the group are bad; a lost object's reason takes precedence."""
        found = []
        for row in bad:
            known = lost.get(int(group.shard_no[row.row]), {}).get(int(group.ordinal[row.row]))
            row_of = row if known is None else replace(row, reason=known[1])
            recipe = self._recipes.distinct[0]
            found.append(failure_of(group, indexes, files, recipe, row_of, told=known is not None))
        return found

    def _layout(self, rows: int) -> Layout:
        layout = self._layouts.get(rows)
        if layout is None:
            layout = self._layouts[rows] = lay_out(self._recipes.specs, rows, {})
        return layout
