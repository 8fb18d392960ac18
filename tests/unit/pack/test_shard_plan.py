"""Cutting samples into shards."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedd.pack.shard_plan import sample_order, shard_cuts


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=200), st.integers(1, 5000))
def test_shards_hold_all_samples_in_nearly_equal_sizes(sizes: list[int], shard_bytes: int) -> None:
    """Shards follow each other without gaps, none is empty, and each is within a sample of its share."""
    cuts = shard_cuts(np.array(sizes), shard_bytes)
    assert cuts[0] == 0
    assert cuts[-1] == len(sizes)
    assert (np.diff(cuts) > 0).all()
    shards = np.add.reduceat(sizes, cuts[:-1])
    count = -(-sum(sizes) // shard_bytes)
    assert len(shards) <= count
    assert shards.max() <= sum(sizes) / count + max(sizes)
    if len(shards) == count:
        assert shards.min() >= sum(sizes) / count - max(sizes)


def test_equal_samples_make_equal_shards() -> None:
    """Ten samples of 100 bytes in shards of 250 are four shards of two or three."""
    assert shard_cuts(np.full(10, 100), 250).tolist() == [0, 3, 5, 8, 10]
    assert shard_cuts(np.array([5]), 1).tolist() == [0, 1]


def test_borders_are_the_nearest() -> None:
    """A border lies before or after the sample that holds it, whichever is nearer."""
    assert shard_cuts(np.array([95, 20, 85]), 100).tolist() == [0, 1, 3]
    assert shard_cuts(np.array([85, 20, 95]), 100).tolist() == [0, 2, 3]


def test_the_order_of_a_seed_is_pinned() -> None:
    """Parts of one pack may run on different versions of feedd: a seed means the same order in all."""
    assert sample_order(4, None).tolist() == [0, 1, 2, 3]
    assert sample_order(8, 7).tolist() == [3, 4, 2, 0, 6, 1, 7, 5]
    assert sorted(sample_order(1000, 3).tolist()) == list(range(1000))
