"""Applies a recipe's filters to the samples of a batch before decoding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.batching.gather import gather
from feedd.recipe.filters import INSIDE, within
from feedd.values import FieldRecipe
from feedd.workers.work import FieldWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.batching.batch_recipes import Recipe
    from feedd.ordering.batch_plan import BatchRows
    from feedd.recipe.filters import Filter
    from feedd.shard_index import ShardIndex
    from feedd.values import ShardFile
    from feedd.workers.pool import DecodePool

_MISSING = "the sample lacks this field, which a filter needs"
_UNREADABLE = {
    "image": "a filter needs the image's size, but its header is not readable",
    "float": "a filter needs a number, but the value is not a number",
    "str": "a filter needs text at the key, but there is none",
    "json": "a filter needs a value at the key, but there is none",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A batch without filtered samples.

    Attributes:
        rows: the remaining rows.
        bad: by number of a remaining row, the field and the reason why the filter could not be applied.
        filtered: number of samples that were left out.
    """

    rows: BatchRows
    bad: dict[int, tuple[str, str]]
    filtered: int


@dataclass(slots=True)
class _Verdict:
    """The result of the filters so far.

    Attributes:
        fits: bool[rows], whether the row meets all conditions so far.
        bad: field and reason, by row.
    """

    fits: NDArray[np.bool_]
    bad: dict[int, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch, with the indexes and files of its shards."""

    rows: BatchRows
    indexes: Sequence[ShardIndex]
    files: Sequence[ShardFile]


class Filters:
    """The filters of one session."""

    def __init__(self, filters: Sequence[Filter], recipes: Sequence[Recipe], pool: DecodePool) -> None:
        decoded = [field for recipe in recipes for field in recipe]
        # Filters that need only the index go first, so that samples which they leave out are never read.
        judged = [(one, one.sources(decoded), one.readers(decoded)) for one in filters]
        self._filters = sorted(judged, key=lambda one: bool(one[2]))
        self._pool = pool

    async def judge(self, rows: BatchRows, indexes: Sequence[ShardIndex], files: Sequence[ShardFile]) -> Judged:
        """Return the batch without the rows that do not meet all filters.

        A row that lacks the field, or whose field cannot be read, is bad and not filtered.

        Raises:
            CacheUnavailable: a file is missing or too short.
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
            recipe = FieldRecipe(one.field, sources, "bytes", encoding=stored)
            (span,) = gather(indexes, rows.shard_no, rows.ordinal, [recipe])
            missing &= span.size < 0
            stored_readers = one.readers_of(readers, sources, stored)
            if not any(reader.codec in INSIDE for reader in stored_readers):
                verdict.fits &= (span.size < 0) | within(span.size, one.bytes)
            for reader in stored_readers:
                at = np.flatnonzero((span.size >= 0) & verdict.fits)
                start = span.start[at]
                work = FieldWork(reader, rows.shard_no[at], start, span.size[at], start)
                fits, known = await self._read(one, batch.files, work)
                verdict.fits[at] = fits | ~known  # bad rows stay, to be counted as bad
                verdict.bad |= dict.fromkeys(at[~known].tolist(), (one.field, _UNREADABLE[reader.codec]))
        for row in np.flatnonzero(missing).tolist():
            verdict.bad.setdefault(row, (one.field, _MISSING))

    async def _read(
        self, one: Filter, files: Sequence[ShardFile], work: FieldWork
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows meet a condition that reads their data, and which rows were readable."""
        if work.recipe.codec == "float":
            values, known = await self._pool.numbers(files, work)
            return within(values, one.number), known
        shapes = await self._pool.measure(files, work)
        if work.recipe.codec in INSIDE:
            return within(shapes[:, 0], one.bytes), shapes[:, 0] >= 0
        fits = within(shapes[:, 0], one.height) & within(shapes[:, 1], one.width)
        return fits, shapes[:, 0] >= 0


def _ways_of_storing(indexes: Sequence[ShardIndex], sources: Sequence[str]) -> set[str]:
    """Return a field's encodings in the shards of a batch: nearly always a single one."""
    return {
        index.encoding_of(index.fields.index(source))
        for index in indexes
        for source in sources
        if source in index.fields
    }


def _left(rows: BatchRows, verdict: _Verdict) -> Judged:
    keep = np.flatnonzero(verdict.fits)
    filtered = len(verdict.fits) - len(keep)
    if filtered:
        columns: dict[str, Any] = {name: getattr(rows, name)[keep] for name in ("shard_no", "ordinal", "seeds")}
        rows = replace(rows, **columns, again=None if rows.again is None else rows.again[keep])
    bad = {new: verdict.bad[old] for new, old in enumerate(keep.tolist()) if old in verdict.bad}
    return Judged(rows, bad, filtered)
