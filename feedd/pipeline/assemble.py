"""One batch into one slot: gather spans, lay out, decode, drop what the failure budget forgives, write the tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from feedd.batch.gather import gather, keys, shard_urls
from feedd.batch.layout import drop_rows, lay_out, write_tables
from feedd.decode.recipe import needs_measure
from feedd.decode.work import DecodeTask, FieldWork
from feedd.errors import ResourceExhausted
from feedd.flow.arena import Arena
from feedd.pipeline.failures import Failure, FailureBudget
from feedd.units import format_size
from feedd.values import BatchReady, FieldKind, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from feedd.batch.gather import Gathered, Text
    from feedd.batch.layout import Layout
    from feedd.decode.work import BadRow
    from feedd.pipeline.stages import Stages
    from feedd.plan.reader import BatchRows
    from feedd.values import Cursor, FieldRecipe, ShardFile, ShardIndex, SlotRef

KEY_SPECS = (TensorSpec("__key__", FieldKind.TEXT, "uint8"), TensorSpec("__url__", FieldKind.TEXT, "uint8"))
_OVERSIZE_MAX_BYTES = 2 << 30
_log = structlog.get_logger("feedd.pipeline")


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
class _Work:
    """A batch ready to be decoded."""

    rows: BatchRows
    indexes: Sequence[ShardIndex]
    files: tuple[ShardFile, ...]
    gathered: Gathered
    shapes: Mapping[str, NDArray[np.int64]]
    texts: Mapping[str, Text]


class Assembler:
    """Fills slots of one session's arena. Any number of batches may be under way."""

    def __init__(
        self,
        stages: Stages,
        recipes: Sequence[FieldRecipe],
        specs: Sequence[TensorSpec],
        arena: Arena,
        options: AssemblerOptions,
    ) -> None:
        self._stages = stages
        self._recipes = tuple(recipes)
        self._kinds = tuple(specs)
        self._specs = (*specs, *(KEY_SPECS if options.keys else ()))
        self._arena = arena
        self._options = options
        self._failures = FailureBudget(options.bad_samples_max)

    async def fill(
        self, rows: BatchRows, indexes: Sequence[ShardIndex], files: tuple[ShardFile, ...], slot: SlotRef
    ) -> BatchReady:
        """Decode a batch whose shards are pinned.

        Raises:
            BadSample: a sample beyond the failure budget; names shard, key and reason.
            ResourceExhausted: a batch too large for memory.
        """
        gathered = gather(indexes, rows.shard_no, rows.ordinal, self._recipes)
        texts = self._texts(rows, indexes, files)
        shapes = await self._shapes(rows, files, gathered)
        work = _Work(rows, indexes, files, gathered, shapes, texts)
        lengths = {**shapes, **{name: text.lengths for name, text in texts.items()}}
        layout = lay_out(self._specs, len(rows.ordinal), lengths)
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

    async def _shapes(
        self, rows: BatchRows, files: Sequence[ShardFile], gathered: Gathered
    ) -> dict[str, NDArray[np.int64]]:
        """Return the decoded sizes of all fields that are not DENSE: known from the index, or measured."""
        shapes: dict[str, NDArray[np.int64]] = {}
        for recipe, spec, span in zip(self._recipes, self._kinds, gathered.spans, strict=True):
            if spec.kind is FieldKind.DENSE:
                continue
            if needs_measure(recipe):
                work = FieldWork(recipe, rows.shard_no, span.start, span.size, span.start)
                shapes[spec.name] = await self._stages.pool.measure(files, work)
            else:
                shapes[spec.name] = span.size
        return shapes

    async def _decode(self, work: _Work, layout: Layout, arena_id: int, slot_at: int, view: memoryview) -> BatchReady:
        rows = work.rows
        fields = tuple(
            FieldWork(
                recipe,
                rows.shard_no,
                span.start,
                span.size,
                layout.place(recipe.name).out_at,
                None if spec.kind is FieldKind.DENSE else work.shapes[spec.name].reshape(len(rows.ordinal), -1),
            )
            for recipe, spec, span in zip(self._recipes, self._kinds, work.gathered.spans, strict=True)
        )
        result = await self._stages.pool.decode(DecodeTask(work.files, arena_id, slot_at, fields, rows.seeds))
        write_tables(view, layout, work.texts)
        self._charge(work, result.bad)
        again = b"" if rows.again is None else rows.again.tobytes()
        if result.bad:
            bad = {bad.row for bad in result.bad}
            layout = drop_rows(view, layout, sorted(bad))
            again = bytes(flag for row, flag in enumerate(again) if row not in bad)
        return BatchReady(rows.cursor, layout.rows, layout.regions, layout.size_bytes, len(result.bad), again=again)

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

    def _charge(self, work: _Work, bad: Sequence[BadRow]) -> None:
        """Hold a batch's bad samples against the budget of the epoch."""
        failures = []
        for row in bad:
            number = int(work.rows.shard_no[row.row])
            key = work.indexes[number].key(int(work.rows.ordinal[row.row]))
            failures.append(Failure(work.files[number].ref.url, key, row.field, row.reason))
        self._failures.charge(work.rows.cursor, failures)
        for failure in failures:
            _log.warning(
                "bad sample dropped", url=failure.url, key=failure.key, field=failure.field, reason=failure.reason
            )
