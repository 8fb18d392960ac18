"""The figures of a simulated job, scaled from the simulated nodes to all nodes. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from feedd.dataset.sharding import KEY, REPLICATED, SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.dataset.listing import Listing
    from feedd.simulation.scenario import JobModel, Scenario
    from feedd.simulation.simulated_job import JobRun
    from feedd.simulation.simulated_node import NodeCounts


@dataclass(frozen=True, slots=True)
class Prices:
    """What a store charges, in any currency.

    Attributes:
        get: for 1,000 GETs or HEADs.
        list: for 1,000 LISTs.
        gib: for a GiB that leaves the store.
    """

    get: float = 0.0004
    list: float = 0.005
    gib: float = 0.0


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """One epoch of the whole job; the first one includes the open.

    Attributes:
        seconds: time of the epoch.
        samples_s: samples of all ranks per second.
        hit_rate: share of the assigned bytes that the caches had; 0 to 1.
        gets, heads, lists: requests of all nodes, refused ones included.
        refused: requests of all nodes that the store refused.
        fetched_bytes: bytes of all nodes from the store.
        evictions: shards evicted from all caches.
        cost: price of requests and bytes.
    """

    seconds: float
    samples_s: float
    hit_rate: float
    gets: int
    heads: int
    lists: int
    refused: int
    fetched_bytes: int
    evictions: int
    cost: float

    @property
    def requests(self) -> int:
        """Requests of all nodes."""
        return self.gets + self.heads + self.lists


@dataclass(frozen=True, slots=True)
class SimulatedNodeFigures:
    """One of the simulated nodes.

    Attributes:
        wait_share: share of the run in which the ranks waited for batches, without the wait for the first one.
        fetched_bytes: bytes from the store in the whole run.
    """

    node: int
    shards: int
    bytes: int
    wait_share: float
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The figures of a job.

    Attributes:
        samples: samples of all ranks in an epoch.
        first_batch_s: time from the begin until all ranks have a batch.
        run_s: time of all epochs, without that.
        samples_s: samples of all ranks per second, without the wait for the first batch.
        utilisation: share of ``run_s`` in which trainers worked; 0 to 1.
        hit_rate: share of all epochs' assigned bytes that the caches had.
        skew: assigned bytes of the fullest node above the mean: 0.25 is 25 % more.
        node_bytes: assigned bytes of every node, ascending; not part of the JSON.
        step_waits_s: how long each step waited; not part of the JSON.
    """

    objects: int
    bytes: int
    nodes: int
    ranks: int
    steps: int
    samples: int
    first_batch_s: float
    run_s: float
    samples_s: float
    utilisation: float
    hit_rate: float
    requests: int
    cost: float
    skew: float
    epochs: tuple[EpochFigures, ...]
    simulated: tuple[SimulatedNodeFigures, ...]
    node_bytes: NDArray[np.int64] = field(repr=False, compare=False)
    step_waits_s: NDArray[np.float64] = field(repr=False, compare=False)


