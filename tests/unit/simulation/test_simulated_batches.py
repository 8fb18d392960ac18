"""Batches of a simulated rank: which shards they lack, and what they wait for."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from feedd.ordering.batch_plan import RunPlan
from feedd.simulation.simulated_batches import IndexedShards, SimulatedBatches
from feedd.simulation.simulated_workers import SimulatedWorkers
from feedd.simulation.virtual_loop import run_in_virtual_time
from feedd.values import Cursor
from tests.unit.simulation.jobs import listing

if TYPE_CHECKING:
    from feedd.cache.cache import Cache
    from feedd.values import ObjectRef

_VIEW = listing(shards=4, samples=8).as_listed


class _Cache:
    """Knows the first two shards; any shard arrives after two seconds."""

    def __init__(self) -> None:
        self.acquired: list[str] = []

    def knows(self, ref: ObjectRef) -> bool:
        return ref.key < "0002"

    async def acquire(self, refs: list[ObjectRef]) -> AbstractContextManager[None]:
        self.acquired += [ref.key for ref in refs]
        await asyncio.sleep(2.0)
        return nullcontext()


def _plan(*shards: int) -> RunPlan:
    """A batch of a sample of each shard."""
    rows = np.array(shards, np.int64)
    return RunPlan(Cursor(0), rows, np.zeros_like(rows), lambda: rows.astype(np.uint64), 0, 0)


@pytest.mark.parametrize(("shards", "lacks"), [((0, 1), False), ((1, 2), True), ((2, 3), True)])
def test_a_batch_lacks_shards_unless_the_cache_knows_all(shards: tuple[int, ...], *, lacks: bool) -> None:
    """Held shards and shards on their way are known."""

    async def run() -> bool:
        async with asyncio.TaskGroup() as tasks:
            workers = SimulatedWorkers(1)
            indexed = IndexedShards(_VIEW, cast("Cache", _Cache()), workers, 0.5, tasks)
            return SimulatedBatches(indexed, workers, 1, 1.0).lacks_shards(_plan(*shards))

    assert run_in_virtual_time(run()) is lacks


def test_a_batch_waits_for_shards_indexes_and_workers() -> None:
    """Two seconds for two shards together, 4 s for each index, then a second for each of two rows."""
    cache, pinned_s = _Cache(), []

    async def run() -> float:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            workers = SimulatedWorkers(1)
            indexed = IndexedShards(_VIEW, cast("Cache", cache), workers, 0.5, tasks)
            batches = SimulatedBatches(indexed, workers, 1, 1.0)
            await batches.make(_plan(3, 1), lambda: pinned_s.append(loop.time()))
            return loop.time()

    assert run_in_virtual_time(run()) == pytest.approx(2.0 + 2 * 4.0 + 2.0)
    assert pinned_s == [10.0]
    assert cache.acquired == ["0001.tar", "0003.tar"]
