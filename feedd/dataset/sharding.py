"""Assigns keys to nodes. SageMaker leaves the function open (it promises about M/N objects); this one is documented."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from feedd.errors import BadRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.values import Topology

KEY = "key"
REPLICATED = "replicated"
SIZE = "size"
SAMPLE = "sample"
MODES = (KEY, REPLICATED, SIZE, SAMPLE)


def check_mode(how: str) -> None:
    """Refuse an unknown sharding mode.

    Raises:
        BadRequest: the mode is unknown.
    """
    if how not in MODES:
        raise BadRequest(f"expected sharding to be one of {', '.join(MODES)}, got {how!r}")


def check_equal_ranks(topology: Topology, what: str, hint: str) -> None:
    """Refuse nodes with different numbers of ranks.

    Args:
        topology: as this node sees it.
        what: the feature that needs the same number on all nodes.
        hint: what to do instead.

    Raises:
        BadRequest: the numbers differ.
    """
    world, nodes, ranks = topology.world_size, topology.node_count, topology.local_world_size
    if world != nodes * ranks:
        raise BadRequest(
            f"expected the same number of ranks on all nodes for {what}, got {world} ranks on {nodes} nodes, {ranks} of"
            " them on this one",
            hint=hint,
            stage="plan",
        )


def assign(sizes: NDArray[np.int64], node_count: int, node_rank: int, how: str) -> NDArray[np.int64]:
    """Return the indices (ascending) of the shards that node ``node_rank`` of ``node_count`` reads.

    Args:
        sizes: int64[shards], bytes of each shard in the dataset's order.
        node_count: number of nodes.
        node_rank: rank of this node.
        how: ``key``: shard i to node i mod N (ShardedByS3Key, M/N objects within one). ``replicated``: all to every
            node. ``size``: largest first to the node with the fewest bytes, ties to the lower shard and node.
            ``sample`` also splits shards: see ``dataset.assignment``.

    Raises:
        BadRequest: the mode is unknown, or does not assign whole shards.
    """
    check_mode(how)
    if how == SAMPLE:
        raise BadRequest("expected a sharding of whole objects, got 'sample', which splits objects by sample counts")
    count = int(sizes.shape[0])
    if how == REPLICATED:
        return np.arange(count, dtype=np.int64)
    if how == KEY:
        return np.arange(node_rank, count, node_count, dtype=np.int64)
    return np.flatnonzero(balance(sizes, node_count) == node_rank).astype(np.int64)


def assign_all(sizes: NDArray[np.int64], node_count: int, how: str) -> list[NDArray[np.int64]]:
    """Return the result of ``assign`` for every node, in one pass over the shards.

    Raises:
        BadRequest: see ``assign``.
    """
    if how != SIZE:
        first = assign(sizes, node_count, 0, how)
        others = range(1, node_count)
        return [first, *(first if how == REPLICATED else assign(sizes, node_count, node, how) for node in others)]
    owners = balance(sizes, node_count)
    ends = np.cumsum(np.bincount(owners, minlength=node_count))
    return np.split(np.argsort(owners, kind="stable"), ends[:-1])


def balance(sizes: NDArray[np.int64], node_count: int) -> NDArray[np.int64]:
    """Return the node of each shard among ``node_count`` nodes, int64[shards]; about a microsecond per shard."""
    owners = np.empty(sizes.shape[0], dtype=np.int64)
    heap = [(0, node) for node in range(node_count)]
    order = np.argsort(-sizes, kind="stable")
    for shard, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        load, node = heap[0]
        owners[shard] = node
        heapq.heapreplace(heap, (load + size, node))
    return owners
