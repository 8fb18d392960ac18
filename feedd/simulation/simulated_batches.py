"""What the batches of a simulated rank wait for: shards in the cache, their indexes, and workers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from feedd.cache.cache import Cache
    from feedd.dataset.listing import DatasetView
    from feedd.ordering.batch_plan import RunPlan
    from feedd.simulation.simulated_workers import SimulatedWorkers


class IndexedShards:
    """The shards of a node, and their indexes, each of which is read once.

    Args:
        view: the shards, with the samples of each.
        cache: the node's cache.
        workers: the node's workers.
        index_s: CPU seconds for each sample of a shard whose index is read.
        tasks: task group for the reads.
    """

    def __init__(
        self,
        view: DatasetView,
        cache: Cache,
        workers: SimulatedWorkers,
        index_s: float,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._view = view
        self._cache = cache
        self._workers = workers
        self._index_s = index_s
        self._tasks = tasks
        self._read: set[int] = set()
        self._reading: dict[int, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"IndexedShards({len(self._read)} read)"

    def known(self, shards: Iterable[int]) -> bool:
        """Whether the cache holds all of these shards, or fetches them."""
        return all(self._cache.knows(self._view.refs[shard]) for shard in shards)

    @asynccontextmanager
    async def pinned(self, shards: Iterable[int]) -> AsyncIterator[None]:
        """Wait for shards and their indexes; keep the shards in the cache during the body."""
        wanted = list(shards)
        with await self._cache.acquire([self._view.refs[shard] for shard in wanted]):
            for shard in wanted:
                await self._index(shard)
            yield

    async def _index(self, shard: int) -> None:
        if shard in self._read:
            return
        running = self._reading.get(shard)
        if running is None:
            work = self._workers.index(self._view.counts[shard] * self._index_s)
            running = self._reading[shard] = self._tasks.create_task(work)
        await asyncio.wait([running])
        self._read.add(shard)
        self._reading.pop(shard, None)


class SimulatedBatches:
    """Makes the batches of one rank.

    Args:
        shards: the node's shards.
        workers: the node's workers.
        arena: number of the rank's arena, above 0.
        decode_s: CPU seconds for a sample.
    """

    def __init__(self, shards: IndexedShards, workers: SimulatedWorkers, arena: int, decode_s: float) -> None:
        self._shards = shards
        self._workers = workers
        self._arena = arena
        self._decode_s = decode_s

    def __repr__(self) -> str:
        return f"SimulatedBatches({self._arena})"

    def lacks_shards(self, plan: RunPlan) -> bool:
        """Whether the cache neither holds all shards of a batch nor fetches them."""
        return not self._shards.known(shards_of(plan))

    async def make(self, plan: RunPlan, pinned: Callable[[], object]) -> None:
        """Make a batch; call ``pinned`` when its shards have arrived."""
        async with self._shards.pinned(shards_of(plan)):
            pinned()
            await self._workers.decode(self._arena, plan.shard.shape[0], self._decode_s)


def shards_of(plan: RunPlan) -> list[int]:
    """Return the shards of a batch (dataset indices), ascending."""
    shards: list[int] = np.unique(plan.shard).tolist()
    return shards
