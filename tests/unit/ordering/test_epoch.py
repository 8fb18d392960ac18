"""Epoch order, windows and batches against a plain re-computation."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.dataset.assignment import Assignment
from feedd.dataset.sharding import assign
from feedd.errors import BadRequest
from feedd.ordering.batch_plan import BatchRows
from feedd.ordering.epoch import EpochMap, EpochOptions, NeedCounts
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.values import Cursor, EpochEnd, Topology
from tests.budget import budget

_COUNTS = st.lists(st.integers(0, 9), min_size=0, max_size=12)


def _options(batch: int, topology: Topology, *, shuffle: bool = True, window: int = 3) -> ReaderOptions:
    return ReaderOptions(seed=5, shuffle=shuffle, window_shards=window, batch_size=batch, topology=topology)


def _all(shard_count: int) -> tuple[Assignment, ...]:
    return (Assignment(np.arange(shard_count, dtype=np.int64)),)


def _access(reader: Reader, counts: dict[int, int], truth: list[int], epoch: int = 0) -> list[BatchRows]:
    """Read an epoch as a session does: learn counts only when asked to."""
    batches: list[BatchRows] = []
    at = Cursor(epoch)
    while True:
        found = reader.rows(at)
        if isinstance(found, NeedCounts):
            counts.update({shard: truth[shard] for shard in found.shards})
        elif isinstance(found, EpochEnd):
            assert found.steps == len(batches)
            return batches
        else:
            batches.append(found)
            at = Cursor(epoch, at.step + 1, found.cursor.anchors)


def _ids(batch: BatchRows) -> list[tuple[int, int]]:
    return list(zip(batch.shards[batch.shard_no].tolist(), batch.ordinal.tolist(), strict=True))


@settings(max_examples=budget(150), deadline=None)
@given(
    truth=_COUNTS,
    batch=st.integers(1, 7),
    nodes=st.integers(1, 3),
    ranks=st.integers(1, 3),
    shuffle=st.booleans(),
    window=st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_every_sample_exactly_once(
    truth: list[int], batch: int, nodes: int, ranks: int, shuffle: bool, window: int, epoch: int
) -> None:
    """Over all nodes and ranks each sample of the dataset comes exactly once, and only last batches are short."""
    seen: list[tuple[int, int]] = []
    for node, rank in itertools.product(range(nodes), range(ranks)):
        topology = Topology(nodes * ranks, node * ranks + rank, ranks, rank, nodes, node)
        counts: dict[int, int] = {}
        assigned = assign(np.ones(len(truth), dtype=np.int64), nodes, node, "key")
        reader = Reader((Assignment(assigned),), _options(batch, topology, shuffle=shuffle, window=window), counts)
        batches = _access(reader, counts, truth, epoch)
        assert all(len(b.ordinal) == batch for b in batches[:-1])
        node_total = sum(truth[shard] for shard in assigned.tolist())
        of_node = -(-node_total // batch)  # batches, dealt out in turn
        assert len(batches) == max(0, -(-(of_node - rank) // ranks))
        seen += [sample for b in batches for sample in _ids(b)]
    assert sorted(seen) == [(shard, i) for shard, count in enumerate(truth) for i in range(count)]


@pytest.mark.slow
@settings(max_examples=budget(100), deadline=None)
@given(truth=_COUNTS, batch=st.integers(1, 7), ranks=st.integers(1, 3), window=st.integers(1, 5))
def test_resume_at_every_step(truth: list[int], batch: int, ranks: int, window: int) -> None:
    """From any batch's cursor a fresh reader that knows no counts gives exactly the tail."""
    topology = Topology(ranks, 0, ranks, 0)
    assigned = np.arange(len(truth), dtype=np.int64)
    counts: dict[int, int] = {}
    whole = _access(Reader((Assignment(assigned),), _options(batch, topology, window=window), counts), counts, truth)
    for start, first in enumerate(whole):
        fresh: dict[int, int] = {}
        reader = Reader((Assignment(assigned),), _options(batch, topology, window=window), fresh)
        tail, at = [], first.cursor
        while not isinstance(found := reader.rows(at), EpochEnd):
            if isinstance(found, NeedCounts):
                assert min(reader.epoch_map(at).order.tolist().index(s) for s in found.shards) >= (
                    reader.epoch_map(at).position(first.cursor.window)
                )
                fresh.update({shard: truth[shard] for shard in found.shards})
                continue
            tail.append(_ids(found))
            at = Cursor(0, at.step + 1, found.cursor.anchors)
        assert tail == [_ids(b) for b in whole[start:]]


def test_batches_may_be_asked_for_in_any_order() -> None:
    """A batch is a function of its step alone: asking backwards gives the same rows."""
    truth = [5, 0, 7, 3, 8, 1]
    counts = dict(enumerate(truth))
    topology = Topology(2, 1, 2, 1)
    forward = _access(Reader(_all(6), _options(4, topology), counts), counts, truth)
    reader = Reader(_all(6), _options(4, topology), counts)
    backward = [reader.rows(Cursor(0, step)) for step in reversed(range(len(forward)))]
    assert [_ids(b) for b in reversed(backward) if isinstance(b, BatchRows)] == [_ids(b) for b in forward]


def test_epochs_differ_and_repeat() -> None:
    """Two epochs have different orders; the same epoch always has the same."""
    truth = [6] * 8
    counts = dict(enumerate(truth))
    orders = [
        [s for b in _access(Reader(_all(8), _options(5, Topology()), counts), counts, truth, e) for s in _ids(b)]
        for e in (0, 1, 0)
    ]
    assert orders[0] == orders[2] != orders[1]


