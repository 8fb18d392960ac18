"""Assembles the batches of a slot: filter, gather spans, lay out, decode, write tables, handle bad samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.batching.bad_samples import OVERSIZE_MAX_BYTES, BadSampleHandler, BadSampleOptions, failure_of
from feedd.batching.filtering import Filters
from feedd.batching.gather import gather, keys, shard_urls
from feedd.batching.packing import Packed
from feedd.batching.pad_masks import own_lengths, write_lengths, write_mask
from feedd.batching.plain_batches import PLAIN_BYTES_MAX, PlainRuns, are_plain
from feedd.batching.precomputed_values import PrecomputedValues
from feedd.batching.recipe_rows import Part, copy_precomputed, shares
from feedd.batching.slot_layout import ALIGN_BYTES, lay_out, write_tables
from feedd.catalog.lost_objects import bad_rows
from feedd.errors import ResourceExhausted
from feedd.flow.arena import Arena
from feedd.flow.tasks import off_loop, run_all
from feedd.metrics import DECODE_SAMPLES, PIPELINE_FILTERED
from feedd.recipe.packed_rows import as_long
from feedd.recipe.padding import LENGTH_SUFFIX, MASK_SUFFIX, mask_ndim
from feedd.recipe.recipe import keeps, needs_measure
from feedd.units import format_size
from feedd.values import BatchReady, FieldKind, TensorSpec
from feedd.workers.work import DecodeTask, FieldWork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.batching.batch_recipes import Recipes
    from feedd.batching.gather import Text
    from feedd.batching.recipe_rows import WorkerRows
    from feedd.batching.slot_layout import Layout
    from feedd.catalog.stages import Stages
    from feedd.flow.memory import OwnerBudget
    from feedd.ordering.batch_plan import BatchRows, RunRows
    from feedd.recipe.bad_sample_policy import Failure
    from feedd.recipe.filters import Filter
    from feedd.shard_index import ShardIndex
    from feedd.values import Cursor, ShardFile, SlotRef
    from feedd.workers.work import BadRow, DecodeResult

KEY_SPECS = (TensorSpec("__key__", FieldKind.TEXT, "uint8"), TensorSpec("__url__", FieldKind.TEXT, "uint8"))
_FITTED_BYTES: Final = 1 << 10  # fitting one document takes as long as a pass over so many bytes: a microsecond


@dataclass(frozen=True, slots=True)
class AssemblerOptions:
    """Options of an assembler.

    Attributes:
        arena_id: the session's arena, as the decode pool knows it.
        keys: add ``__key__`` and ``__url__``.
        bad_sample_handler: how bad samples are handled.
        filters: conditions that samples must meet.
        run_batches: batches of each slot.
        budget: bounds the memory of batches larger than their slots. Its owner is charged for the workers' time.
    """

    arena_id: int
    keys: bool
    bad_sample_handler: BadSampleOptions
    budget: OwnerBudget
    filters: tuple[Filter, ...] = ()
    run_batches: int = 1


@dataclass(frozen=True, slots=True)
class _Work:
    """A batch ready to be decoded.

    Attributes:
        shapes: decoded shapes, by name, of fields without a fixed shape.
        dims: shape of every row of padded fields and of their masks.
        texts: texts of fields that need no decoding.
        bad: field and reason, by row, of rows that are known to be bad before decoding.
        filtered: number of samples that filters left out.
        packed: places of samples in rows that hold several; None: each sample is a row.
        early: the batch was not requested yet.
    """

    rows: BatchRows
    indexes: Sequence[ShardIndex]
    files: tuple[ShardFile, ...]
    parts: Sequence[Part]
    shapes: Mapping[str, NDArray[np.int64]]
    dims: Mapping[str, tuple[int, ...]]
    texts: Mapping[str, Text]
    bad: Mapping[int, tuple[str, str]]
    filtered: int
    packed: Packed | None = None
    early: bool = False


class Assembler:
    """Fills slots of one session's arena. Any number of slots may be under way.

    Attributes:
        run_batches: batches of each slot, above 1 only if all fields are plain copies of numbers.
        batch_bytes: bytes from one batch of a slot to the next; 0 if a slot holds one.
    """

    def __init__(self, stages: Stages, recipes: Recipes, arena: Arena, options: AssemblerOptions) -> None:
        self._stages = stages
        self._recipes = recipes
        self._kinds = recipes.kinds
        self._sources = frozenset(source for one in recipes.distinct for field in one for source in field.sources)
        self._pads = {spec.name: pad for spec, pad in zip(self._kinds, recipes.pads, strict=True) if pad is not None}
        self._specs = (*recipes.specs, *(KEY_SPECS if options.keys else ()))
        self._masked = [name for name, pad in self._pads.items() if pad.mask]
        self._arena = arena
        self._options = options
        self._packing = recipes.packing
        self._filters = Filters(options.filters, recipes.distinct, stages.pool) if options.filters else None
        self._bad_sample_handler = handler = BadSampleHandler(options.bad_sample_handler)
        self.run_batches = runs = options.run_batches
        self.batch_bytes = arena.slot_bytes // runs // ALIGN_BYTES * ALIGN_BYTES if runs > 1 else 0
        self._plain: PlainRuns | None = None
        small = runs > 1 or arena.slot_bytes <= PLAIN_BYTES_MAX
        if small and are_plain(recipes) and not (options.keys or options.filters):
            self._plain = PlainRuns(stages, recipes, arena, options.arena_id, handler, self.batch_bytes)

    async def fill(
        self,
        run: RunRows,
        slot: SlotRef,
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        *,
        early: bool = False,
        first: int = 0,
    ) -> list[tuple[BatchReady, int]]:
        """Decode a run of batches, whose shards are pinned, into a slot.

        Args:
            run: up to ``run_batches`` batches.
            slot: the slot.
            indexes: one for each shard of the run.
            files: one for each shard of the run.
            early: the batches were not requested yet, and perhaps never will be.
            first: the place of the run's first batch in the slot.

        Returns:
            The batches, each with the number of batches for which it stands: those that follow it differ from it in
            their steps only.

        Raises:
            BadSample: a sample beyond the failure budget; names shard, key and reason. An early batch raises at its
                first bad sample, which is logged and counted when the batch is requested.
            ResourceExhausted: a batch too large for memory.
        """
        await self._arena.allocated(slot)
        if self._plain is not None:
            return await self._plain.fill(run, slot, indexes, files, early=early, first=first)
        return [(await self._fill_one(run.batch(), slot, indexes, files, early=early), 1)]

    def check_failures(self, at: Cursor) -> None:
        """Check that the epoch's steps up to ``at`` are within the failure budget.

        Raises:
            BadSample: they are not; a step may turn out bad after later steps were delivered.
        """
        self._bad_sample_handler.check(at)

    def close(self) -> None:
        """Take the arena from the workers."""
        self._stages.pool.detach(self._options.arena_id)

    async def _fill_one(
        self,
        rows: BatchRows,
        slot: SlotRef,
        indexes: Sequence[ShardIndex],
        files: tuple[ShardFile, ...],
        *,
        early: bool,
    ) -> BatchReady:
        indexes, lost = await self._stages.lost.without(indexes, files)
        filtered, bad = 0, {}
        if self._filters is not None:
            judged = await self._filters.judge(rows, indexes, files)
            rows, bad, filtered = judged.rows, judged.bad, judged.filtered
        bad |= bad_rows(lost, rows.shard_no, rows.ordinal, self._sources)
        if filtered and not early:
            self._stages.recorder.count(PIPELINE_FILTERED, filtered)
        parts = self._parts(rows, indexes)
        for part in parts:
            part.blank(bad)
        texts = _texts(rows, indexes, files) if self._options.keys else {}
        shapes = await self._shapes(len(rows.ordinal), files, parts)
        packed = await self._packed(shapes, bad)
        if packed is not None:
            for part in parts:
                part.blank(bad)
        dims = self._dims(shapes)
        work = _Work(rows, indexes, files, parts, shapes, dims, texts, bad, filtered, packed, early)
        lengths = {**shapes, **{name: text.lengths for name, text in texts.items()}}
        layout = packed.layout(self._specs) if packed else lay_out(self._specs, len(rows.ordinal), lengths, dims)
        if layout.size_bytes > self._arena.slot_bytes:
            return await self._fill_oversize(work, layout)
        at = slot.index * self._arena.slot_bytes
        return await self._decode(work, layout, self._options.arena_id, at, self._arena.view(slot))

    def _parts(self, rows: BatchRows, indexes: Sequence[ShardIndex]) -> list[Part]:
        """Return the rows of each recipe, with the spans of their fields."""
        distinct = self._recipes.distinct
        if len(distinct) == 1:
            spans = gather(indexes, rows.shard_no, rows.ordinal, distinct[0])
            return [Part(distinct[0], None, rows.shard_no, spans)]
        return [
            Part(recipe, at, rows.shard_no[at], gather(indexes, rows.shard_no[at], rows.ordinal[at], recipe))
            for recipe, at in self._recipes.rows(rows.shards, rows.shard_no)
        ]

    async def _shapes(
        self, row_count: int, files: Sequence[ShardFile], parts: Sequence[Part]
    ) -> dict[str, NDArray[np.int64]]:
        """Return the decoded sizes of all fields that are not DENSE, from the index or from measuring."""
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

    async def _measured(self, files: Sequence[ShardFile], part: Part, number: int) -> NDArray[np.int64]:
        recipe, span = part.recipe[number], part.spans[number]
        if not needs_measure(recipe):
            return span.size // np.dtype(self._kinds[number].dtype).itemsize  # stays -1 if the field is missing
        work = FieldWork(recipe, part.shard_no, span.start, span.size, span.start)
        if not keeps(recipe):
            return await self._stages.pool.measure(files, work)
        shapes, pieces = await self._stages.pool.produce(files, work)
        part.keeps_values[number] = PrecomputedValues(shapes[:, 0], pieces)
        return shapes

    def _dims(self, shapes: Mapping[str, NDArray[np.int64]]) -> dict[str, tuple[int, ...]]:
        """Return the row shapes of padded fields and of their masks."""
        dims: dict[str, tuple[int, ...]] = {}
        for spec in self._kinds:
            pad = self._pads.get(spec.name)
            if pad is not None:
                its = shapes[spec.name]
                dims[spec.name] = pad.dims(its.reshape(len(its), spec.ndim))
                dims[spec.name + MASK_SUFFIX] = dims[spec.name][: mask_ndim(spec.ndim)]
        return dims

    async def _packed(self, shapes: Mapping[str, NDArray[np.int64]], bad: dict[int, tuple[str, str]]) -> Packed | None:
        """Return the places of packed samples, or None without packing; add samples of unequal lengths to ``bad``."""
        packing = self._packing
        if packing is None:
            return None
        names = [spec.name for spec in self._kinds]
        sizes = [shapes[name].reshape(-1) for name in names]
        uneven = as_long(names, sizes)
        bad |= {row: what for row, what in uneven.items() if row not in bad}
        lengths = np.minimum.reduce(sizes)  # negative if any field is bad
        lengths[list(uneven)] = -1
        work_bytes = len(lengths) * _FITTED_BYTES if packing.how == "bins" else lengths.nbytes
        return await off_loop(lambda: Packed.of(lengths, packing), work_bytes)

    def _write_side_regions(self, view: memoryview, layout: Layout, work: _Work) -> None:
        """Write offsets, shapes, texts, and the masks and lengths of padded fields."""
        write_tables(view, layout, work.texts)
        for name, pad in self._pads.items():
            dims, shapes = work.dims[name], work.shapes[name]
            own = own_lengths(shapes.reshape(layout.rows, len(dims)), dims)
            if pad.mask:
                write_mask(view, layout, name + MASK_SUFFIX, own)
            if pad.lengths:
                write_lengths(view, layout, name + LENGTH_SUFFIX, own)

    async def _decode(self, work: _Work, layout: Layout, arena_id: int, slot_at: int, view: memoryview) -> BatchReady:
        rows = work.rows
        divided = [
            shares(part, *self._fields(work, part, layout), packed=work.packed is not None) for part in work.parts
        ]
        kept_bytes = sum(
            piece.values.nbytes for part in work.parts for one in part.keeps_values.values() for piece in one.pieces
        )
        if kept_bytes:
            await off_loop(partial(copy_precomputed, view, layout, work.parts, divided, self._pads), layout.size_bytes)
        decoded = [share for one in divided for share in one.decoded]
        tasks = [DecodeTask(work.files, arena_id, slot_at, share.fields, share.seeds) for share in decoded]
        if len(tasks) == 1:
            results = [await self._stages.pool.decode(tasks[0])]
        else:
            results = await run_all(self._stages.pool.decode(task) for task in tasks)
        self._stages.recorder.count(DECODE_SAMPLES, sum(one.done for one in divided))  # the pool counts the others
        masks_bytes = sum(layout.field(name + MASK_SUFFIX).region.values_bytes for name in self._masked)
        await off_loop(lambda: self._write_side_regions(view, layout, work), masks_bytes)
        failures: Sequence[Failure] = [_failure(work, bad) for bad in _bad_rows(decoded, results)]
        failures = await self._stages.lost.with_object_names(failures, work.files) if failures else failures
        if not work.early:
            await self._bad_sample_handler.charge(rows.cursor, failures)
        elif failures:
            raise failures[0].error("reported again when the batch is requested")
        ready = BatchReady(rows.cursor, layout.rows, layout.regions, layout.size_bytes, filtered=work.filtered)
        if work.packed is not None:  # rows are not samples, so no row can replace another
            finish = partial(work.packed.finish, view, layout, [one.row for one in failures])
            await off_loop(finish, layout.size_bytes)
            return replace(ready, bad_samples=len(failures), samples=len(rows.ordinal) - len(failures))
        ready = replace(ready, again=b"" if rows.again is None else rows.again.tobytes())
        return await self._bad_sample_handler.applied(view, layout, ready, failures) if failures else ready

    def _fields(self, work: _Work, part: Part, layout: Layout) -> tuple[tuple[FieldWork, ...], NDArray[np.uint64]]:
        """Return the fields to decode for a part's rows, and the rows' seeds."""
        fields = tuple(
            FieldWork(
                recipe,
                part.shard_no,
                span.start,
                span.size,
                part.of(layout.field(recipe.name).out_at),
                None
                if spec.kind is FieldKind.DENSE
                else part.of(work.shapes[spec.name].reshape(len(work.rows.ordinal), max(1, spec.ndim))),
                work.dims.get(spec.name, ()),
            )
            for recipe, spec, span in zip(part.recipe, self._kinds, part.spans, strict=True)
        )
        return fields, part.of(work.rows.seeds)

    async def _fill_oversize(self, work: _Work, layout: Layout) -> BatchReady:
        """Decode a batch larger than its slot into memory of its own; the batch is then sent inline."""
        if layout.size_bytes > OVERSIZE_MAX_BYTES:
            raise ResourceExhausted(
                f"expected a batch of at most {format_size(OVERSIZE_MAX_BYTES)}, got {format_size(layout.size_bytes)}",
                object=work.files[0].ref.url,
                hint="lower batch_size",
                stage="batch",
            )
        arena = await Arena.create_when_room(layout.size_bytes, self._options.budget)
        arena_id = -id(arena)
        slot = arena.take()
        assert slot is not None
        try:
            self._stages.pool.attach(arena_id, arena.fd, arena.size_bytes, self._options.budget.owner)
            ready = await self._decode(work, layout, arena_id, 0, arena.view(slot))
            if ready.oversize is not None:
                return ready
            return replace(ready, oversize=arena.outliving_view(slot)[: ready.size_bytes])
        finally:
            self._stages.pool.detach(arena_id)
            arena.close()  # the mapping lives as long as the batch's view


def _failure(work: _Work, bad: BadRow) -> Failure:
    """Return why a row is bad; a reason known before decoding takes precedence."""
    known = work.bad.get(bad.row)
    if known is not None:
        bad = replace(bad, field=known[0], reason=known[1])
    recipe = [field for part in work.parts for field in part.recipe]
    return failure_of(work.rows, work.indexes, work.files, recipe, bad, told=known is not None)


def _bad_rows(decoded: Sequence[WorkerRows], results: Sequence[DecodeResult]) -> list[BadRow]:
    """Return the bad rows of a batch in the order of their numbers."""
    return sorted(
        bad if share.at is None else replace(bad, row=int(share.at[bad.row]))
        for share, result in zip(decoded, results, strict=True)
        for bad in result.bad
    )


def _texts(rows: BatchRows, indexes: Sequence[ShardIndex], files: Sequence[ShardFile]) -> dict[str, Text]:
    urls = shard_urls([file.ref.url for file in files], rows.shard_no)
    return {"__key__": keys(indexes, rows.shard_no, rows.ordinal), "__url__": urls}
