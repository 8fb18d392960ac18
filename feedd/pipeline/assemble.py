"""One batch into one slot: gather spans, lay out, decode, drop what the failure budget forgives, write the tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import structlog

from feedd.batch.gather import gather, keys, shard_urls
from feedd.batch.layout import drop_rows, lay_out, write_tables
from feedd.batch.pack import Packed
from feedd.decode.plain import plain_numbers
from feedd.decode.recipe import needs_measure
from feedd.decode.work import DecodeTask, FieldWork
from feedd.errors import ResourceExhausted
from feedd.flow.arena import Arena
from feedd.flow.tasks import run_all
from feedd.pipeline.failures import Failure, FailureBudget
from feedd.plan.reader import merged
from feedd.units import format_size
from feedd.values import BatchReady, FieldKind, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.batch.gather import Gathered, Text
    from feedd.batch.layout import Layout
    from feedd.decode.work import BadRow, DecodeResult
    from feedd.pipeline.recipes import Recipe, Recipes
    from feedd.pipeline.stages import Stages
    from feedd.plan.reader import BatchRows
    from feedd.values import Cursor, ShardFile, ShardIndex, SlotRef

KEY_SPECS = (TensorSpec("__key__", FieldKind.TEXT, "uint8"), TensorSpec("__url__", FieldKind.TEXT, "uint8"))
_OVERSIZE_MAX_BYTES = 2 << 30
_TOGETHER_MAX = 4  # batches made at once
_TOGETHER_BYTES_MAX = 4 << 20  # of each
_log = structlog.get_logger("feedd.pipeline")
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class AssemblerOptions:
    """What a session asked for.

    Attributes:
        arena_id: the session's arena, as the decode pool knows it.
        keys: add ``__key__`` and ``__url__``.
        bad_samples_max: the failure budget, per epoch.
    """

    arena_id: int
    keys: bool
    bad_samples_max: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that one recipe is for: nearly always all.

    Attributes:
        at: int[n], their numbers in the batch; None: all of them, in order.
    """

    recipe: Recipe
    at: NDArray[np.intp] | None
    shard_no: NDArray[np.int32]
    gathered: Gathered

    def of(self, column: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Return a batch's column for these rows."""
        return column if self.at is None else column[self.at]


@dataclass(frozen=True, slots=True)
class _Work:
    """A batch ready to be decoded."""

    rows: BatchRows
    indexes: Sequence[ShardIndex]
    files: tuple[ShardFile, ...]
    parts: Sequence[_Part]
    shapes: Mapping[str, NDArray[np.int64]]
    texts: Mapping[str, Text]
    packed: Packed | None = None


class Assembler:
    """Fills slots of one session's arena. Any number of batches may be under way."""

    def __init__(self, stages: Stages, recipes: Recipes, arena: Arena, options: AssemblerOptions) -> None:
        self._stages = stages
        self._recipes = recipes
        self._kinds = recipes.specs
        self._packing = recipes.packing
        self._specs = (*recipes.given, *(KEY_SPECS if options.keys else ()))
        self._arena = arena
        self._options = options
        self._failures = FailureBudget(options.bad_samples_max)
        self._layouts: dict[int, Layout] = {}  # by rows, where nothing else decides

    @property
    def at_once(self) -> int:
        """How many batches ``fill_together`` can make: more than 1 where all of a batch are plain copies of numbers."""
        distinct = self._recipes.distinct
        if len(distinct) > 1 or self._options.keys or self._arena.slot_bytes > _TOGETHER_BYTES_MAX:
            return 1
        if any(plain_numbers(field) is None for field in distinct[0]):
            return 1
        return max(min(_TOGETHER_MAX, self._arena.slot_count // _TOGETHER_MAX), 1)

    async def fill_together(
        self,
        jobs: Sequence[tuple[BatchRows, SlotRef]],
        shards: Sequence[int],
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
    ) -> list[BatchReady]:
        """Decode up to ``at_once`` batches, each into its slot, as ``fill`` would one by one.

        Args:
            jobs: the batches.
            shards: dataset indices of all their shards, in the order of ``indexes`` and ``files``.
            indexes: of the shards.
            files: of the shards, pinned.

        Raises:
            BadSample: see ``fill``.
        """
        shard_no, ordinal, its_seeds = merged([rows for rows, _ in jobs], shards)
        recipe = self._recipes.distinct[0]
        gathered = gather(indexes, shard_no, ordinal, recipe)
        layouts = [self._layout(len(rows.ordinal)) for rows, _ in jobs]
        slot_at = [slot.index * self._arena.slot_bytes for _, slot in jobs]
        fields = tuple(
            FieldWork(
                field,
                shard_no,
                span.start,
                span.size,
                np.concatenate([one.places[number].out_at + at for one, at in zip(layouts, slot_at, strict=True)]),
            )
            for number, (field, span) in enumerate(zip(recipe, gathered.spans, strict=True))
        )
        result = await self._stages.pool.decode(DecodeTask(files, self._options.arena_id, 0, fields, its_seeds))
        ready: list[BatchReady] = []
        first = 0
        for (rows, slot), layout in zip(jobs, layouts, strict=True):
            bad = [replace(one, row=one.row - first) for one in result.bad if 0 <= one.row - first < layout.rows]
            own = [shards.index(shard) for shard in rows.shards.tolist()] if bad else []
            self._charge(rows, [indexes[at] for at in own], [files[at] for at in own], bad)
            ready.append(_ready(rows, layout, bad, self._arena.view(slot)))
            first += layout.rows
        return ready

    def _layout(self, rows: int) -> Layout:
        layout = self._layouts.get(rows)
        if layout is None:
            layout = self._layouts[rows] = lay_out(self._specs, rows, {})
        return layout

    async def fill(
        self, rows: BatchRows, indexes: Sequence[ShardIndex], files: tuple[ShardFile, ...], slot: SlotRef
    ) -> BatchReady:
        """Decode a batch whose shards are pinned.

        Raises:
            BadSample: a sample beyond the failure budget; names shard, key and reason.
            ResourceExhausted: a batch too large for memory.
        """
        parts = self._parts(rows, indexes)
        texts = self._texts(rows, indexes, files)
        shapes = await self._shapes(len(rows.ordinal), files, parts)
        packed = None if self._packing is None else Packed.of(shapes[self._kinds[0].name], self._packing)
        work = _Work(rows, indexes, files, parts, shapes, texts, packed)
        lengths = {**shapes, **{name: text.lengths for name, text in texts.items()}}
        layout = lay_out(self._specs, len(rows.ordinal), lengths) if packed is None else packed.layout(self._specs)
        if layout.size_bytes > self._arena.slot_bytes:
            return await self._fill_oversize(work, layout)
        at = slot.index * self._arena.slot_bytes
        return await self._decode(work, layout, self._options.arena_id, at, self._arena.view(slot))

    def check_failures(self, at: Cursor) -> None:
        """Make sure that the epoch's steps up to ``at`` are within the failure budget.

        Raises:
            BadSample: they are not; a step may be found out after later ones were handed on.
        """
        self._failures.check(at)

    def close(self) -> None:
        """Take the arena from the workers."""
        self._stages.pool.detach(self._options.arena_id)

    def _texts(self, rows: BatchRows, indexes: Sequence[ShardIndex], files: Sequence[ShardFile]) -> dict[str, Text]:
        if not self._options.keys:
            return {}
        urls = shard_urls([file.ref.url for file in files], rows.shard_no)
        return {"__key__": keys(indexes, rows.shard_no, rows.ordinal), "__url__": urls}

    def _parts(self, rows: BatchRows, indexes: Sequence[ShardIndex]) -> list[_Part]:
        """Return the rows of each recipe, and where their fields lie."""
        distinct = self._recipes.distinct
        if len(distinct) == 1:
            gathered = gather(indexes, rows.shard_no, rows.ordinal, distinct[0])
            return [_Part(distinct[0], None, rows.shard_no, gathered)]
        return [
            _Part(recipe, at, rows.shard_no[at], gather(indexes, rows.shard_no[at], rows.ordinal[at], recipe))
            for recipe, at in self._recipes.rows(rows.shards, rows.shard_no)
        ]

    async def _shapes(
        self, row_count: int, files: Sequence[ShardFile], parts: Sequence[_Part]
    ) -> dict[str, NDArray[np.int64]]:
        """Return the decoded sizes of all fields that are not DENSE: known from the index, or measured."""
        shapes: dict[str, NDArray[np.int64]] = {}
        for number, spec in enumerate(self._kinds):
            if spec.kind is FieldKind.DENSE:
                continue
            found = [await self._measured(files, part, number) for part in parts]
            if parts[0].at is None:
                shapes[spec.name] = found[0]
                continue
            whole = shapes[spec.name] = np.empty((row_count, max(1, spec.ndim)), np.int64)
            for part, sizes in zip(parts, found, strict=True):
                whole[part.at] = sizes.reshape(-1, whole.shape[1])
        return shapes

    async def _measured(self, files: Sequence[ShardFile], part: _Part, number: int) -> NDArray[np.int64]:
        recipe, span = part.recipe[number], part.gathered.spans[number]
        if not needs_measure(recipe):
            return span.size // np.dtype(self._kinds[number].dtype).itemsize  # -1, of one that is missing, stays so
        return await self._stages.pool.measure(
            files, FieldWork(recipe, part.shard_no, span.start, span.size, span.start)
        )

    async def _decode(self, work: _Work, layout: Layout, arena_id: int, slot_at: int, view: memoryview) -> BatchReady:
        rows = work.rows
        tasks = [DecodeTask(work.files, arena_id, slot_at, *self._fields(work, part, layout)) for part in work.parts]
        if len(tasks) == 1:
            results = [await self._stages.pool.decode(tasks[0])]
        else:
            results = await run_all(self._stages.pool.decode(task) for task in tasks)
        write_tables(view, layout, work.texts)
        bad = _bad_rows(work.parts, results)
        self._charge(rows, work.indexes, work.files, bad)
        if work.packed is not None:
            work.packed.finish(view, layout, [one.row for one in bad])
            return BatchReady(rows.cursor, layout.rows, layout.regions, layout.size_bytes, len(bad))
        return _ready(rows, layout, bad, view)

    def _fields(self, work: _Work, part: _Part, layout: Layout) -> tuple[tuple[FieldWork, ...], NDArray[np.uint64]]:
        """Return what is to be decoded of a part's rows, and their seeds."""
        fields = tuple(
            FieldWork(
                recipe,
                part.shard_no,
                span.start,
                span.size,
                part.of(layout.place(recipe.name).out_at),
                None
                if spec.kind is FieldKind.DENSE
                else part.of(work.shapes[spec.name].reshape(len(work.rows.ordinal), -1)),
            )
            for recipe, spec, span in zip(part.recipe, self._kinds, part.gathered.spans, strict=True)
        )
        return fields, part.of(work.rows.seeds)

    async def _fill_oversize(self, work: _Work, layout: Layout) -> BatchReady:
        """Decode a batch larger than its slot into memory of its own; it then travels inline."""
        if layout.size_bytes > _OVERSIZE_MAX_BYTES:
            raise ResourceExhausted(
                f"expected a batch of at most {format_size(_OVERSIZE_MAX_BYTES)}, got {format_size(layout.size_bytes)}",
                object=work.files[0].ref.url,
                hint="lower batch_size",
                stage="batch",
            )
        arena = await Arena.create(1, layout.size_bytes)
        arena_id = -id(arena)
        slot = arena.take()
        assert slot is not None
        try:
            self._stages.pool.attach(arena_id, arena.fd, arena.size_bytes)
            ready = await self._decode(work, layout, arena_id, 0, arena.view(slot))
            return replace(ready, oversize=arena.view(slot)[: layout.size_bytes])
        finally:
            self._stages.pool.detach(arena_id)
            arena.close()  # what was mapped lives as long as the batch's view of it

    def _charge(
        self, rows: BatchRows, indexes: Sequence[ShardIndex], files: Sequence[ShardFile], bad: Sequence[BadRow]
    ) -> None:
        """Hold a batch's bad samples against the budget of the epoch."""
        failures = []
        for row in bad:
            number = int(rows.shard_no[row.row])
            key = indexes[number].key(int(rows.ordinal[row.row]))
            failures.append(Failure(files[number].ref.url, key, row.field, row.reason))
        self._failures.charge(rows.cursor, failures)
        for failure in failures:
            _log.warning(
                "bad sample dropped", url=failure.url, key=failure.key, field=failure.field, reason=failure.reason
            )


def _ready(rows: BatchRows, layout: Layout, bad: Sequence[BadRow], view: memoryview) -> BatchReady:
    """Return a batch that lies in ``view``, without its bad rows."""
    again = b"" if rows.again is None else rows.again.tobytes()
    if bad:
        dropped = {one.row for one in bad}
        layout = drop_rows(view, layout, sorted(dropped))
        again = bytes(flag for row, flag in enumerate(again) if row not in dropped)
    return BatchReady(rows.cursor, layout.rows, layout.regions, layout.size_bytes, len(bad), again=again)


def _bad_rows(parts: Sequence[_Part], results: Sequence[DecodeResult]) -> list[BadRow]:
    """Return the bad rows of a batch, in order."""
    return sorted(
        bad if part.at is None else replace(bad, row=int(part.at[bad.row]))
        for part, result in zip(parts, results, strict=True)
        for bad in result.bad
    )
