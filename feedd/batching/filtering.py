"""Which samples of a batch meet the recipe's filters, before anything of them is decoded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.batching.gather import gather
from feedd.recipe.filters import within
from feedd.values import FieldRecipe
from feedd.workers.work import FieldWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.batching.batch_recipes import Recipe
    from feedd.ordering.batch_plan import BatchRows
    from feedd.recipe.filters import Filter
    from feedd.values import ShardFile, ShardIndex
    from feedd.workers.worker_pool import DecodePool

_MISSING = "expected the field, which the samples are filtered by, got a sample without it"
_UNREADABLE = {
    "image": "expected an image's header, which the samples are filtered by, got none that can be read",
    "float": "expected a number, which the samples are filtered by, got none",
    "str": "expected text at the key, which the samples are filtered by, got none",
    "json": "expected a value at the key, which the samples are filtered by, got none",
}
_INSIDE = frozenset({"str", "json"})
"""Codecs that read values inside documents, whose size is not the stored one."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A batch without what was filtered.

    Attributes:
        rows: what is left.
        bad: by row of what is left, the field and the reason why a sample could not be judged.
        filtered: samples that were left out.
    """

    rows: BatchRows
    bad: dict[int, tuple[str, str]]
    filtered: int


@dataclass(slots=True)
class _Verdict:
    """What is known of each row.

    Attributes:
        fits: bool[rows], meets all conditions so far.
        bad: by row.
    """

    fits: NDArray[np.bool_]
    bad: dict[int, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Where the samples of a batch lie."""

    rows: BatchRows
    indexes: Sequence[ShardIndex]
    files: Sequence[ShardFile]


class Filters:
    """The filters of one session."""

    def __init__(self, filters: Sequence[Filter], recipes: Sequence[Recipe], pool: DecodePool) -> None:
        decoded = [field for recipe in recipes for field in recipe]
        # What the index tells goes first: nothing need be read of the samples it leaves out.
        judged = [(one, one.sources(decoded), one.readers(decoded)) for one in filters]
        self._filters = sorted(judged, key=lambda one: bool(one[2]))
        self._pool = pool

    async def judge(self, rows: BatchRows, indexes: Sequence[ShardIndex], files: Sequence[ShardFile]) -> Judged:
        """Return the batch without the rows that do not meet all filters.

        A row that cannot be judged, because it lacks the field or the field cannot be read, is bad and not filtered.

        Raises:
            CacheUnavailable: a file is gone or too short.
        """
        verdict = _Verdict(np.ones(len(rows.ordinal), np.bool_), {})
        for one, sources, readers in self._filters:
            await self._apply(one, sources, readers, _Batch(rows, indexes, files), verdict)
        return _left(rows, verdict)

    async def _apply(
        self,
        one: Filter,
        sources: tuple[str, ...],
        readers: tuple[FieldRecipe, ...],
        batch: _Batch,
        verdict: _Verdict,
    ) -> None:
        rows, indexes = batch.rows, batch.indexes
        missing = np.ones(len(rows.ordinal), np.bool_)
        for stored in _ways_of_storing(indexes, sources):
            recipe = FieldRecipe(one.field, sources, "bytes", stored=stored)
            (span,) = gather(indexes, rows.shard_no, rows.ordinal, [recipe]).spans
            missing &= span.size < 0
            if not any(reader.codec in _INSIDE for reader in readers):
                verdict.fits &= (span.size < 0) | within(span.size, one.bytes)
            for reader in readers:
                at = np.flatnonzero((span.size >= 0) & verdict.fits)
                start = span.start[at]
                work = FieldWork(replace(reader, stored=stored), rows.shard_no[at], start, span.size[at], start)
                fits, known = await self._read(one, batch.files, work)
                verdict.fits[at] = fits | ~known  # what is bad stays, to be counted as that
                verdict.bad |= dict.fromkeys(at[~known].tolist(), (one.field, _UNREADABLE[reader.codec]))
        for row in np.flatnonzero(missing).tolist():
            verdict.bad.setdefault(row, (one.field, _MISSING))

    async def _read(
        self, one: Filter, files: Sequence[ShardFile], work: FieldWork
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows meet what must be read of them, and which of them could be read."""
        if work.recipe.codec == "float":
            values, known = await self._pool.numbers(files, work)
            return within(values, one.number), known
        shapes = await self._pool.measure(files, work)
        if work.recipe.codec in _INSIDE:
            return within(shapes[:, 0], one.bytes), shapes[:, 0] >= 0
        fits = within(shapes[:, 0], one.height) & within(shapes[:, 1], one.width)
        return fits, shapes[:, 0] >= 0


def _ways_of_storing(indexes: Sequence[ShardIndex], sources: Sequence[str]) -> set[str]:
    """Return how the shards of a batch store a field: nearly always all in one way."""
    return {
        index.stored_as(index.fields.index(source)) for index in indexes for source in sources if source in index.fields
    }


def _left(rows: BatchRows, verdict: _Verdict) -> Judged:
    keep = np.flatnonzero(verdict.fits)
    filtered = len(verdict.fits) - len(keep)
    if filtered:
        columns: dict[str, Any] = {name: getattr(rows, name)[keep] for name in ("shard_no", "ordinal", "seeds")}
        rows = replace(rows, **columns, again=None if rows.again is None else rows.again[keep])
    bad = {new: verdict.bad[old] for new, old in enumerate(keep.tolist()) if old in verdict.bad}
    return Judged(rows, bad, filtered)
