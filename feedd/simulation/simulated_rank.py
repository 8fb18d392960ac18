"""A rank's session on a simulated node: plans, prefetches, reads and decodes batches as far as its slots reach."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from feedd.ordering.batch_plan import RunPlan
from feedd.ordering.sorted_windows import NeedOrder
from feedd.sessions.next_epoch_prefetch import AHEAD_RUNS
from feedd.sessions.prefetch_driver import RunningCalls
from feedd.values import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.ordering.mixed_reader import AnyReader
    from feedd.sessions.prefetch_driver import PrefetchDriver
    from feedd.simulation.simulated_batches import SimulatedBatches


class SimulatedRank:
    """The batches of one rank, made in advance and taken in order.

    Args:
        reader: plans the batches.
        prefetch_driver: announces future reads to the cache.
        batches: makes the batches.
        slot_count: batches that may be in the making, ready or held by the trainer.
        steps: steps of an epoch.
    """

    def __init__(
        self,
        reader: AnyReader,
        prefetch_driver: PrefetchDriver,
        batches: SimulatedBatches,
        slot_count: int,
        steps: int,
    ) -> None:
        self._reader = reader
        self._prefetch_driver = prefetch_driver
        self._calls = RunningCalls(prefetch_driver)
        self._batches = batches
        self._slots = asyncio.Semaphore(slot_count)
        self._steps = steps
        self._ready: dict[Cursor, asyncio.Future[float]] = {}
        self._trained_epoch = 0
        self._epoch_began = asyncio.Event()
        self._holds_batch = False

    def __repr__(self) -> str:
        return f"SimulatedRank({len(self._ready)} batches in advance)"

    async def produce(self, tasks: asyncio.TaskGroup, epoch_count: int) -> None:
        """Make all batches, in tasks of the group."""
        for epoch in range(epoch_count):
            for step in range(self._steps):
                if step >= AHEAD_RUNS:
                    await self._begins(epoch)
                await self._slots.acquire()
                at = Cursor(epoch, step)
                plan = self._plan(at)
                if epoch > self._trained_epoch:
                    tasks.create_task(self._make(at, plan, lambda: None))
                    continue
                self._calls.begin(at)
                self._prefetch_driver.advance(at, plan.first_window, plan.last_window, at)
                tasks.create_task(self._call(at, plan))

    async def take(self, at: Cursor) -> float:
        """Wait until a batch is ready, and give the batch before it back, as a trainer's loop does.

        Returns:
            When the batch was ready.
        """
        if at.epoch > self._trained_epoch:
            self._trained_epoch = at.epoch
            self._epoch_began.set()
        ready_s = await self._future(at)
        del self._ready[at]
        if self._holds_batch:
            self._slots.release()
        self._holds_batch = True
        return ready_s

    async def _begins(self, epoch: int) -> None:
        """Wait until the trainer begins an epoch: only a few of its batches are made before that."""
        while self._trained_epoch < epoch:
            self._epoch_began.clear()
            await self._epoch_began.wait()

    async def _call(self, at: Cursor, plan: RunPlan) -> None:
        """Make a batch that the trainer has requested."""
        await self._calls.wait_for_earlier(at, plan.last_window, partial(self._batches.lacks_shards, plan))
        await self._make(at, plan, partial(self._calls.pinned, at))
        self._calls.end(at)
        self._prefetch_driver.finished(at)
        self._prefetch_driver.widen()

    async def _make(self, at: Cursor, plan: RunPlan, pinned: Callable[[], object]) -> None:
        await self._batches.make(plan, pinned)
        self._future(at).set_result(asyncio.get_running_loop().time())

    def _future(self, at: Cursor) -> asyncio.Future[float]:
        found = self._ready.get(at)
        if found is None:
            found = self._ready[at] = asyncio.get_running_loop().create_future()
        return found

    def _plan(self, at: Cursor) -> RunPlan:
        while isinstance(found := self._reader.draw(at), NeedOrder):
            found.learn(found.sort())
        assert isinstance(found, RunPlan), "all samples are counted, and the step is before the end"
        return found
