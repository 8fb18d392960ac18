"""The samples of a run of batches, first as a plan, then as shards and rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np

from feedd.ordering.sorted_windows import widened
from feedd.values import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from feedd.ordering.sorted_windows import WindowRows

_TABLE_LEAST = 1024


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of one batch.

    Attributes:
        cursor: position of this batch, with anchors that find it again.
        shards: int64[n], distinct shards (dataset indices) in order of first use.
        shard_no: int32[rows], index into ``shards``.
        ordinal: int64[rows], sample within its shard.
        seeds: uint64[rows], for augmentation.
        again: bool[rows], samples that this epoch repeats to fill a step; None: there are none.
        first_window: window of the first row.
        last_window: window of the last row.
    """

    cursor: Cursor
    shards: NDArray[np.int64]
    shard_no: NDArray[np.int32]
    ordinal: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    first_window: int
    last_window: int
    again: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The samples of a run: batches of successive steps of one stream, equally many in each; often a single batch.

    Attributes:
        cursor: position of the first batch; its anchors find the others as well.
        shard: int64[rows of all batches], dataset index of each row's shard.
        ordinal: int64[rows of all batches], sample within its shard.
        seeds: returns uint64[rows of all batches], for augmentation.
        first_window: window of the first row.
        last_window: window of the last row.
        again: bool[rows of all batches], see ``BatchRows``.
        count: number of batches.
        stride: steps from one batch to the next.
        first_rows_of: rows of each batch, if ``shard`` and ``ordinal`` have only the first row of each batch, because
            the others follow it in its shard; 0: they have every row.
    """

    cursor: Cursor
    shard: NDArray[np.int64]
    ordinal: NDArray[np.int64]
    seeds: Callable[[], NDArray[np.uint64]]
    first_window: int
    last_window: int
    again: NDArray[np.bool_] | None = None
    count: int = 1
    stride: int = 1
    first_rows_of: int = 0

    def __len__(self) -> int:
        return self.count

    @property
    def batch_rows(self) -> int:
        """Rows of each batch."""
        return self.first_rows_of or len(self.ordinal) // self.count

    @property
    def shards(self) -> list[int]:
        """The shards (dataset indices) that the run reads, ascending."""
        if _is_one_shard(self.shard):
            return [int(self.shard[0])]
        table = _Table.of(self.shard)
        distinct: list[int] = (np.unique(self.shard) if table is None else table.distinct).tolist()
        return distinct

    def by_row(self) -> RunPlan:
        """Return the same batches with a shard and an ordinal for each row."""
        rows = self.first_rows_of
        if not rows:
            return self
        every = self.shard[:1] if _is_one_shard(self.shard) else np.repeat(self.shard, rows)
        shard = np.broadcast_to(every, (self.count * rows,))
        return replace(self, shard=shard, ordinal=rows_from(self.ordinal, rows), first_rows_of=0)

    def batches(self) -> list[RunPlan]:
        """Return each batch as a run of its own."""
        if self.count == 1:
            return [self.by_row()]
        whole, rows, found = self.by_row(), self.batch_rows, []
        for number in range(self.count):
            part = slice(number * rows, (number + 1) * rows)
            cursor = Cursor(self.cursor.epoch, self.cursor.step + number * self.stride, self.cursor.anchors)
            columns = whole.shard[part], whole.ordinal[part], partial(_part_of, self.seeds, part)
            found.append(RunPlan(cursor, *columns, self.first_window, self.last_window))
        return found

    def by_shard(self) -> RunRows:
        """Return the run with its shards numbered, ascending."""
        if _is_one_shard(self.shard):
            return RunRows(self, [int(self.shard[0])], np.broadcast_to(np.int32(0), self.shard.shape))
        table = _Table.of(self.shard)
        if table is None:
            distinct, inverse = np.unique(self.shard, return_inverse=True)
            return RunRows(self, distinct.tolist(), inverse.astype(np.int32))
        numbers = np.cumsum(table.used, dtype=np.int32) - np.int32(1)
        return RunRows(self, table.distinct.tolist(), numbers[table.offsets])

    def rows(self) -> BatchRows:
        """Return the only batch, its shards in order of first use."""
        assert self.count == 1, f"{self.count} batches, not one"
        distinct, first, inverse = np.unique(self.shard, return_index=True, return_inverse=True)
        by_use = np.argsort(first, kind="stable")
        rank_of = np.empty_like(by_use)
        rank_of[by_use] = np.arange(by_use.shape[0])
        windows = (self.first_window, self.last_window)
        rows = rank_of[inverse].astype(np.int32), self.ordinal, self.seeds()
        return BatchRows(self.cursor, distinct[by_use], *rows, *windows, self.again)


@dataclass(frozen=True, slots=True)
class RunRows:
    """A run with its shards numbered.

    Attributes:
        plan: the run.
        shards: distinct shards (dataset indices) of all batches, ascending.
        shard_no: int32[elements of the plan], index into ``shards``.
    """

    plan: RunPlan
    shards: list[int]
    shard_no: NDArray[np.int32]

    @property
    def ordinal(self) -> NDArray[np.int64]:
        """int64[elements of the plan], sample within its shard."""
        return self.plan.ordinal

    def batch(self) -> BatchRows:
        """Return the only batch, with its shards in ascending order."""
        plan = self.plan
        assert plan.count == 1, f"{plan.count} batches, not one"
        windows = (plan.first_window, plan.last_window)
        shards = np.array(self.shards, np.int64)
        return BatchRows(plan.cursor, shards, self.shard_no, plan.ordinal, plan.seeds(), *windows, plan.again)


def rows_from(firsts: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Return int64[firsts * rows]: each number, and the ``rows - 1`` that follow it."""
    return (firsts[:, np.newaxis] + np.arange(rows)).reshape(-1)


