"""One simulated node: the real fetcher, cache, readers and prefetching of a daemon over models of everything else."""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from feedd.cache.cache import Cache
from feedd.cache.options import CacheOptions
from feedd.cache.prefetch import PrefetchLimits
from feedd.catalog.open_request import Request
from feedd.catalog.sources import Sources
from feedd.fetch.pages import closing_pages
from feedd.flow.range_sinks import MemorySink
from feedd.observe.recorder import NullRecorder
from feedd.ordering.epoch_access import readahead_bytes
from feedd.ordering.sorted_windows import SortedWindows
from feedd.sessions.prefetch_driver import PrefetchDriver, ReaderGroups
from feedd.sessions.rank_plan import planned, windows_of
from feedd.sessions.slot_counts import slots_for, within
from feedd.simulation.link import SharedLink
from feedd.simulation.simulated_batches import IndexedShards, SimulatedBatches
from feedd.simulation.simulated_rank import SimulatedRank
from feedd.simulation.simulated_storage import SimulatedStorage
from feedd.simulation.simulated_store import SimulatedStore
from feedd.simulation.simulated_workers import SimulatedWorkers
from feedd.simulation.virtual_loop import VirtualClock
from feedd.values import Cursor

if TYPE_CHECKING:
    from feedd.simulation.scenario import Scenario
    from feedd.simulation.simulated_store import RequestLimit

_WINDOWS_BYTES: Final = 128 << 20
_STREAM_SHARE: Final = 1 / 10
"""Share of an open's own work that follows the first shard: the answer, and the stream of batches."""
_FIRST_ROWS_SHARE: Final = 1 / 10
"""Share of an open's own work that a worker's first rows take longer than later ones: its caches are cold."""
_TRAINER_SHARE: Final = 1 / 4
"""Share of an open's own work that each rank does on a core of its own, if the node has as many."""
_LATER_RANK_SHARE: Final = 1 / 20
"""Share of an open's own work that the daemon repeats for each further rank."""


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """What a node did so far.

    Attributes:
        gets, heads, lists: requests, refused ones included.
        refused: requests that the store refused.
        fetched_bytes: bytes of the answers.
        evictions: shards evicted from the cache.
        decode_s: CPU seconds of its workers.
    """

    gets: int = 0
    heads: int = 0
    lists: int = 0
    refused: int = 0
    fetched_bytes: int = 0
    evictions: int = 0
    decode_s: float = 0.0


