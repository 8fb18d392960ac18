"""Several batches as one: each row keeps its shard and its sample, however far apart the shards lie."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.ordering.batch_plan import BatchPlan, BatchPlanGroup, rows_of_run, shards_in
from feedd.values import Cursor
from tests.budget import budget

_BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 40) | st.integers(0, 1 << 40), st.integers(0, 1 << 40)), min_size=1, max_size=20),
    min_size=1,
    max_size=5,
)


def _random(step: int, rows: list[tuple[int, int]]) -> BatchPlan:
    shard, ordinal = np.array(rows, np.int64).T
    return BatchPlan(Cursor(0, step), shard, ordinal, lambda: np.arange(len(rows), dtype=np.uint64), 0, 0)


@settings(max_examples=budget(200), deadline=None)
@given(batches=_BATCHES)
def test_rows_are_what_they_were(batches: list[list[tuple[int, int]]]) -> None:
    """Shards come once each, ascending, and rows in the order of the batches."""
    several = BatchPlanGroup.of([_random(step, rows) for step, rows in enumerate(batches)])
    wanted = [row for rows in batches for row in rows]
    assert several.shards == sorted({shard for shard, _ in wanted})
    assert [column.dtype.name for column in (several.shard_no, several.ordinal)] == ["int32", "int64"]
    shards = [several.shards[number] for number in several.shard_no.tolist()]
    assert list(zip(shards, several.ordinal.tolist(), strict=True)) == wanted


@settings(max_examples=budget(100), deadline=None)
@given(batches=_BATCHES)
def test_a_batch_drawn_is_a_batch(batches: list[list[tuple[int, int]]]) -> None:
    """What is worked out of a batch alone says the same, its shards in order of first use."""
    for step, rows in enumerate(batches):
        batch = _random(step, rows).rows()
        assert batch.cursor == Cursor(0, step)
        assert batch.shards.tolist() == list(dict.fromkeys(shard for shard, _ in rows))
        assert list(zip(batch.shards[batch.shard_no].tolist(), batch.ordinal.tolist(), strict=True)) == rows
        assert batch.seeds.tolist() == list(range(len(rows)))
        assert shards_in(_random(step, rows)) == sorted({shard for shard, _ in rows})


def test_a_window_of_one_shard_stays_one() -> None:
    """Its rows are not searched for shards, even if other ranks' batches lie between them."""
    window = np.broadcast_to(np.array([7]), (60,)), np.arange(60)[::-1]
    for spacing in (10, 20):
        shard, ordinal = rows_of_run(window, 5, 10, spacing, 2)
        assert shard.strides == (0,)
        assert (shard.tolist(), ordinal[:1].tolist(), ordinal[10:11].tolist()) == ([7] * 20, [54], [54 - spacing])
        plan = BatchPlan(Cursor(0, 0), shard, ordinal, lambda: np.zeros(20, np.uint64), 0, 0)
        assert (shards_in(plan), BatchPlanGroup.of([plan]).shards) == ([7], [7])
