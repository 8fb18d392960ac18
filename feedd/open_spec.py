"""A client's Open request as values, by who needs what. Translated from the wire, and not validated yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from feedd.owner import Owner
from feedd.values import Topology


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One of several datasets in a mixture.

    Attributes:
        urls, fields: see ``DataSpec``.
        weights: (first epoch, weight) pairs, ascending from epoch 0.
    """

    urls: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    weights: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Which data is read, and what becomes of a sample: for ``catalog``, ``recipe`` and ``batching``.

    Attributes:
        urls: prefixes, objects, or ``manifest+s3://…``; for a mixture, the URLs of all sources in order.
        fields: (name, recipe text) pairs; empty: the format's defaults.
        sources: datasets of a mixture; empty: ``urls`` and ``fields`` are the only dataset.
        keys: batches hold the keys and URLs of their samples.
        bad_samples: policy for bad samples, see ``recipe.bad_sample_policy``; empty: "skip".
        bad_samples_max: bad samples that a session may have in an epoch.
        filters: conditions that samples must meet, see ``recipe.filters``.
        decoded_cache: keep images decoded, see ``recipe.predecoded``.
        only: fields to read if ``fields`` is empty; empty: all fields of the data.
    """

    urls: tuple[str, ...]
    fields: tuple[tuple[str, str], ...] = ()
    sources: tuple[SourceSpec, ...] = ()
    keys: bool = False
    bad_samples: str = ""
    bad_samples_max: int = 0
    filters: tuple[str, ...] = ()
    decoded_cache: bool = False
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """Which rank gets which samples in which step: for ``ordering`` and ``dataset``.

    Attributes:
        batch_size: samples of a rank in a step.
        topology: ranks and nodes.
        shuffle: whether shards and samples are shuffled.
        window_shards: shards per shuffle window; 0: the daemon's default.
        window_bytes: size of a shuffle window instead, as many shards as fit; 0: by their number.
        bucket_by: field by whose size the samples of a window are grouped into batches; empty: at random.
        seed: decides the order.
        sharding: "key", "replicated", "size" or "sample".
        partitions: parts the dataset is split into; 0: one per node.
        uneven: "drop", "pad", "repeat", "join" or "allow"; empty: chosen automatically.
        steps: steps of every rank in every epoch; 0: as many as the samples make.
        mix: how sources are mixed, see ``ordering.mixing``; empty: there is no mixture.
        samples_per_epoch: samples of all ranks of a mixture; 0: until the first source ends.
        left_to_channel: of ``sharding``, ``shuffle`` and ``seed``, what a channel decides (``catalog.channel_urls``).
        lanes: lanes of a node that are not in ``topology`` yet, because a channel decides the sharding.
    """

    batch_size: int
    topology: Topology = field(default_factory=Topology)
    shuffle: bool = False
    window_shards: int = 0
    window_bytes: int = 0
    bucket_by: str = ""
    seed: int = 0
    sharding: str = "key"
    partitions: int = 0
    uneven: str = "allow"
    steps: int = 0
    mix: str = ""
    samples_per_epoch: int = 0
    left_to_channel: tuple[str, ...] = ()
    lanes: int = 1

    def in_lanes(self, lane_count: int) -> OrderSpec:
        """Return the order for one of ``lane_count`` lanes of each node; see ``Topology.in_lane``.

        All nodes read replicated data in the same order. There the lanes of one node split the data by key, and the
        other nodes do not count.

        Raises:
            ValueError: the ranks of the nodes cannot be split so.
        """
        topology = self.topology.in_lane(lane_count)
        if lane_count == 1 or self.sharding != "replicated":
            return replace(self, topology=topology)
        node = Topology(
            world_size=self.topology.local_world_size,
            rank=self.topology.local_rank,
            local_world_size=self.topology.local_world_size,
            local_rank=self.topology.local_rank,
        )
        partitions = 0 if self.partitions == self.topology.node_count else self.partitions
        return replace(self, topology=node.in_lane(lane_count), sharding="key", partitions=partitions)


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """How one session gets its batches: for ``sessions`` and ``serve``.

    Attributes:
        epoch: the epoch that it begins with.
        prefetch_batches: requested slots; 0: chosen by the size of a batch.
        consumer_count: DataLoader workers that split the rank's stream.
        consumer_index: number of this one.
        share: name of a group of jobs that take the same batches; empty: none.
        runs: the client takes several batches in one slot.
        shared_arena: the client can read the group's batches in place, and changes nothing there.
        expect_fingerprint: fingerprint of this run's earlier Open; a listing with it is reused at any age.
    """

    epoch: int = 0
    prefetch_batches: int = 0
    consumer_count: int = 1
    consumer_index: int = 0
    share: str = ""
    shared_arena: bool = False
    runs: bool = False
    expect_fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class OpenSpec:
    """A client's Open request.

    Attributes:
        owner: who asks; the server sets it.
    """

    data: DataSpec
    order: OrderSpec
    session: SessionSpec = field(default_factory=SessionSpec)
    owner: Owner = field(default_factory=Owner.of_this_process)
