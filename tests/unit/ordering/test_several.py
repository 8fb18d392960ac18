"""A run of several batches: each row keeps its shard and its sample, however far apart the shards lie."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.ordering.batch_plan import RunPlan, rows_of_run
from feedd.values import Cursor
from tests.budget import budget

_BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 40) | st.integers(0, 1 << 40), st.integers(0, 1 << 40)), min_size=1, max_size=20),
    min_size=1,
    max_size=5,
)


def _random(step: int, rows: list[tuple[int, int]]) -> RunPlan:
    shard, ordinal = np.array(rows, np.int64).T
    return RunPlan(Cursor(0, step), shard, ordinal, lambda: np.arange(len(rows), dtype=np.uint64), 0, 0)


@settings(max_examples=budget(200), deadline=None)
@given(batches=_BATCHES, rows=st.integers(1, 6), stride=st.integers(1, 3))
def test_rows_are_what_they_were(batches: list[list[tuple[int, int]]], rows: int, stride: int) -> None:
    """Shards come once each, ascending, and rows in the order of the batches, which split into as many runs of one."""
    every = [row for batch in batches for row in batch] * rows
    shard, ordinal = np.array(every, np.int64).T
    seeds = np.arange(len(every), dtype=np.uint64)
    run = RunPlan(Cursor(0, 5), shard, ordinal, lambda: seeds, 0, 0, count=len(every) // rows, stride=stride)
    assert (len(run), run.batch_rows) == (len(every) // rows, rows)
    numbered = run.by_shard()
    assert numbered.shards == run.shards == sorted({shard for shard, _ in every})
    assert [column.dtype.name for column in (numbered.shard_no, numbered.ordinal)] == ["int32", "int64"]
    shards = [numbered.shards[number] for number in numbered.shard_no.tolist()]
    assert list(zip(shards, numbered.ordinal.tolist(), strict=True)) == every
    split = run.batches()
    assert [one.cursor for one in split] == [Cursor(0, 5 + stride * number) for number in range(len(run))]
    parts = [(one.shard.tolist(), one.ordinal.tolist(), one.seeds().tolist()) for one in split]
    joined = [list(itertools.chain(*column)) for column in zip(*parts, strict=True)]
    assert joined == [shard.tolist(), ordinal.tolist(), seeds.tolist()]


@settings(max_examples=budget(100), deadline=None)
@given(st.integers(0, 9), st.integers(0, 99), st.integers(1, 5), st.integers(1, 5), st.integers(5, 20))
def test_first_rows_stand_for_every_row(shard: int, first: int, rows: int, count: int, spacing: int) -> None:
    """A run of successive samples of one shard is the same as one that names each row."""
    firsts = first + np.arange(count) * spacing
    short = RunPlan(
        Cursor(), np.broadcast_to(np.int64(shard), (count,)), firsts, lambda: firsts.astype(np.uint64), 0, 0, None,
        count, 1, rows,
    )  # fmt: skip
    long = short.by_row()
    assert (long.by_row(), short.batch_rows, long.batch_rows) == (long, rows, rows)
    assert long.ordinal.tolist() == [at + row for at in firsts.tolist() for row in range(rows)]
    assert (short.shards, long.shards, long.by_shard().shards) == ([shard], [shard], [shard])
    assert long.by_shard().shard_no.tolist() == [0] * (rows * count)


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
        assert _random(step, rows).shards == sorted({shard for shard, _ in rows})


def test_a_window_of_one_shard_stays_one() -> None:
    """Its rows are not searched for shards, even if other ranks' batches lie between them."""
    window = np.broadcast_to(np.array([7]), (60,)), np.arange(60)[::-1]
    for spacing in (10, 20):
        shard, ordinal = rows_of_run(window, 5, 10, spacing, 2)
        assert shard.strides == (0,)
        assert (shard.tolist(), ordinal[:1].tolist(), ordinal[10:11].tolist()) == ([7] * 20, [54], [54 - spacing])
        plan = RunPlan(Cursor(0, 0), shard, ordinal, lambda: np.zeros(20, np.uint64), 0, 0)
        assert (plan.shards, plan.by_shard().shards) == ([7], [7])
