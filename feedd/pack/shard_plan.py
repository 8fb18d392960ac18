"""Which samples go into which shard. Pure, and a function of sizes and seed alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.ordering.rng import derive, permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DOMAIN: Final = 0x7061636B  # a stream of its own, apart from those of training


def sample_order(count: int, seed: int | None) -> NDArray[np.int64]:
    """Return the order in which samples are written: as listed, or permuted by a seed."""
    return np.arange(count, dtype=np.int64) if seed is None else permutation(count, derive(_DOMAIN, seed))


def shard_cuts(sizes: NDArray[np.int64], shard_bytes: int) -> NDArray[np.int64]:
    """Return the first sample of each shard, and the number of samples at the end.

    Shards have nearly equal sizes: each border is the one nearest to its share of all bytes. A shard has less than
    ``shard_bytes`` and one sample.

    Args:
        sizes: int64[samples], bytes of each sample in its shard, in order.
        shard_bytes: wanted size of a shard.
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    count = max(1, -(-total // shard_bytes))
    wanted = np.arange(1, count, dtype=np.float64) * (total / count)
    after = np.minimum(np.searchsorted(ends, wanted), len(ends) - 1)
    before = np.maximum(after - 1, 0)
    nearer = np.where(wanted - ends[before] < ends[after] - wanted, before, after) + 1
    return np.unique(np.concatenate(([0], nearer, [len(sizes)]))).astype(np.int64)
