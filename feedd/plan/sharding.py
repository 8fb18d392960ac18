"""Keys to nodes. SageMaker leaves the assignment function open (it promises about M/N objects); ours is stated here."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from feedd.errors import BadRequest, Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY = "key"
REPLICATED = "replicated"
SIZE = "size"
MODES = (KEY, REPLICATED, SIZE)


def check_mode(how: str) -> None:
    """Refuse a sharding mode this version does not serve.

    Raises:
        Unsupported: ``sample``, which needs sample counts of every shard at open.
        BadRequest: anything else unknown.
    """
    if how == "sample":
        raise Unsupported("sharding='sample' needs the sample count of every shard", hint=f"use one of {MODES}")
    if how not in MODES:
        raise BadRequest(f"expected sharding to be one of {', '.join(MODES)}, got {how!r}")


def assign(sizes: NDArray[np.int64], node_count: int, node_rank: int, how: str) -> NDArray[np.int64]:
    """Return the indices (ascending) of the shards that node ``node_rank`` of ``node_count`` reads.

    Args:
        sizes: int64[shards], bytes of each shard in the dataset's order.
        node_count: nodes.
        node_rank: this node.
        how: ``key``: shard i to node i mod N (ShardedByS3Key, M/N objects within one); ``replicated``: all to
            everyone; ``size``: largest first to the node with the fewest bytes, ties to the lower shard and node.

    Raises:
        BadRequest, Unsupported: an unknown mode.
    """
    check_mode(how)
    count = int(sizes.shape[0])
    if how == REPLICATED:
        return np.arange(count, dtype=np.int64)
    if how == KEY:
        return np.arange(node_rank, count, node_count, dtype=np.int64)
    return np.flatnonzero(_balance(sizes, node_count) == node_rank).astype(np.int64)


def _balance(sizes: NDArray[np.int64], node_count: int) -> NDArray[np.int64]:
    owners = np.empty(sizes.shape[0], dtype=np.int64)
    heap = [(0, node) for node in range(node_count)]
    for shard in np.argsort(-sizes, kind="stable").tolist():
        load, node = heap[0]
        owners[shard] = node
        heapq.heapreplace(heap, (load + int(sizes[shard]), node))
    return owners
