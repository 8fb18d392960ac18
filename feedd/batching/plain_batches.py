"""Runs of batches whose fields are all plain copies of numbers, filled at once, because each batch is overhead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.batching.bad_samples import failure_of
from feedd.batching.gather import columns_of, gather
from feedd.batching.slot_layout import lay_out
from feedd.catalog.lost_objects import bad_rows
from feedd.values import BatchReady
from feedd.workers.calls import FILES_MAX
from feedd.workers.fixed_width import plain_numbers
from feedd.workers.work import BadRow, DecodeTask, FieldWork, GatherTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.batching.bad_samples import BadSampleHandler
    from feedd.batching.batch_recipes import Recipes
    from feedd.batching.slot_layout import Layout
    from feedd.catalog.lost_objects import Reasons
    from feedd.catalog.stages import Stages
    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import RunPlan, RunRows
    from feedd.recipe.bad_sample_policy import Failure
    from feedd.shard_index import ShardIndex
    from feedd.values import ShardFile, SlotRef
    from feedd.workers.work import DecodeResult

PLAIN_BYTES_MAX: Final = 4 << 20  # of each batch; a larger one is decoded as other batches are


def are_plain(recipes: Recipes) -> bool:
    """Whether all fields are plain copies of numbers, so that a run of batches is little work."""
    if len(recipes.distinct) > 1 or any(recipes.pads):
        return False
    return all(plain_numbers(field) is not None for field in recipes.distinct[0])


class PlainRuns:
    """Fills slots of one session's arena with runs of plain copies of numbers."""

    def __init__(
        self,
        stages: Stages,
        recipes: Recipes,
        arena: Arena,
        arena_id: int,
        bad_sample_handler: BadSampleHandler,
        batch_bytes: int,
    ) -> None:
        """Bind.

        Args:
            stages: have the decode pool and the list of lost objects.
            recipes: the session's.
            arena: the session's memory.
            arena_id: the number by which decode workers know the arena.
            bad_sample_handler: the session's.
            batch_bytes: bytes from one batch of a slot to the next; 0 if slots hold single batches.
        """
        self._stages = stages
        self._recipe = recipes.distinct[0]
        self._specs = recipes.specs
        self._arena = arena
        self._arena_id = arena_id
        self._bad_sample_handler = bad_sample_handler
        self._batch_bytes = batch_bytes
        self._layouts: dict[int, Layout] = {}  # by row count, which alone determines them

    async def fill(
        self,
        run: RunRows,
        slot: SlotRef,
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        *,
        early: bool,
        first: int,
    ) -> list[tuple[BatchReady, int]]:
        """Copy the batches of a run; see ``Assembler.fill``."""
        plan = run.plan
        indexes, lost = await self._stages.lost.without(indexes, files)
        layout = self._layout(plan.batch_rows)
        places = np.arange(first, first + plan.count) * self._batch_bytes
        starts = slot.index * self._arena.slot_bytes + places
        undone = await self._gathered(run, indexes, files, layout, starts)
        if not lost and undone is not None and not len(undone):
            if not early:
                self._bad_sample_handler.charge_none(plan.cursor, plan.count, plan.stride)
            return [(_ready(plan, layout), plan.count)]
        if plan.first_rows_of:
            run = plan.by_row().by_shard()
        undone = np.arange(len(run.ordinal)) if undone is None else undone
        bad = await self._decoded(run, undone, indexes, files, layout, starts) if len(undone) else ()
        bad = self._with_lost(bad, run, lost)
        failures: Sequence[Failure] = ()
        if bad:
            failures = self._failures(run, indexes, files, bad, lost)
            failures = await self._stages.lost.with_object_names(failures, files)
        ready: list[tuple[BatchReady, int]] = []
        for number, one in enumerate(run.plan.batches()):
            low, end = number * layout.rows, (number + 1) * layout.rows
            own = [replace(failure, row=failure.row - low) for failure in failures if low <= failure.row < end]
            view = self._arena.view(slot)
            if self._batch_bytes:
                view = view[int(places[number]) :][: self._batch_bytes]
            ready.append((await self._judged(one, view, layout, own, early=early), 1))
        return ready

    async def _gathered(
        self,
        run: RunRows,
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        layout: Layout,
        starts: NDArray[np.int64],
    ) -> NDArray[np.int64] | None:
        """Copy the run's rows column by column to the batches that begin at ``starts`` in the arena.

        Returns:
            The rows that were not copied. None: no row was, because values lie at irregular distances, or the files are
            too many for a request.
        """
        columns = columns_of(indexes, self._recipe)
        if columns is None or len(files) > FILES_MAX:
            return None
        out_at = starts[:, np.newaxis] + np.array([field.region.values_at for field in layout.fields])
        ends = np.arange(1, len(starts) + 1) * layout.rows
        rows = run.shard_no, run.ordinal, ends, out_at
        are_firsts = run.plan.first_rows_of > 0
        task = GatherTask(files, self._arena_id, columns, *rows, are_firsts=are_firsts, in_order=True)
        return await self._stages.pool.gather(task)

    async def _decoded(
        self,
        run: RunRows,
        rows: NDArray[np.int64],
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        layout: Layout,
        starts: NDArray[np.int64],
    ) -> Sequence[BadRow]:
        """Decode some rows one by one to their places; return bad rows."""
        shard_no = run.shard_no[rows]
        spans = gather(indexes, shard_no, run.ordinal[rows], self._recipe)
        fields = tuple(
            FieldWork(
                field,
                shard_no,
                span.start,
                span.size,
                (starts[:, np.newaxis] + layout.fields[number].out_at).reshape(-1)[rows],
            )
            for number, (field, span) in enumerate(zip(self._recipe, spans, strict=True))
        )
        seeds = np.zeros(len(rows), np.uint64)  # copies of numbers use no random draws
        result: DecodeResult = await self._stages.pool.decode(DecodeTask(files, self._arena_id, 0, fields, seeds))
        return [replace(bad, row=int(rows[bad.row])) for bad in result.bad]

    async def _judged(
        self, plan: RunPlan, view: memoryview, layout: Layout, failures: Sequence[Failure], *, early: bool
    ) -> BatchReady:
        """Return a decoded batch after its bad samples are handled."""
        if not early:
            # An empty list is charged too, because a repeated step may have no failure.
            await self._bad_sample_handler.charge(plan.cursor, failures)
        elif failures:
            raise failures[0].error("reported again when the batch is requested")
        batch = _ready(plan, layout)
        return await self._bad_sample_handler.applied(view, layout, batch, failures) if failures else batch

    def _with_lost(self, bad: Sequence[BadRow], run: RunRows, lost: Reasons) -> Sequence[BadRow]:
        """Return bad rows and those that lack an object: another source of the field must not take its place."""
        if not lost:
            return bad
        fields = {source: field.name for field in reversed(self._recipe) for source in field.sources}
        found = {row.row: row for row in bad}
        for row, (extension, reason) in bad_rows(lost, run.shard_no, run.ordinal, frozenset(fields)).items():
            found.setdefault(row, BadRow(row, fields[extension], reason))
        return [found[row] for row in sorted(found)]

    def _failures(
        self,
        run: RunRows,
        indexes: Sequence[ShardIndex],
        files: Sequence[ShardFile],
        bad: Sequence[BadRow],
        lost: Reasons,
    ) -> Sequence[Failure]:
        """Return why rows of the run are bad; a lost object's reason takes precedence."""
        found = []
        sources = {one.name: one.sources for one in self._recipe}
        for row in bad:
            reasons = lost.get(int(run.shard_no[row.row]), {}).get(int(run.ordinal[row.row]), {})
            known = next((reasons[source] for source in sources.get(row.field, ()) if source in reasons), None)
            row_of = row if known is None else replace(row, reason=known)
            found.append(failure_of(run, indexes, files, self._recipe, row_of, told=known is not None))
        return found

    def _layout(self, rows: int) -> Layout:
        layout = self._layouts.get(rows)
        if layout is None:
            layout = self._layouts[rows] = lay_out(self._specs, rows, {})
        return layout


def _ready(plan: RunPlan, layout: Layout) -> BatchReady:
    """Return the first batch of a run."""
    again = b"" if plan.again is None else plan.again.tobytes()
    return BatchReady(plan.cursor, layout.rows, layout.regions, layout.size_bytes, again=again)
