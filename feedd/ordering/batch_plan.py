"""The samples of batches, first as a plan, then as shards and rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from feedd.ordering.sorted_windows import widened
from feedd.values import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
class BatchPlan:
    """The samples of one batch, not grouped by shard yet; grouping several batches at once is less work.

    Attributes:
        cursor: see ``BatchRows``.
        shard: int64[rows], dataset index of each row's shard.
        ordinal: int64[rows], sample within its shard.
        seeds: returns uint64[rows], for augmentation.
        first_window: window of the first row.
        last_window: window of the last row.
        again: see ``BatchRows``.
    """

    cursor: Cursor
    shard: NDArray[np.int64]
    ordinal: NDArray[np.int64]
    seeds: Callable[[], NDArray[np.uint64]]
    first_window: int
    last_window: int
    again: NDArray[np.bool_] | None = None

    def rows(self) -> BatchRows:
        """Return the batch, its shards in order of first use."""
        windows = (self.first_window, self.last_window)
        return batch_rows(self.cursor, self.shard, self.ordinal, self.seeds(), windows, self.again)


def batch_rows(
    cursor: Cursor,
    shard: NDArray[np.int64],
    ordinal: NDArray[np.int64],
    its_seeds: NDArray[np.uint64],
    windows: tuple[int, int],
    again: NDArray[np.bool_] | None = None,
) -> BatchRows:
    """Return the batch of these samples, its shards in order of first use.

    Args:
        cursor: position of the batch.
        shard: int64[rows], dataset indices.
        ordinal: int64[rows], sample within its shard.
        its_seeds: uint64[rows], for augmentation.
        windows: the first and the last window that the batch reads.
        again: bool[rows], see ``BatchRows``.
    """
    distinct, first, inverse = np.unique(shard, return_index=True, return_inverse=True)
    by_use = np.argsort(first, kind="stable")
    rank_of = np.empty_like(by_use)
    rank_of[by_use] = np.arange(by_use.shape[0])
    shard_no = rank_of[inverse].astype(np.int32)
    return BatchRows(cursor, distinct[by_use], shard_no, ordinal, its_seeds, *windows, again)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The samples of several successive batches of one window, equally many in each, none of which comes twice.

    Attributes:
        cursor: of the first batch; its anchors find the others as well.
        shard: int64[batches * rows], dataset index of each row's shard.
        ordinal: int64[batches * rows], sample within its shard.
        rows: rows of each batch.
        window: the window.
        seeds: returns uint64[n], for augmentation, of rows with these shards and ordinals.
    """

    cursor: Cursor
    shard: NDArray[np.int64]
    ordinal: NDArray[np.int64]
    rows: int
    window: int
    seeds: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.uint64]]

    def __len__(self) -> int:
        return len(self.shard) // self.rows

    def plans(self) -> list[BatchPlan]:
        """Return the batches, to make them one by one."""
        plans = []
        for number in range(len(self)):
            span = slice(number * self.rows, (number + 1) * self.rows)
            shard, ordinal = self.shard[span], self.ordinal[span]
            cursor = Cursor(self.cursor.epoch, self.cursor.step + number, self.cursor.anchors)
            plans.append(
                BatchPlan(cursor, shard, ordinal, partial(self.seeds, shard, ordinal), self.window, self.window)
            )
        return plans


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """Several successive batches of one window, each with successive samples of the same shard.

    Attributes:
        cursor: see ``RunPlan``.
        shard: dataset index of the shard.
        first: the first batch's first sample in the shard.
        spacing: samples from one batch to the next; more than ``rows`` if other ranks' batches lie between.
        count: number of batches.
        rows: rows of each batch.
        window: the window.
        seeds: see ``RunPlan``.
    """

    cursor: Cursor
    shard: int
    first: int
    spacing: int
    count: int
    rows: int
    window: int
    seeds: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.uint64]]

    def __len__(self) -> int:
        return self.count

    @property
    def firsts(self) -> NDArray[np.int64]:
        """int64[batches], the first sample of each batch."""
        return self.first + np.arange(self.count) * self.spacing

    def expanded(self) -> RunPlan:
        """Return the same batches with a shard and an ordinal for each row."""
        ordinal = (self.firsts[:, np.newaxis] + np.arange(self.rows)).reshape(-1)
        shard = np.broadcast_to(np.int64(self.shard), ordinal.shape)
        return RunPlan(self.cursor, shard, ordinal, self.rows, self.window, self.seeds)

    def plans(self) -> list[BatchPlan]:
        """Return the batches, to make them one by one."""
        return self.expanded().plans()


