"""Batches of a fixed layout, mostly plain copies of numbers. Several are filled at a time, because each is overhead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from feedd.batching.bad_samples import failure_of
from feedd.batching.gather import columns_of, gather
from feedd.batching.slot_layout import ALIGN_BYTES, lay_out
from feedd.catalog.lost_objects import bad_rows
from feedd.values import BatchReady, FieldKind
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
    from feedd.ordering.batch_plan import AnyRunPlan, BatchPlan, BatchPlanGroup
    from feedd.recipe.bad_sample_policy import Failure
    from feedd.shard_index import ShardIndex
    from feedd.values import SessionInfo, ShardFile, SlotRef
    from feedd.workers.pool import DecodePool

_BATCHES_MAX = 22  # a third of 64 slots
_ALL_BYTES_MAX = 24 << 20  # of all batches of a call: the first is delivered when the last is done
_BYTES_MAX = 4 << 20  # of each batch
_RUN_SLOTS_LEAST, _RUN_SLOTS_MOST = 3, 8  # one or two are read, others are full or being filled
_RUN_SLOTS_LEAST_JOIN = 4  # the client also looks ahead, to see which ranks have another step
_RUN_BATCHES_LEAST, _RUN_BATCHES_MAX = 4, 256
_RUN_SLOTS_BYTES = 8 << 20  # of all slots, even if fewer batches were requested
_SLOTS_ENOUGH = 16  # about six are made, six are read and six are in transit
_SLOTS_BYTES = 4 << 20  # of all slots beyond the requested ones
_CALL_BUSY_S = 0.2  # workers' time for the batches of a call, if a batch is much work


def are_plain(recipes: Recipes) -> bool:
    """Whether all fields are plain copies of numbers, so that several batches can be made at once."""
    if len(recipes.distinct) > 1 or any(recipes.pads):
        return False
    return all(plain_numbers(field) is not None for field in recipes.distinct[0])


def are_even(recipes: Recipes) -> bool:
    """Whether all batches of as many rows have the same layout, so that several batches can be made at once."""
    if len(recipes.distinct) > 1 or any(recipes.pads) or recipes.packing is not None:
        return False
    return all(spec.kind is FieldKind.DENSE for spec in recipes.kinds)


def slots_for_runs(slot_count: int, batch_bytes: int, *, join: bool = False) -> tuple[int, int]:
    """Return how many batches each slot holds, and how many slots there are, in the memory of ``slot_count`` batches.

    Args:
        slot_count: slots of one batch that the session would have.
        batch_bytes: bytes of a batch. Small batches get more memory than that, which is negligible.
        join: the ranks agree on every step while they run.

    Returns:
        (1, ``slot_count``) if a run would have too few batches to be worth it.
    """
    batches = max(slot_count, _RUN_SLOTS_BYTES // batch_bytes)
    run_batches = min(batches // (_RUN_SLOTS_LEAST_JOIN if join else _RUN_SLOTS_LEAST), _RUN_BATCHES_MAX)
    if run_batches < _RUN_BATCHES_LEAST or batch_bytes > _BYTES_MAX:
        return 1, slot_count
    return run_batches, min(batches // run_batches, _RUN_SLOTS_MOST)


def slots_for_groups(asked: int, slot_bytes: int) -> int:
    """Return the slots to grant if several batches can be made at once and ``asked`` slots were requested.

    A batch made and sent alone costs the event loop five times as much as a batch in a group. So small batches get the
    few slots that groups need; their memory is negligible.
    """
    return max(asked, min(_SLOTS_ENOUGH, _SLOTS_BYTES // slot_bytes))


class PlainBatches:
    """Fills slots of one session's arena: one batch of plain copies of numbers, or several batches in one decode task.

    Pictures of one size also have a fixed layout. Several batches of them are filled here, and a single one is not.

    Attributes:
        are_copies: all fields are plain copies of numbers.
        run_batches: batches of each slot.
        batch_bytes: bytes from one batch of a slot to the next; 0 if a slot holds one.
    """

    def __init__(
        self,
        stages: Stages,
        recipes: Recipes,
        arena: Arena,
        arena_id: int,
        bad_sample_handler: BadSampleHandler,
        run_batches: int = 1,
    ) -> None:
        """Bind.

        Args:
            stages: have the decode pool and the list of lost objects.
            recipes: the session's.
            arena: the session's memory.
            arena_id: the number by which decode workers know the arena.
            bad_sample_handler: the session's.
            run_batches: batches of each slot.
        """
        self.run_batches = run_batches
        self.batch_bytes = arena.slot_bytes // run_batches // ALIGN_BYTES * ALIGN_BYTES if run_batches > 1 else 0
        self._stages = stages
        self._recipes = recipes
        self._arena = arena
        self._arena_id = arena_id
        self._bad_sample_handler = bad_sample_handler
        self.are_copies = are_plain(recipes)
        self._layouts: dict[int, Layout] = {}  # by row count, which alone determines them

    @property
    def batches_max(self) -> int:
        """Maximum number of batches per call. 1: the fields of batches vary in size, or the batches are too large."""
        if not self.are_copies:
            most = min(_BATCHES_MAX, self._arena.slot_count // 3, _ALL_BYTES_MAX // self._arena.slot_bytes)
            return max(most, 1) if are_even(self._recipes) else 1
        if self._arena.slot_bytes > _BYTES_MAX:
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
        first: int = 0,
    ) -> list[BatchReady]:
        """Decode up to ``batches_max`` batches, each into its slot, or some of a run; see ``Assembler.fill``.

        Raises:
            BadSample: see ``Assembler.fill``.
        """
        indexes, lost = await self._stages.lost.without(indexes, files)
        layouts = [self._layout(len(plan.ordinal)) for plan in group.batches]
        if self.batch_bytes:
            slots = [slots[0]] * len(layouts)
            in_slot = [(first + number) * self.batch_bytes for number in range(len(layouts))]
        else:
            in_slot = [0] * len(layouts)
        slot_at = [slot.index * self._arena.slot_bytes + at for slot, at in zip(slots, in_slot, strict=True)]
        bad = await self._copied(group, indexes, files, list(zip(layouts, slot_at, strict=True)))
        bad = self._with_lost(bad, group, lost)
        failures: Sequence[Failure] = ()
        if bad:
            failures = self._failures(group, indexes, files, bad, lost)
            failures = await self._stages.lost.with_object_names(failures, files)
        ready: list[BatchReady] = []
        row = 0
        for plan, slot, at, layout in zip(group.batches, slots, in_slot, layouts, strict=True):
            end = row + layout.rows
            own = [replace(failure, row=failure.row - row) for failure in failures if row <= failure.row < end]
            view = self._arena.view(slot)[at : at + self.batch_bytes] if self.batch_bytes else self._arena.view(slot)
            ready.append(await self._judged(plan, view, layout, own, early=early))
            row = end
        return ready

    async def fill_run(
        self,
        run: AnyRunPlan,
        group: BatchPlanGroup,
        slot: SlotRef,
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        *,
        early: bool = False,
        first: int = 0,
    ) -> BatchReady | None:
        """Copy the batches of a run whose shards are pinned into a slot.

        Args:
            run: the batches.
            group: its samples.
            slot: the slot.
            indexes: one for each shard of the group.
            files: one for each shard of the group.
            early: the batches are made in advance, and count when they are requested.
            first: the place of the run's first batch in the slot.

        Returns:
            The first batch; the others differ from it in their steps only. None: they must be made by ``fill``, because
            some samples are bad, or their values lie at irregular distances.

        Raises:
            BadSample: the failure budget is spent.
        """
        await self._arena.allocated(slot)
        indexes, lost = await self._stages.lost.without(indexes, files)
        if lost:
            return None
        layout = self._layout(run.rows)
        starts = slot.index * self._arena.slot_bytes + (first + np.arange(len(run))) * self.batch_bytes
        out_at = starts[:, np.newaxis] + np.array([field.region.values_at for field in layout.fields])
        ends = np.arange(1, len(run) + 1) * run.rows
        undone = await self._gathered(group, indexes, files, ends, out_at, in_order=True)
        if undone is None or len(undone):
            return None
        if not early:
            self._bad_sample_handler.charge_none(run.cursor, len(run))
        return BatchReady(run.cursor, layout.rows, layout.regions, layout.size_bytes)

    async def _copied(
        self,
        group: BatchPlanGroup,
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        places: Sequence[tuple[Layout, int]],
    ) -> Sequence[BadRow]:
        """Copy all rows to their places, the layouts and starts in the arena of their batches; return bad rows."""
        ends = np.cumsum([layout.rows for layout, _ in places])
        out_at = np.array([[field.region.values_at + at for field in layout.fields] for layout, at in places], np.int64)
        undone = await self._gathered(group, indexes, files, ends, out_at) if self.are_copies else None
        undone = np.arange(len(group.ordinal)) if undone is None else undone
        if not len(undone):
            return ()
        return await self._decoded(group, undone, indexes, files, places)

    async def _gathered(
        self,
        group: BatchPlanGroup,
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        ends: NDArray[np.int64],
        out_at: NDArray[np.int64],
        *,
        in_order: bool = False,
    ) -> NDArray[np.int64] | None:
        """Copy the group's rows column by column; see ``GatherTask`` for the last arguments.

        Returns:
            The rows that were not copied. None: no row was, because values lie at irregular distances, or the files are
            too many for a request.
        """
        columns = columns_of(indexes, self._recipes.distinct[0])
        if columns is None or len(files) > FILES_MAX:
            return None
        rows = group.shard_no, group.ordinal, ends, out_at
        task = GatherTask(files, self._arena_id, columns, *rows, are_firsts=group.are_firsts, in_order=in_order)
        return await self._stages.pool.gather(task)

    async def _decoded(
        self,
        group: BatchPlanGroup,
        rows: NDArray[np.int64],
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        places: Sequence[tuple[Layout, int]],
    ) -> Sequence[BadRow]:
        """Decode some rows one by one to their places; return bad rows."""
        recipe = self._recipes.distinct[0]
        shard_no = group.shard_no[rows]
        gathered = gather(indexes, shard_no, group.ordinal[rows], recipe)
        fields = tuple(
            FieldWork(
                field,
                shard_no,
                span.start,
                span.size,
                np.concatenate([layout.fields[number].out_at + at for layout, at in places])[rows],
            )
            for number, (field, span) in enumerate(zip(recipe, gathered.spans, strict=True))
        )
        if self.are_copies:
            seeds = np.zeros(len(rows), np.uint64)  # copies of numbers use no random draws
        else:
            seeds = np.concatenate([plan.seeds() for plan in group.batches])[rows]
        result = await self._stages.pool.decode(DecodeTask(files, self._arena_id, 0, fields, seeds))
        return [replace(bad, row=int(rows[bad.row])) for bad in result.bad]

    async def _judged(
        self, plan: BatchPlan, view: memoryview, layout: Layout, failures: Sequence[Failure], *, early: bool
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
        return await self._bad_sample_handler.applied(view, layout, batch, failures)

    def _with_lost(self, bad: Sequence[BadRow], group: BatchPlanGroup, lost: Reasons) -> Sequence[BadRow]:
        """Return bad rows and those that lack an object: another source of the field must not take its place."""
        if not lost:
            return bad
        fields = {source: field.name for field in reversed(self._recipes.distinct[0]) for source in field.sources}
        found = {row.row: row for row in bad}
        for row, (extension, reason) in bad_rows(lost, group.shard_no, group.ordinal, frozenset(fields)).items():
            found.setdefault(row, BadRow(row, fields[extension], reason))
        return [found[row] for row in sorted(found)]

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
        recipe = self._recipes.distinct[0]
        sources = {one.name: one.sources for one in recipe}
        for row in bad:
            reasons = lost.get(int(group.shard_no[row.row]), {}).get(int(group.ordinal[row.row]), {})
            known = next((reasons[source] for source in sources.get(row.field, ()) if source in reasons), None)
            row_of = row if known is None else replace(row, reason=known)
            found.append(failure_of(group, indexes, files, recipe, row_of, told=known is not None))
        return found

    def _layout(self, rows: int) -> Layout:
        layout = self._layouts.get(rows)
        if layout is None:
            layout = self._layouts[rows] = lay_out(self._recipes.specs, rows, {})
        return layout


class CallSizes:
    """Chooses the batches of a session's next call, if a batch is much work.

    A batch is delivered later if others are made with it. So several are made together only if as many are being made
    already, no worker is idle, and all of them take workers at most ``_CALL_BUSY_S``.

    Attributes:
        batch_rows: rows of the latest batch.
    """

    def __init__(self, pool: DecodePool, arena_id: int, most: int) -> None:
        """Bind to the arena of the session; ``most``: maximum number of batches of a call."""
        self.batch_rows = 1
        self._pool = pool
        self._arena_id = arena_id
        self._most = most
        self._latest: tuple[SessionInfo, SessionInfo] | None = None  # of ``applied``: the argument and the result

    @classmethod
    def of(cls, plain: PlainBatches, pool: DecodePool, arena_id: int, most: int) -> CallSizes | None:
        """Return the choice for a session, or None if each call makes ``most`` batches because they are little work."""
        return None if plain.are_copies or most == 1 else cls(pool, arena_id, most)

    def next_count(self, making_count: int) -> int:
        """Return how many batches to make by the next call, while ``making_count`` others are being made."""
        rows = self._pool.rows_within(_CALL_BUSY_S, self._arena_id)
        return max(1, min(self._most, making_count, rows // self.batch_rows))

    def applied(self, info: SessionInfo, making_count: int) -> SessionInfo:
        """Return the info with ``next_count`` batches per call. Fewer requests wait for more."""
        count, latest = self.next_count(making_count), self._latest
        if latest is None or latest[0] is not info or latest[1].batches_per_call != count:
            latest = self._latest = info, replace(info, batches_per_call=count, batches_per_call_least=count)
        return latest[1]
