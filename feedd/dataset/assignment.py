"""The partitions of a dataset: the part that each node reads, cut so that other node counts can read it too.

A dataset is cut into ``partition_count`` parts by position in its listing, and node ``n`` of ``N`` reads the parts ``n,
n + N, n + 2 N, ...``. With as many parts as nodes, the default, that is SageMaker's ShardedByS3Key (M/N objects per
node). With more parts, each part stays the same when ``N`` becomes another divisor, which makes a run elastic.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from feedd.dataset.sharding import REPLICATED, SAMPLE, SIZE, assign, balance, check_equal_ranks
from feedd.dataset.step_counts import CountColumn
from feedd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from feedd.values import Topology


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """The part of a dataset that one partition reads, in the listing's order.

    Attributes:
        shards: int64[n], dataset indices.
        lows: int64[n], first sample of each; None: all samples of all shards.
        highs: int64[n], end of the samples of each.
        sizes: int64[n], bytes of each shard; None: unknown.
        step: distance between the shards, if all distances are equal; 0: they may differ.
    """

    shards: NDArray[np.int64]
    lows: NDArray[np.int64] | None = None
    highs: NDArray[np.int64] | None = None
    sizes: NDArray[np.int64] | None = None
    step: int = 0

    def column(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the values of these shards, from those of all shards; without a copy if distances are equal."""
        if not self.step or not self.shards.shape[0]:
            return values[self.shards]
        first = int(self.shards[0])
        return values[first : first + self.step * self.shards.shape[0] : self.step]

    def counts(self, known: Mapping[int, int]) -> NDArray[np.int64] | None:
        """Return this partition's samples of each shard, int64[n], or None if a count is not known."""
        if self.lows is not None and self.highs is not None:
            return self.highs - self.lows
        if isinstance(known, CountColumn):
            found = self.column(known.samples)
            return found if (found >= 0).all() else None
        try:
            return np.fromiter((known[shard] for shard in self.shards.tolist()), np.int64, self.shards.shape[0])
        except KeyError:
            return None


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How a dataset is cut.

    Attributes:
        how: ``key``, ``size``, ``replicated`` or ``sample``.
        partition_count: number of parts; a multiple of the nodes.
        owners_of: returns the part of each shard by size; a listing passes a function that remembers the result.
    """

    how: str
    partition_count: int
    owners_of: Callable[[NDArray[np.int64], int], NDArray[np.int64]] = field(default=balance, repr=False, compare=False)

    @classmethod
    def of(cls, how: str, partition_count: int, batch_size: int, topology: Topology) -> Partitioning:
        """Check the parts against a topology; 0 parts means one per node.

        Raises:
            BadRequest: they do not fit together; the message says what would.
        """
        nodes, ranks = topology.node_count, topology.local_world_size
        count = partition_count or nodes
        if count % nodes:
            raise BadRequest(
                f"expected partitions to be a multiple of the {nodes} nodes, got {count}",
                hint="choose a number that all node counts of the run divide",
                stage="plan",
            )
        if count != nodes:
            if how == REPLICATED:
                raise BadRequest(f"expected as many partitions as nodes for replicated data, got {count}")
            check_equal_ranks(topology, f"{count} partitions", "leave partitions out")
            if batch_size * ranks % (count // nodes):
                raise BadRequest(
                    f"expected the {batch_size * ranks} samples of a node's step to be a multiple of its"
                    f" {count // nodes} partitions",
                    hint="change batch_size or partitions",
                    stage="plan",
                )
        return cls(how, count)

    def shares(
        self, sizes: NDArray[np.int64], counts: Mapping[int, int], node_count: int, node_rank: int
    ) -> tuple[Assignment, ...]:
        """Return the partitions of a node, ascending.

        Args:
            sizes: int64[shards], bytes of each shard in the dataset's order.
            counts: samples by dataset index.
            node_count: number of nodes.
            node_rank: rank of this node.

        Raises:
            BadRequest: the mode is ``sample``, and the counts of some shards are not known.
        """
        return tuple(
            replace(share, sizes=share.column(sizes)) for share in self._split(sizes, counts, node_count, node_rank)
        )

    def _split(
        self, sizes: NDArray[np.int64], counts: Mapping[int, int], node_count: int, node_rank: int
    ) -> Iterable[Assignment]:
        parts = range(node_rank, self.partition_count, node_count)
        if self.how == SAMPLE:
            whole = Assignment(np.arange(sizes.shape[0], dtype=np.int64)).counts(counts)
            if whole is None:
                raise BadRequest(
                    f"expected the sample counts of all {sizes.shape[0]} shards for sharding='sample',"
                    f" got {len(counts)}",
                    hint="run feedd index, or use sharding='key' or 'size'",
                    stage="plan",
                )
            ends = np.cumsum(whole)
            return tuple(_span(whole, ends, part, self.partition_count) for part in parts)
        if self.how == REPLICATED:
            return (Assignment(assign(sizes, node_count, node_rank, self.how), step=1),)
        if self.how == SIZE:
            owners = self.owners_of(sizes, self.partition_count)
            return tuple(Assignment(np.flatnonzero(owners == part).astype(np.int64)) for part in parts)
        step = self.partition_count
        return tuple(Assignment(assign(sizes, step, part, self.how), step=step) for part in parts)


def _span(counts: NDArray[np.int64], ends: NDArray[np.int64], part: int, part_count: int) -> Assignment:
    """Return samples ``[total * part // part_count, total * (part + 1) // part_count)`` of the listing."""
    total = int(ends[-1]) if ends.size else 0
    low, high = total * part // part_count, total * (part + 1) // part_count
    if low == high:
        none = np.zeros(0, dtype=np.int64)
        return Assignment(none, none, none)
    first, last = int(np.searchsorted(ends, low, "right")), int(np.searchsorted(ends, high, "left"))
    shards = np.arange(first, last + 1, dtype=np.int64)
    shards = shards[counts[shards] > 0]
    starts = ends[shards] - counts[shards]
    return Assignment(shards, np.maximum(low - starts, 0), np.minimum(high - starts, counts[shards]))
