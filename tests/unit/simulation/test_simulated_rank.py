"""A simulated rank: as many batches in advance as there are slots, and few of the next epoch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from feedd.ordering.batch_plan import RunPlan
from feedd.simulation.simulated_rank import SimulatedRank
from feedd.simulation.virtual_loop import run_in_virtual_time
from feedd.values import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.ordering.mixed_reader import AnyReader
    from feedd.sessions.prefetch_driver import PrefetchDriver
    from feedd.simulation.simulated_batches import SimulatedBatches

_STEPS = 6


class _Reader:
    """Plans a batch of one sample for each step; it reads all windows up to the step's."""

    def draw(self, at: Cursor) -> RunPlan:
        one = np.zeros(1, np.int64)
        return RunPlan(at, one, one, lambda: one.astype(np.uint64), 0, at.step)


class _Driver:
    """Notes which steps are announced, and which of them have ended."""

    def __init__(self) -> None:
        self.announced: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []

    def advance(self, at: Cursor, *_windows: int) -> None:
        self.announced.append((at.epoch, at.step))

    def finished(self, at: Cursor) -> None:
        self.ended.append((at.epoch, at.step))

    def reads_only(self, window: int) -> bool:
        return window == 0

    def widen(self) -> None:
        pass


class _Batches:
    """Makes batches at once, or in five seconds if their shards are missing; notes when each has its shards."""

    def __init__(self, *, lacking: bool) -> None:
        self.lacking = lacking
        self.made: list[Cursor] = []
        self.began_s: dict[Cursor, float] = {}

    def lacks_shards(self, _plan: RunPlan) -> bool:
        return self.lacking

    async def make(self, plan: RunPlan, pinned: Callable[[], object]) -> None:
        self.made.append(plan.cursor)
        self.began_s[plan.cursor] = asyncio.get_running_loop().time()
        if self.lacking:
            await asyncio.sleep(5.0)
            pinned()
            await asyncio.sleep(2.0)


def _run(slots: int, takes: list[Cursor]) -> tuple[list[Cursor], list[tuple[int, int]]]:
    """Take batches, one each second; return the batches that were made until then, and those announced."""
    driver, batches = _Driver(), _Batches(lacking=False)

    async def run() -> None:
        rank = _rank(driver, batches, slots)
        async with asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(rank.produce(tasks, 2))
            await asyncio.sleep(1.0)
            for at in takes:
                await rank.take(at)
                await asyncio.sleep(1.0)
            producing.cancel()

    run_in_virtual_time(run())
    assert driver.ended == driver.announced
    return batches.made, driver.announced


def _rank(driver: _Driver, batches: _Batches, slots: int) -> SimulatedRank:
    parts: Any = _Reader(), driver, batches
    reader, prefetch_driver = cast("AnyReader", parts[0]), cast("PrefetchDriver", parts[1])
    return SimulatedRank(reader, prefetch_driver, cast("SimulatedBatches", parts[2]), slots, _STEPS)


def _cursors(epoch: int, count: int) -> list[Cursor]:
    return [Cursor(epoch, step) for step in range(count)]


def test_batches_in_advance_are_bounded_by_the_slots() -> None:
    """Three slots hold three batches; the trainer gives a batch back when it takes the next one."""
    assert _run(3, [])[0] == _cursors(0, 3)
    assert _run(3, _cursors(0, 1))[0] == _cursors(0, 3)
    assert _run(3, _cursors(0, 2))[0] == _cursors(0, 4)


def test_only_a_few_batches_of_the_next_epoch_are_made_in_advance() -> None:
    """As in the daemon: two, whatever the slots, and unannounced; the others follow when the trainer begins it."""
    made, announced = _run(64, [])
    assert made == _cursors(0, _STEPS) + _cursors(1, 2)
    assert {epoch for epoch, _ in announced} == {0}
    made, announced = _run(64, [*_cursors(0, _STEPS), Cursor(1)])
    assert made == _cursors(0, _STEPS) + _cursors(1, _STEPS)
    assert (1, 2) in announced


def test_a_batch_of_a_later_window_waits_until_earlier_ones_have_their_shards() -> None:
    """As in a session: each begins when the one before it has its shards, not when that one is decoded."""
    batches = _Batches(lacking=True)

    async def run() -> None:
        rank = _rank(_Driver(), batches, 3)
        async with asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(rank.produce(tasks, 1))
            await asyncio.sleep(30.0)
            producing.cancel()
        assert not len(rank._calls), "all have ended"

    run_in_virtual_time(run())
    assert list(batches.began_s.values()) == [0.0, 5.0, 10.0]
