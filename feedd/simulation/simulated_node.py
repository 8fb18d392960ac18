"""One simulated node: the real fetcher, cache, readers and prefetching of a daemon over models of everything else."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from feedd.cache.check_schedule import CheckRule
from feedd.cache.prefetcher import PrefetchLimits
from feedd.cache.shard_cache import CoreOptions, PlacedCache
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
from feedd.simulation.simulated_rank import SimulatedRank, shards_of
from feedd.simulation.simulated_storage import SimulatedStorage
from feedd.simulation.simulated_store import SimulatedStore
from feedd.simulation.simulated_workers import SimulatedWorkers
from feedd.simulation.virtual_loop import VirtualClock
from feedd.values import Cursor

if TYPE_CHECKING:
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.simulation.scenario import Scenario
    from feedd.simulation.simulated_store import RequestLimit

_WINDOWS_BYTES: Final = 128 << 20
_BESIDE_SHARD: Final = 1 / 3
"""Share of an open's own work that runs while the first shard is fetched."""


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
        self._workers = SimulatedWorkers(scenario.node.workers)
        self._indexed: set[int] = set()
        self._indexing: dict[int, asyncio.Task[None]] = {}
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
        options = CoreOptions(math.inf, prefetching, CheckRule(blocks=False))
        storage = SimulatedStorage(scenario.node.cache_bytes)
        self._fetcher = sources.fetcher
        cache = PlacedCache(storage, options, self._fetcher, recorder, clock)
        self._cache = await self._stack.enter_async_context(cache)
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
        scenario = self._scenario
        await asyncio.sleep((1 - _BESIDE_SHARD) * scenario.node.open_s)
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
            self.ranks.append(SimulatedRank(reader, driver, self._read, self._slot_count, self.steps))
        async with asyncio.TaskGroup() as opening:
            opening.create_task(self._learn_schema(first))
            opening.create_task(asyncio.sleep(_BESIDE_SHARD * scenario.node.open_s))
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

    async def _learn_schema(self, shards: list[int]) -> None:
        """Wait for the first shard, from which an open learns the fields."""
        with await self._cache.acquire([self._scenario.view.refs[shard] for shard in shards]):
            for shard in shards:
                await self._index(shard)

    async def _read(self, plan: BatchPlan) -> None:
        """Make a batch: wait for its shards and their indexes, then decode."""
        shards = shards_of(plan)
        with await self._cache.acquire([self._scenario.view.refs[shard] for shard in shards]):
            for shard in shards:
                await self._index(shard)
            rows = plan.shard.shape[0]
            await self._workers.work(rows * self._scenario.node.decode_s, rows)

    async def _index(self, shard: int) -> None:
        """Read the index of a shard that is in the cache, once."""
        if shard in self._indexed:
            return
        running = self._indexing.get(shard)
        if running is None:
            cpu_s = self._scenario.view.counts[shard] * self._scenario.node.index_s
            running = self._indexing[shard] = self._tasks.create_task(self._workers.work(cpu_s, 1))
        await asyncio.wait([running])
        self._indexed.add(shard)
        self._indexing.pop(shard, None)