def node_loads(listing: Listing, job: JobModel) -> NDArray[np.int64]:
    """Return the bytes that each node reads in an epoch, int64[nodes]. Shards that nodes share count in equal parts."""
    sizes, nodes = listing.sizes, job.node_count
    if job.sharding == REPLICATED:
        return np.full(nodes, sizes.sum(), np.int64)
    if job.sharding == KEY:
        owners = np.arange(sizes.shape[0]) % nodes
    elif job.sharding == SIZE:
        owners = listing.partitioning(job.open_spec((), 0, 0).order).owners_of(sizes, nodes)
    else:
        return np.full(nodes, sizes.sum() // nodes, np.int64)
    return np.bincount(owners, sizes, minlength=nodes).astype(np.int64)


def chosen_nodes(loads: NDArray[np.int64], count: int, seed: int) -> tuple[int, ...]:
    """Return the nodes to simulate, ascending: the fullest one, the first, the last, and others at random."""
    nodes = loads.shape[0]
    found = dict.fromkeys((int(loads.argmax()), 0, nodes - 1))
    others = random.Random(seed).sample(range(nodes), min(count + len(found), nodes))  # noqa: S311 - no secret
    return tuple(sorted([*found, *(node for node in others if node not in found)][:count]))


def report_of(scenario: Scenario, run: JobRun, loads: NDArray[np.int64], prices: Prices) -> SimulationReport:
    """Return the figures of a run.

    Args:
        scenario: what was simulated.
        run: what happened to the simulated nodes.
        loads: see ``node_loads``.
        prices: prices of the store.
    """
    job, listing = scenario.job, scenario.view.listing
    samples = run.steps * job.batch_size * job.node_count * job.rank_count
    scaling = _Scaling(run, loads, prices)
    begins = (0.0, *run.epoch_ends_s[:-1])
    epochs = tuple(
        scaling.epoch(number, end_s - begin_s, samples)
        for number, (begin_s, end_s) in enumerate(zip(begins, run.epoch_ends_s, strict=True))
    )
    run_s = run.epoch_ends_s[-1] - run.first_batch_s
    mean = float(loads.mean())
    simulated = tuple(
        SimulatedNodeFigures(
            node.node_rank,
            node.assigned_shards,
            node.assigned_bytes,
            node.wait_s / run_s if run_s else 0.0,
            node.counts[-1].fetched_bytes,
        )
        for node in run.nodes
    )
    return SimulationReport(
        objects=len(listing.refs),
        bytes=int(listing.sizes.sum()),
        nodes=job.node_count,
        ranks=job.rank_count,
        steps=run.steps,
        samples=samples,
        first_batch_s=run.first_batch_s,
        run_s=run_s,
        samples_s=samples * len(epochs) / run_s if run_s else 0.0,
        utilisation=min(job.step_s * run.steps * len(epochs) / run_s, 1.0) if run_s else 1.0,  # rounded above 1
        hit_rate=sum(epoch.hit_rate for epoch in epochs) / len(epochs),
        requests=sum(epoch.requests for epoch in epochs),
        cost=sum(epoch.cost for epoch in epochs),
        skew=float(loads.max()) / mean - 1 if mean else 0.0,
        epochs=epochs,
        simulated=simulated,
        node_bytes=np.sort(loads),
        step_waits_s=np.array(run.step_waits_s),
    )


class _Scaling:
    """Figures of all nodes from those of the simulated ones: by assigned bytes, and listings by the number of nodes."""

    def __init__(self, run: JobRun, loads: NDArray[np.int64], prices: Prices) -> None:
        self._run = run
        self._prices = prices
        self._assigned_bytes = sum(node.assigned_bytes for node in run.nodes)
        self._by_bytes = float(loads.sum()) / self._assigned_bytes if self._assigned_bytes else 0.0
        self._by_nodes = loads.shape[0] / len(run.nodes)

    def epoch(self, number: int, seconds: float, samples: int) -> EpochFigures:
        """Return the figures of an epoch."""

        def total(name: str) -> float:
            return sum(_grown(node.counts, number, name) for node in self._run.nodes)

        fetched = total("fetched_bytes")
        gets, heads = round(total("gets") * self._by_bytes), round(total("heads") * self._by_bytes)
        lists = round(total("lists") * self._by_nodes)
        fetched_bytes = round(fetched * self._by_bytes)
        requests_cost = (gets + heads) / 1000 * self._prices.get + lists / 1000 * self._prices.list
        return EpochFigures(
            seconds=seconds,
            samples_s=samples / seconds if seconds else 0.0,
            hit_rate=max(1 - fetched / self._assigned_bytes, 0.0) if self._assigned_bytes else 0.0,
            gets=gets,
            heads=heads,
            lists=lists,
            refused=round(total("refused") * self._by_bytes),
            fetched_bytes=fetched_bytes,
            evictions=round(total("evictions") * self._by_bytes),
            cost=requests_cost + fetched_bytes / (1 << 30) * self._prices.gib,
        )


def _grown(counts: tuple[NodeCounts, ...], epoch: int, name: str) -> float:
    """Return by how much a count grew in an epoch."""
    before = getattr(counts[epoch - 1], name) if epoch else 0
    return float(getattr(counts[epoch], name) - before)