AnyRunPlan: TypeAlias = RunPlan | SpanPlan


def shards_in(plan: AnyRunPlan | BatchPlan) -> list[int]:
    """Return the shards (dataset indices) that a plan reads, ascending."""
    if isinstance(plan, SpanPlan):
        return [plan.shard]
    if _is_one_shard(plan.shard):
        return [int(plan.shard[0])]
    table = _Table.of(plan.shard)
    distinct: list[int] = (np.unique(plan.shard) if table is None else table.distinct).tolist()
    return distinct


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


@dataclass(frozen=True, slots=True)
class BatchPlanGroup:
    """The samples of several batches, concatenated.

    Attributes:
        batches: the batches, in order. No batch is empty. Of a run: empty.
        shards: distinct shards (dataset indices) of all batches, ascending.
        shard_no: int32[rows], index into ``shards``.
        ordinal: int64[rows], sample within its shard.
        are_firsts: the two arrays tell only the first row of each batch, as of a ``SpanPlan``.
        element_rows: rows for which an element of the two arrays stands.
    """

    batches: tuple[BatchPlan, ...]
    shards: list[int]
    shard_no: NDArray[np.int32]
    ordinal: NDArray[np.int64]
    are_firsts: bool = False
    element_rows: int = 1

    @classmethod
    def of(cls, batches: Sequence[BatchPlan]) -> BatchPlanGroup:
        """Return the group of one or more batches."""
        shard = np.concatenate([one.shard for one in batches])
        return cls._numbered(tuple(batches), shard, np.concatenate([one.ordinal for one in batches]))

    @classmethod
    def of_run(cls, run: AnyRunPlan) -> BatchPlanGroup:
        """Return the samples of a run."""
        if isinstance(run, SpanPlan):
            return cls(
                (), [run.shard], np.zeros(run.count, np.int32), run.firsts, are_firsts=True, element_rows=run.rows
            )
        return cls._numbered((), run.shard, run.ordinal)

    @classmethod
    def _numbered(
        cls, batches: tuple[BatchPlan, ...], shard: NDArray[np.int64], ordinal: NDArray[np.int64]
    ) -> BatchPlanGroup:
        if _is_one_shard(shard):
            return cls(batches, [int(shard[0])], np.broadcast_to(np.int32(0), shard.shape), ordinal)
        table = _Table.of(shard)
        if table is None:
            distinct, inverse = np.unique(shard, return_inverse=True)
            return cls(batches, distinct.tolist(), inverse.astype(np.int32), ordinal)
        numbers = np.cumsum(table.used, dtype=np.int32) - np.int32(1)
        return cls(batches, table.distinct.tolist(), numbers[table.offsets], ordinal)

    def rows_of_each(self) -> list[BatchRows]:
        """Return the rows of each batch. Each has all shards of the group, in the group's order."""
        shards, low, found = np.array(self.shards, np.int64), 0, []
        for plan in self.batches:
            part = slice(low, low + len(plan.ordinal))
            windows = (plan.first_window, plan.last_window)
            rows = self.shard_no[part], self.ordinal[part], plan.seeds()
            found.append(BatchRows(plan.cursor, shards, *rows, *windows, plan.again))
            low = part.stop
        return found