def _part_of(seeds: Callable[[], NDArray[np.uint64]], part: slice) -> NDArray[np.uint64]:
    return seeds()[part]


def _is_one_shard(shard: NDArray[np.int64]) -> bool:
    """Whether all rows are known to have the same shard: those of a window of one shard."""
    return shard.strides == (0,)


@dataclass(frozen=True, slots=True)
class _Table:
    """A mark for each shard between the lowest and the highest one of some rows; faster than to sort the rows.

    Attributes:
        low: the lowest shard.
        offsets: int64[rows], the place of each row's shard in ``used``.
        used: bool[shards], whether a row has the shard.
    """

    low: int
    offsets: NDArray[np.int64]
    used: NDArray[np.bool_]

    @classmethod
    def of(cls, shard: NDArray[np.int64]) -> Self | None:
        """Return the table; None: it would be much larger than ``shard``, or there are no rows."""
        if not len(shard):
            return None
        low, high = int(shard.min()), int(shard.max())
        if high - low > max(shard.shape[0], _TABLE_LEAST):
            return None
        offsets = shard - low
        used = np.zeros(high - low + 1, np.bool_)
        used[offsets] = True
        return cls(low, offsets, used)

    @property
    def distinct(self) -> NDArray[np.int64]:
        """The shards that rows have, ascending."""
        return np.flatnonzero(self.used) + self.low


def rows_of_run(
    window: WindowRows, low: int, rows: int, spacing: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the shards and ordinals of as many of ``count`` batches as a window has whole.

    Args:
        window: shard and ordinal of each sample of the window, in order.
        low: the first batch's first sample, whose batch is whole.
        rows: samples of each batch.
        spacing: samples from one batch to the next; more than ``rows`` if other ranks' batches lie between.
        count: most batches.
    """
    count = whole_batches(len(window[0]) - low, rows, spacing, count)
    shard, ordinal = window
    if spacing == rows:
        return widened(shard, ordinal, slice(low, low + count * rows))
    places = (low + np.arange(count)[:, np.newaxis] * spacing + np.arange(rows)).reshape(-1)
    if not _is_one_shard(shard):
        return widened(shard, ordinal, places)
    return np.broadcast_to(shard[0], places.shape), ordinal[places].astype(np.int64, copy=False)


def whole_batches(samples: int, rows: int, spacing: int, count: int) -> int:
    """Return how many of ``count`` batches lie whole within some samples; the first one does.

    Args:
        samples: samples of the window from the first batch's first sample on.
        rows: see ``rows_of_run``.
        spacing: see ``rows_of_run``.
        count: most batches.
    """
    return min(count, (samples - rows) // spacing + 1)
