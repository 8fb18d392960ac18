"""Keys to nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.dataset.sharding import assign
from feedd.errors import BadRequest
from feedd.ordering.progress import Progress


def test_key_is_index_modulo_nodes() -> None:
    """ShardedByS3Key: key i of the ordered list goes to node i mod N."""
    assert assign(np.ones(7, dtype=np.int64), 3, 1, "key").tolist() == [1, 4]


@given(sizes=st.lists(st.integers(0, 1000), max_size=40), nodes=st.integers(1, 6), how=st.sampled_from(["key", "size"]))
def test_each_shard_has_one_node(sizes: list[int], nodes: int, how: str) -> None:
    """Assignments of all nodes are disjoint and cover everything."""
    array = np.array(sizes, dtype=np.int64)
    shards = [shard for node in range(nodes) for shard in assign(array, nodes, node, how).tolist()]
    assert sorted(shards) == list(range(len(sizes)))


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=40), nodes=st.integers(1, 6))
def test_size_balances_within_one_shard(sizes: list[int], nodes: int) -> None:
    """By size, no node exceeds the lightest by more than the largest shard."""
    array = np.array(sizes, dtype=np.int64)
    loads = [int(array[assign(array, nodes, node, "size")].sum()) for node in range(nodes)]
    assert max(loads) - min(loads) <= max(sizes)


def test_replicated_and_unknown() -> None:
    """Replicated gives all to everyone; what is not served is refused by name."""
    assert assign(np.ones(3, dtype=np.int64), 2, 1, "replicated").tolist() == [0, 1, 2]
    with pytest.raises(BadRequest, match="sample counts"):
        assign(np.ones(3, dtype=np.int64), 2, 1, "sample")
    with pytest.raises(BadRequest, match="'hash'"):
        assign(np.ones(3, dtype=np.int64), 2, 1, "hash")


def test_progress_follows_the_slowest() -> None:
    """A window is left when the slowest reader has left it, once; leaving readers hold nobody back."""
    progress = Progress()
    progress.join("a", 0)
    progress.join("b", 0)
    assert list(progress.advance("a", 3)) == []
    assert list(progress.advance("b", 2)) == [0, 1]
    assert list(progress.advance("b", 1)) == []
    assert list(progress.leave("b")) == [2]
    assert progress.reader_count == 1
