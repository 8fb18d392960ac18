"""What is simulated: the job, the machine of a node, and the store. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import BadRequest
from feedd.open_spec import DataSpec, OpenSpec, OrderSpec
from feedd.values import Topology

if TYPE_CHECKING:
    from feedd.dataset.listing import DatasetView
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.values import ObjectRef


@dataclass(frozen=True, slots=True)
class StoreModel:
    """How the store answers.

    Attributes:
        latency_s: time from a request to the first byte of its answer.
        connection_bytes_s: rate of one request's body at most.
        requests_s: requests per second that the store serves to all nodes together; 0: no limit.
    """

    latency_s: float = 0.03
    connection_bytes_s: float = 80e6
    requests_s: float = 5500.0


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A node and its daemon.

    Attributes:
        link_bytes_s: rate of the node's network link.
        cache_bytes: disk bytes of the cache.
        workers: decode workers.
        decode_s: CPU seconds of a worker for one sample.
        index_s: CPU seconds of a worker for each sample of a shard whose index is read.
        open_s: time of an open besides its requests, the first shard and the first batch.
    """

    link_bytes_s: float = 1.25e9
    cache_bytes: int = 1 << 40
    workers: int = 8
    decode_s: float = 0.001
    index_s: float = 5e-6
    open_s: float = 0.1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise BadRequest(f"expected 1 or more decode workers, got {self.workers}", object="--workers")


@dataclass(frozen=True, slots=True)
class JobModel:
    """The training job.

    Attributes:
        node_count: number of nodes.
        rank_count: ranks of each node.
        epoch_count: number of epochs.
        step_s: time of a step, in which the trainer uses a batch. All ranks take each step together.
        batch_size: samples of a rank's step.
        batch_bytes: bytes of a rank's batch in memory.
        seed: decides the order of the samples.
        shuffle: whether shards and samples are shuffled.
        window_shards: shards per shuffle window; 0: the daemon's default.
        sharding: ``key``, ``size``, ``replicated`` or ``sample``.
        prefetch: batches in advance of a rank; 0: chosen by ``batch_bytes``.
    """

    node_count: int = 1
    rank_count: int = 8
    epoch_count: int = 2
    step_s: float = 0.1
    batch_size: int = 256
    batch_bytes: int = 0
    seed: int = 0
    shuffle: bool = True
    window_shards: int = 0
    sharding: str = "key"
    prefetch: int = 0

    def open_spec(self, urls: tuple[str, ...], node_rank: int, local_rank: int) -> OpenSpec:
        """Return what the client of a rank requests."""
        rank = node_rank * self.rank_count + local_rank
        world_size = self.node_count * self.rank_count
        topology = Topology(world_size, rank, self.rank_count, local_rank, self.node_count, node_rank)
        order = OrderSpec(
            self.batch_size,
            topology,
            shuffle=self.shuffle,
            window_shards=self.window_shards,
            seed=self.seed,
            sharding=self.sharding,
            uneven="drop",
        )
        return OpenSpec(DataSpec(urls), order)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a simulation needs.

    Attributes:
        view: the dataset, with the samples of every shard.
        list_requests: successive requests that list the dataset.
        fetch: limits of the daemon's requests.
        window_shards: the daemon's default of shards per shuffle window.
        slots_max: most batches in advance of a rank.
        sidecars: objects that tell the samples of shards, which an open reads.
        nodes: the nodes to simulate, by rank.
    """

    view: DatasetView
    list_requests: int
    job: JobModel
    node: NodeModel
    store: StoreModel
    fetch: SourceOptions
    window_shards: int = 4
    slots_max: int = 64
    sidecars: tuple[ObjectRef, ...] = ()
    nodes: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        beyond = [node for node in self.nodes if not 0 <= node < self.job.node_count]
        if beyond or not self.nodes:
            raise BadRequest(f"expected nodes of {self.job.node_count} to simulate, got {list(self.nodes)}")
