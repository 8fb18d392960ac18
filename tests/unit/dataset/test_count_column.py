"""Sample counts in a column: as a dictionary holds them."""

from __future__ import annotations

import numpy as np
import pytest

from feedd.dataset.assignment import Assignment, Partitioning
from feedd.dataset.step_counts import CountColumn, known_counts


def test_a_column_is_a_mapping() -> None:
    """Unknown counts are missing, and may be learned."""
    counts = CountColumn(np.array([3, -1, 0], np.int64))
    assert (len(counts), list(counts), dict(counts)) == (2, [0, 2], {0: 3, 2: 0})
    assert (counts.get(1), 1 in counts, counts.get(-1), counts.get(3)) == (None, False, None, None)
    assert known_counts(counts, 3) is None
    assert Assignment(np.array([0, 1])).counts(counts) is None
    assert counts.setdefault(1, 8) == 8
    assert counts.setdefault(1, 9) == 8
    assert len(counts) == 3
    whole = known_counts(counts, 3)
    assert whole is not None
    assert whole.tolist() == [3, 8, 0]
    share = Assignment(np.array([2, 1])).counts(counts)
    assert share is not None
    assert share.tolist() == [0, 8]


def test_counts_are_never_forgotten() -> None:
    """Plans rest on them."""
    counts = CountColumn(np.array([3], np.int64))
    with pytest.raises(TypeError, match="expected counts to stay known"):
        del counts[0]


@pytest.mark.parametrize("how", ["key", "replicated", "size"])
@pytest.mark.parametrize("node_rank", [0, 2])
def test_a_partition_at_regular_distances_copies_no_column(how: str, node_rank: int) -> None:
    """Its sizes and counts are those of its shards, and lie in the columns of the dataset if distances are equal."""
    sizes, counts = np.arange(100, 108, dtype=np.int64), CountColumn(np.arange(8, dtype=np.int64))
    (share,) = Partitioning(how, 3).shares(sizes, counts, 3, node_rank)
    found = share.counts(counts)
    assert share.sizes is not None
    assert found is not None
    assert share.sizes.tolist() == sizes[share.shards].tolist()
    assert found.tolist() == share.shards.tolist()
    regular = how != "size"
    assert np.shares_memory(share.sizes, sizes) is regular
    assert np.shares_memory(found, counts.samples) is regular


def test_a_node_without_shards_has_empty_columns() -> None:
    """More nodes than shards leave some without any."""
    (share,) = Partitioning("key", 3).shares(np.ones(2, np.int64), {}, 3, 2)
    assert share.sizes is not None
    assert (share.shards.tolist(), share.sizes.tolist()) == ([], [])