def test_without_shuffle_order_is_the_listing() -> None:
    """Unshuffled, samples come shard by shard, first to last."""
    truth = [2, 3, 1]
    counts: dict[int, int] = {}
    batches = _access(Reader(_all(3), _options(2, Topology(), shuffle=False), counts), counts, truth)
    assert [s for b in batches for s in _ids(b)] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)]


@settings(max_examples=budget(100), deadline=None)
@given(sizes=st.lists(st.integers(1, 50), max_size=20), window_bytes=st.integers(1, 120), epoch=st.integers(0, 2))
def test_windows_of_so_many_bytes(sizes: list[int], window_bytes: int, epoch: int) -> None:
    """A window holds as many shards as fit, at least one, and the next one begins with the shard that did not fit."""
    array = np.array(sizes, dtype=np.int64)
    options = EpochOptions(epoch, 3, shuffle=True, window_shards=2, window_bytes=window_bytes)
    plan = EpochMap(Assignment(np.arange(len(sizes)), sizes=array), options, {})
    windows = [plan.shards(window).tolist() for window in range(plan.window_count)]
    assert list(itertools.chain(*windows)) == plan.order.tolist()
    assert all(windows)
    loads = [int(array[window].sum()) for window in windows]
    assert all(load <= window_bytes or len(window) == 1 for load, window in zip(loads, windows, strict=True))
    widths_max = _widths_max(epoch, len(windows), 100)
    assert all(len(window) <= most for window, most in zip(windows, widths_max, strict=True))
    assert all(
        load + sizes[after[0]] > window_bytes or len(window) == most
        for load, window, most, after in zip(loads, windows, widths_max, windows[1:], strict=False)
    )
    assert plan.shards(plan.window_count).size == 0


def _widths_max(epoch: int, window_count: int, window: int) -> list[int]:
    """Return how many shards each window may have."""
    return [min(window, 2**number) if epoch == 0 else window for number in range(window_count)]


@settings(max_examples=budget(100), deadline=None)
@given(shard_count=st.integers(0, 70), window=st.integers(1, 40), epoch=st.integers(0, 2))
def test_windows_of_so_many_shards(shard_count: int, window: int, epoch: int) -> None:
    """All windows but the last are full, and the first windows of epoch 0 are full with 1, 2, 4, ... shards."""
    plan = EpochMap(_all(shard_count)[0], EpochOptions(epoch, 3, shuffle=True, window_shards=window), {})
    windows = [plan.shards(number).tolist() for number in range(plan.window_count)]
    assert list(itertools.chain(*windows)) == plan.order.tolist()
    assert all(windows)
    widths, most = [len(shards) for shards in windows], _widths_max(epoch, len(windows), window)
    assert widths[:-1] == most[:-1]
    assert not windows or widths[-1] <= most[-1]


@settings(max_examples=budget(50), deadline=None)
@given(shard_count=st.integers(0, 30), window=st.integers(1, 9), window_bytes=st.integers(0, 90), data=st.data())
def test_windows_that_do_not_grow(shard_count: int, window: int, window_bytes: int, data: st.DataObject) -> None:
    """Without growing windows, epoch 0 has the windows of a later epoch; without shuffle each shard is a window."""
    sizes = np.array(data.draw(st.lists(st.integers(1, 50), min_size=shard_count, max_size=shard_count)), np.int64)
    share = Assignment(np.arange(shard_count, dtype=np.int64), sizes=sizes)
    plain = EpochMap(share, EpochOptions(0, 3, shuffle=False, window_shards=window, window_bytes=window_bytes), {})
    assert plain.edges.tolist() == list(range(shard_count + 1))
    fixed = EpochOptions(0, 3, shuffle=True, window_shards=window, window_bytes=window_bytes, growing=False)
    plan = EpochMap(share, fixed, {})
    # The same sizes in the same order, so that only the number of the epoch differs.
    alike = np.empty_like(sizes)
    later = EpochMap(share, replace(fixed, epoch=1, growing=True), {})
    alike[later.order] = sizes[plan.order]
    again = EpochMap(Assignment(share.shards, sizes=alike), replace(fixed, epoch=1, growing=True), {})
    assert plan.edges.tolist() == again.edges.tolist()


def test_a_foreign_cursor_is_refused() -> None:
    """An anchor that contradicts the plan is an error that says so, not wrong data."""
    reader = Reader(_all(4), _options(2, Topology(), window=1), dict.fromkeys(range(4), 3))
    assert isinstance(reader.rows(Cursor(0, 0)), BatchRows)
    assert isinstance(reader.rows(Cursor(0, 3)), BatchRows)
    with pytest.raises(BadRequest, match="does not fit"):
        reader.rows(Cursor(0, 1, ((1, 99),)))
    with pytest.raises(BadRequest, match="does not fit"):
        reader.rows(Cursor(0, 1, ((9, 9),)))


def test_seeds_do_not_depend_on_the_batch() -> None:
    """A sample's augmentation seed is the same in whatever batch size and rank it arrives."""
    truth = [6] * 4
    counts = dict(enumerate(truth))

    def by_sample(batch: int) -> dict[tuple[int, int], int]:
        batches = _access(Reader(_all(4), _options(batch, Topology()), counts), counts, truth)
        return {sample: int(seed) for b in batches for sample, seed in zip(_ids(b), b.seeds, strict=True)}

    assert by_sample(4) == by_sample(7)
    assert len(set(by_sample(4).values())) == 24
