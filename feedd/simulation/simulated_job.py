"""Runs a scenario in virtual time, and returns what happened."""

from __future__ import annotations

import asyncio
import random
from array import array
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.daemon.failures import single
from feedd.errors import BadRequest
from feedd.simulation.simulated_node import NodeCounts, SimulatedNode
from feedd.simulation.simulated_store import RequestLimit
from feedd.simulation.virtual_loop import run_in_virtual_time
from feedd.values import Cursor

if TYPE_CHECKING:
    from feedd.simulation.scenario import Scenario

_JITTER_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One simulated node.

    Attributes:
        counts: what it did until the end of each epoch.
        wait_s: time that its ranks waited for batches after the first one, on average.
        cached_bytes: disk bytes of its cache at the end.
    """

    node_rank: int
    assigned_shards: int
    assigned_bytes: int
    counts: tuple[NodeCounts, ...]
    wait_s: float
    cached_bytes: int


@dataclass(frozen=True, slots=True)
class JobRun:
    """What happened.

    Attributes:
        first_batch_s: time from the begin to the first batch of all ranks.
        epoch_ends_s: time from the begin to the end of each epoch's last step.
        steps: steps of each epoch.
        step_waits_s: how long each step waited for the slowest batch, after the open.
        nodes: the simulated nodes.
    """

    first_batch_s: float
    epoch_ends_s: tuple[float, ...]
    steps: int
    step_waits_s: array[float]
    nodes: tuple[NodeRun, ...]


def simulate(scenario: Scenario) -> JobRun:
    """Run a scenario. Equal scenarios give equal results.

    Raises:
        BadRequest: a rank has no step.
        CacheTooSmall: the shards of a window do not fit into the cache.
    """
    state = random.getstate()
    random.seed(_JITTER_SEED)  # waits between retries
    try:
        return run_in_virtual_time(_Job(scenario).run())
    except BaseExceptionGroup as group:
        raise single(group) from group
    finally:
        random.setstate(state)


class _Job:
    """The nodes, and the trainers of all their ranks, in step with each other."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        share = len(scenario.nodes) / scenario.job.node_count
        self._limit = RequestLimit(scenario.store.requests_s * share)
        self._waits_s: dict[int, float] = dict.fromkeys(scenario.nodes, 0.0)
        self._step_waits_s = array("d")
        self._first_batch_s = 0.0

    async def run(self) -> JobRun:
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            nodes = []
            for rank in self._scenario.nodes:
                node = SimulatedNode(self._scenario, rank, self._limit, tasks)
                nodes.append(await stack.enter_async_context(node))
            return await self._train(nodes)

    async def _train(self, nodes: list[SimulatedNode]) -> JobRun:
        async with asyncio.TaskGroup() as opening:
            for node in nodes:
                opening.create_task(node.open())
        steps = nodes[0].steps  # all ranks of the job have as many
        if not steps:
            job = self._scenario.job
            ranks = job.node_count * job.rank_count
            raise BadRequest(
                f"expected samples for a step: {job.batch_size} for each of {ranks} ranks, got fewer",
                hint="lower --batch-size, --ranks or --nodes; with --sharding key each node needs a shard",
                stage="plan",
            )
        counts: dict[SimulatedNode, list[NodeCounts]] = {node: [] for node in nodes}
        ends_s = []
        for epoch in range(self._scenario.job.epoch_count):
            for step in range(steps):
                await self._take(nodes, Cursor(epoch, step))
                await asyncio.sleep(self._scenario.job.step_s)
            ends_s.append(asyncio.get_running_loop().time())
            for node in nodes:
                counts[node].append(node.counts)
        runs = tuple(
            NodeRun(
                node.node_rank,
                node.assigned_shards,
                node.assigned_bytes,
                tuple(counts[node]),
                self._waits_s[node.node_rank],
                node.cached_bytes,
            )
            for node in nodes
        )
        return JobRun(self._first_batch_s, tuple(ends_s), steps, self._step_waits_s, runs)

    async def _take(self, nodes: list[SimulatedNode], at: Cursor) -> None:
        """Wait until every rank has its batch."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for node in nodes:
            for rank in node.ranks:
                ready_s = await rank.take(at)
                if self._step_waits_s:  # the wait for the first batch is a figure of its own
                    self._waits_s[node.node_rank] += max(ready_s - began_s, 0.0) / len(node.ranks)
        if not self._step_waits_s:
            self._first_batch_s = loop.time()
        self._step_waits_s.append(loop.time() - began_s)
