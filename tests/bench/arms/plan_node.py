"""One node's plan through feedd's public names, as the daemon makes it when a session opens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feedd.dataset.assignment import Assignment, Partitioning
from feedd.dataset.step_counts import Uneven, common_steps, known_counts, partition_samples
from feedd.ordering.batch_plan import BatchRows
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.values import Cursor, Topology
from tests.bench.arms.plan_data import SEED, sample_counts, shard_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class Node:
    """A dataset of which all is known, and one of the nodes that read it."""

    sizes: NDArray[Any]
    counts: dict[int, int]
    cut: Partitioning
    topology: Topology
    batch_size: int
    window_shards: int

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Node:
        """Make it."""
        counts = sample_counts(settings["shard_count"], settings["sample_count"])
        nodes, rank = settings["node_count"], settings["node_rank"]
        topology = Topology(world_size=nodes, rank=rank, node_count=nodes, node_rank=rank)
        batch_size = settings["batch_size"]
        cut = Partitioning.of(settings["sharding"], 0, batch_size, topology)
        known = dict(enumerate(counts.tolist()))
        return cls(shard_sizes(counts), known, cut, topology, batch_size, settings["window_shards"])

    def shares(self) -> tuple[Assignment, ...]:
        """Return what the node reads."""
        return self.cut.shares(self.sizes, self.counts, self.topology.node_count, self.topology.node_rank)

    def steps(self) -> int:
        """Return the steps of every rank of all nodes."""
        counts = known_counts(self.counts, self.sizes.shape[0])
        assert counts is not None
        samples = partition_samples(self.cut, self.sizes, counts)
        return common_steps(Uneven.DROP, samples, self.batch_size, self.topology)

    def reader(self, shares: tuple[Assignment, ...], steps: int | None) -> Reader:
        """Return a fresh reader."""
        options = ReaderOptions(
            seed=SEED,
            shuffle=True,
            window_shards=self.window_shards,
            batch_size=self.batch_size,
            topology=self.topology,
            steps=steps,
        )
        return Reader(shares, options, self.counts)


def rows_at(reader: Reader, epoch: int, step: int) -> BatchRows:
    """Return the rows of a batch that must be there."""
    rows = reader.rows(Cursor(epoch, step))
    assert isinstance(rows, BatchRows), f"expected rows at step {step} of epoch {epoch}, got {rows}"
    return rows
