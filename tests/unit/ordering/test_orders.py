"""Windows that several readers of a plan sort once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.dataset.assignment import Assignment
from feedd.ordering.batch_plan import BatchRows, RunPlan
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.ordering.sorted_windows import NeedOrder, Orders, SortedWindows, WindowName
from feedd.values import Cursor, EpochEnd, Topology

if TYPE_CHECKING:
    from feedd.ordering.sorted_windows import WindowRows

_SHARDS, _SAMPLES, _BATCH = 6, 10, 4
_SHARE = Assignment(np.arange(_SHARDS, dtype=np.int64))
_OPTIONS = ReaderOptions(seed=5, shuffle=True, window_shards=2, batch_size=_BATCH, topology=Topology())
_STEPS = _SHARDS * _SAMPLES // _BATCH


def _orders(least: int, limit_bytes: int = 0) -> Orders:
    return SortedWindows(limit_bytes).enter("plan", least)


def _reader(orders: Orders | None = None) -> Reader:
    return Reader((_SHARE,), _OPTIONS, dict.fromkeys(range(_SHARDS), _SAMPLES), orders)


def _sorted_by(reader: Reader, at: Cursor) -> int:
    """Return how many times a window had to be sorted before the batch could be drawn."""
    count = 0
    while isinstance(found := reader.draw(at), NeedOrder):
        found.learn(found.sort())
        count += 1
    assert isinstance(found, RunPlan)
    return count


def _samples(reader: Reader, at: Cursor) -> list[tuple[int, int]]:
    found = reader.rows(at)
    assert isinstance(found, BatchRows)
    return list(zip(found.shards[found.shard_no].tolist(), found.ordinal.tolist(), strict=True))


def _rows(first: int) -> WindowRows:
    return np.array([first]), np.array([first])


def test_each_window_is_sorted_once_for_all_readers() -> None:
    """What one reader has sorted, another of the same plan finds; one of its own plan does not."""
    orders = _orders(12)
    one, other = _reader(orders), _reader(orders)
    steps = [Cursor(1, step) for step in range(_STEPS)]
    assert sum(_sorted_by(one, at) for at in steps) == _SHARDS // 2
    assert sum(_sorted_by(other, at) for at in steps) == 0
    assert _sorted_by(_reader(), steps[0]) == 1
    assert _sorted_by(other, Cursor(2)) == 1  # another epoch's window is another


def test_shared_windows_change_no_batch() -> None:
    """Readers that take turns in different epochs give what each would alone."""
    orders = _orders(2)
    one, other, alone = _reader(orders), _reader(orders), _reader()
    for step in range(_STEPS):
        for reader, epoch in ((one, 0), (other, 1)):
            at = Cursor(epoch, step)
            assert _samples(reader, at) == _samples(alone, at)


def test_what_a_step_reads_is_kept_together() -> None:
    """More windows than are kept are learned at once, for a step that reads so many; then the oldest go."""
    orders, names = _orders(2), [WindowName(0, 0, window) for window in range(4)]
    orders.learn({name: _rows(name.window) for name in names[:3]})
    assert all(orders.get(name) is not None for name in names[:3])
    orders.get(names[1])
    orders.learn({names[3]: _rows(3)})
    assert [name.window for name in names if orders.get(name) is not None] == [1, 3]


def test_windows_ahead_are_said_once_and_then_there() -> None:
    """With what ``ahead`` says done, no batch but the first waits for a window, over epochs' ends too."""
    reader = _reader()
    assert reader.next_order() is None  # nothing was drawn
    waited = said = 0
    for at in [Cursor(epoch, step) for epoch in range(3) for step in range(_STEPS)]:
        waited += _sorted_by(reader, at)
        need = reader.next_order()
        if need is not None:
            said += 1
            need.learn(need.sort())
        assert reader.next_order() is None
    assert (waited, said) == (1, 4 + 2 * _SHARDS // 2)  # of epoch 0: 1, 2, 2 and 1 shards


def test_runs_say_windows_ahead_too() -> None:
    """A reader that takes runs has the next window sorted, and a run is the batches that it stands for."""
    reader, alone, step, waited, longest = _reader(), _reader(), 0, 0, 0
    while step < _STEPS:
        run = reader.draw(Cursor(0, step), 3)
        if not isinstance(run, RunPlan):
            waited += _sorted_by(reader, Cursor(0, step))
            continue
        for plan in run.batches():
            shards = alone.rows(plan.cursor)
            assert isinstance(shards, BatchRows)
            assert plan.rows().ordinal.tolist() == shards.ordinal.tolist()
            assert plan.rows().seeds.tolist() == shards.seeds.tolist()
        step, longest = step + len(run), max(longest, len(run))
        need = reader.next_order()
        if need is not None:
            need.learn(need.sort())
    assert (waited, longest) == (1, 3)


@pytest.mark.parametrize(("rank", "ranks", "cut"), [(0, 1, False), (0, 1, True), (1, 2, False), (2, 3, True)])
def test_runs_without_shuffle_need_no_window(rank: int, ranks: int, *, cut: bool) -> None:
    """Without shuffle no window is sorted, and a run is the batches that are drawn one by one, in the files' order."""
    shards = np.arange(_SHARDS, dtype=np.int64)
    share = Assignment(shards, shards, shards + 2 * _SAMPLES) if cut else Assignment(shards)
    topology = Topology(rank=rank, world_size=ranks, local_rank=rank, local_world_size=ranks)
    options = replace(_OPTIONS, shuffle=False, topology=topology)
    reader, alone = (Reader((share,), options, dict.fromkeys(range(_SHARDS), 2 * _SAMPLES)) for _ in range(2))
    every = [(shard, first + shard * cut) for shard in range(_SHARDS) for first in range(2 * _SAMPLES)]
    step, longest = 0, 0
    while not isinstance(alone.draw(Cursor(0, step)), EpochEnd):
        run = reader.draw(Cursor(0, step), 4)
        assert isinstance(run, RunPlan)
        plans = run.batches()
        for plan in plans:
            low = (plan.cursor.step * ranks + rank) * _BATCH
            assert list(zip(plan.shard.tolist(), plan.ordinal.tolist(), strict=True)) == every[low : low + _BATCH]
            assert plan.rows().seeds.tolist() == _seeds(alone, plan.cursor)
        assert len(plans) == len(run)
        assert len(run) == 1 or run.first_rows_of == _BATCH
        step, longest = step + len(plans), max(longest, len(plans))
        assert reader.next_order() is None
    assert step * ranks * _BATCH >= len(every) - ranks * _BATCH
    assert longest >= min(4, 2 * _SAMPLES // _BATCH // ranks)


@pytest.mark.parametrize("shuffle", [False, True])
def test_runs_of_every_third_step_are_those_batches(*, shuffle: bool) -> None:
    """One of three consumers of a rank gets every third step in a run, with the rows of that step."""
    counts = dict.fromkeys(range(_SHARDS), 6 * _SAMPLES)
    reader, alone = (Reader((_SHARE,), replace(_OPTIONS, shuffle=shuffle), counts) for _ in range(2))
    for index in range(3):
        step, longest = index, 0
        while step < 6 * _STEPS:
            run = reader.draw(Cursor(0, step), 4, 3)
            if isinstance(run, NeedOrder):
                run.learn(run.sort())
                continue
            assert isinstance(run, RunPlan)
            steps = [plan.cursor.step for plan in run.batches()]
            assert steps == [step + 3 * number for number in range(len(run))]
            for plan in run.batches():
                expected = alone.rows(plan.cursor)
                assert isinstance(expected, BatchRows)
                assert plan.rows().ordinal.tolist() == expected.ordinal.tolist()
                assert plan.rows().seeds.tolist() == expected.seeds.tolist()
            step, longest = step + 3 * len(run), max(longest, len(run))
        assert longest > 1


def _seeds(reader: Reader, at: Cursor) -> list[int]:
    found = reader.rows(at)
    assert isinstance(found, BatchRows)
    seeds: list[int] = found.seeds.tolist()
    return seeds


def test_windows_ahead_change_no_batch() -> None:
    """Sorted ahead or not, for one partition or several, a batch is the same."""
    steps = [Cursor(epoch, step) for epoch in range(2) for step in range(_STEPS)]
    shares = tuple(Assignment(np.arange(part, _SHARDS, 2, dtype=np.int64)) for part in range(2))
    counts = {shard: _SAMPLES + shard for shard in range(_SHARDS)}
    for its in ((_SHARE,), shares):
        plain, eager = (Reader(its, _OPTIONS, counts) for _ in range(2))
        for at in steps:
            found, expected = eager.rows(at), plain.rows(at)
            assert isinstance(expected, BatchRows)
            assert isinstance(found, BatchRows)
            assert (found.ordinal.tolist(), found.seeds.tolist()) == (
                expected.ordinal.tolist(),
                expected.seeds.tolist(),
            )
            need = eager.next_order()
            if need is not None:
                need.learn(need.sort())


def test_nothing_is_said_of_windows_that_are_not_counted() -> None:
    """A window of which a shard's samples are not known waits until they are; so does the next epoch's first."""
    counts = dict.fromkeys(_SHARE.shards[Reader((_SHARE,), _OPTIONS, {}).epoch_map(Cursor(0)).order[:2]].tolist(), 10)
    reader = Reader((_SHARE,), _OPTIONS, counts)
    assert _sorted_by(reader, Cursor(0)) == 1
    assert reader.next_order() is None


def _window(number: int) -> WindowName:
    return WindowName(0, 0, number)


def test_plans_share_a_limit() -> None:
    """Beyond the few that each plan reads now, all plans keep so many bytes together: one that rests gives first."""
    windows = SortedWindows(10 * 16)
    busy, idle = windows.enter("busy", 2), windows.enter("idle", 3)
    for number in range(8):
        idle.learn({_window(number): _rows(number)})
    assert windows.cached_bytes == 8 * 16
    for number in range(20):
        busy.learn({_window(number): _rows(number)})
        assert windows.cached_bytes <= 10 * 16
    assert [number for number in range(8) if idle.get(_window(number)) is not None] == [5, 6, 7]
    assert [number for number in range(20) if busy.get(_window(number)) is not None] == list(range(13, 20))


def test_a_plan_keeps_what_it_reads_now() -> None:
    """A plan keeps its least number of windows, and all of the last step, whatever the limit says."""
    windows = SortedWindows(0)
    orders = windows.enter("plan", 2)
    orders.learn({_window(number): _rows(number) for number in range(5)})
    assert windows.cached_bytes == 5 * 16
    orders.learn({_window(5): _rows(5)})
    assert windows.cached_bytes == 2 * 16


def test_readers_of_one_plan_share_its_windows_until_the_last_leaves() -> None:
    """One key is one plan; its windows are dropped when nobody reads it any more, and not before."""
    windows, owner = SortedWindows(1 << 20), object()
    first, second = windows.enter(("a", id(owner)), 2, owner), windows.enter(("a", id(owner)), 2, owner)
    other = windows.enter("b", 2)
    assert first is second
    assert other is not first
    first.learn({_window(0): _rows(0)})
    windows.leave(first)
    assert second.get(_window(0)) is not None
    windows.leave(second)
    assert (windows.plan_count, windows.cached_bytes, second.cached_bytes) == (1, 0, 0)
    assert windows.enter(("a", id(owner)), 2, owner) is not first


def test_who_has_left_can_finish() -> None:
    """A reader of a plan that was left still draws its batch, and keeps hardly anything for it."""
    windows = SortedWindows(1 << 20)
    orders = windows.enter("plan", 1)
    reader = _reader(orders)
    windows.leave(orders)
    for step in range(_STEPS):
        assert _samples(reader, Cursor(0, step)) == _samples(_reader(), Cursor(0, step))
    assert windows.cached_bytes == 0
    assert orders.cached_bytes <= 2 * 2 * _SAMPLES * 16


def test_windows_learned_again_are_counted_once() -> None:
    """What two readers sorted at the same time takes its memory once."""
    windows = SortedWindows(1 << 20)
    orders = windows.enter("plan", 2)
    for _ in range(3):
        orders.learn({_window(0): _rows(0)})
    assert orders.cached_bytes == 16