class SimulatedNode:
    """A node of the job; ``async with`` opens its cache.

    Args:
        scenario: what is simulated.
        node_rank: rank of the node.
        limit: requests that the store serves to all simulated nodes.
        tasks: task group for the batches.

    Attributes:
        node_rank: as given.
        ranks: the node's ranks, once opened.
        steps: steps of each rank in an epoch.
        assigned_shards: shards that the node reads in an epoch.
        assigned_bytes: their bytes.
        cached_bytes: disk bytes of the cache's entries.
    """

    def __init__(self, scenario: Scenario, node_rank: int, limit: RequestLimit, tasks: asyncio.TaskGroup) -> None:
        self._scenario = scenario
        self.node_rank = node_rank
        self.ranks: list[SimulatedRank] = []
        self.steps = self.assigned_shards = self.assigned_bytes = 0
        self._limit = limit
        self._tasks = tasks
        self._workers = SimulatedWorkers(scenario.node.workers, _FIRST_ROWS_SHARE * scenario.node.open_s)
        self._drivers: list[PrefetchDriver] = []
        self._stack = AsyncExitStack()

    def __repr__(self) -> str:
        return f"SimulatedNode({self.node_rank})"

    async def __aenter__(self) -> Self:
        """Open store and cache."""
        scenario, clock, recorder = self._scenario, VirtualClock(), NullRecorder()
        sources = await self._stack.enter_async_context(Sources(scenario.fetch, recorder, clock))
        link = SharedLink(scenario.node.link_bytes_s, scenario.store.connection_bytes_s)
        root = scenario.view.refs[0].root
        self._store = SimulatedStore(root, scenario.store.latency_s, link, self._limit, scenario.list_requests)
        self._requests = sources.buckets.use(self._store)
        prefetching = PrefetchLimits(scenario.fetch.parts_in_flight, scenario.fetch.bytes_in_flight)
        size_bytes = scenario.node.cache_bytes
        options = CacheOptions(Path(os.devnull), size_bytes, fill_deadline_s=math.inf, prefetching=prefetching)
        self._fetcher = sources.fetcher
        cache = Cache(options, self._fetcher, recorder, clock, storage=SimulatedStorage(size_bytes))
        self._cache = await self._stack.enter_async_context(cache)
        self._shards = IndexedShards(scenario.view, cache, self._workers, scenario.node.index_s, self._tasks)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close sessions, cache and store."""
        for driver in self._drivers:
            driver.close()
        await self._stack.aclose()

    @property
    def counts(self) -> NodeCounts:
        """What the node did so far."""
        store, requests = self._store, self._store.requests
        evictions = self._cache.stats.evictions
        numbers = requests["get"], requests["head"], requests["list"], store.refused_count, store.sent_bytes
        return NodeCounts(*numbers, evictions, self._workers.busy_s)

    @property
    def cached_bytes(self) -> int:
        """Disk bytes of the cache's entries."""
        return self._cache.stats.committed_bytes

    async def open(self) -> None:
        """List the dataset, and open a session for each rank, as the daemon does."""
        scenario, open_s = self._scenario, self._scenario.node.open_s
        before = 1 - _STREAM_SHARE - _FIRST_ROWS_SHARE
        await asyncio.sleep(before * open_s + later_ranks_s(scenario))
        await self._list()
        groups = ReaderGroups(readahead_bytes(scenario.fetch.bytes_in_flight, scenario.node.cache_bytes))
        windows = SortedWindows(_WINDOWS_BYTES)
        first: list[int] = []
        for local_rank in range(scenario.job.rank_count):
            spec = scenario.job.open_spec((scenario.view.refs[0].root,), self.node_rank, local_rank)
            request = Request.of(spec, scenario.window_shards)
            plan = planned(scenario.view, request, windows_of(windows, scenario.view, request))
            reader = plan.reader()
            driver = PrefetchDriver(f"session-{local_rank}", scenario.view, reader, self._cache, groups)
            self.steps = reader.steps(0) or 0
            assigned = reader.assigned
            self.assigned_shards = int(assigned.shape[0])
            self.assigned_bytes = int(scenario.view.listing.sizes[assigned].sum())
            if self.assigned_shards:
                driver.begin(Cursor())
                first = first or reader.access_at(scenario.view, Cursor()).needed(0)[:1]
            self._drivers.append(driver)
            batches = SimulatedBatches(self._shards, self._workers, 1 + local_rank, scenario.node.decode_s)
            self.ranks.append(SimulatedRank(reader, driver, batches, self._slot_count, self.steps))
        async with self._shards.pinned(first):  # the first shard tells the fields
            pass
        await asyncio.sleep(_STREAM_SHARE * open_s)
        for rank in self.ranks:
            self._tasks.create_task(rank.produce(self._tasks, scenario.job.epoch_count))

    async def _list(self) -> None:
        """List the dataset, and read its sidecars."""
        async with closing_pages(self._requests.list("")) as pages:
            async for _ in pages:
                pass
        async with asyncio.TaskGroup() as reading:
            for ref in self._scenario.sidecars:
                reading.create_task(self._fetcher.fetch(ref, MemorySink(memoryview(bytearray(ref.size_bytes)))))

    @property
    def _slot_count(self) -> int:
        job = self._scenario.job
        return within(job.prefetch or slots_for(max(job.batch_bytes, 1)), self._scenario.slots_max)


def later_ranks_s(scenario: Scenario) -> float:
    """Return how much longer the opens of all ranks take than that of one. A node has about one core per worker."""
    node, ranks = scenario.node, scenario.job.rank_count
    turns = max(ranks / node.workers, 1.0)
    return node.open_s * (_LATER_RANK_SHARE * (ranks - 1) + _TRAINER_SHARE * (turns - 1))
