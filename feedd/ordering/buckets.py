"""Samples of similar length in one step: a window's samples sorted by length, cut into steps, the steps shuffled. Pure.

A step is what a partition gives to all ranks together, at the same place in its stream whatever their number, so that
what a step holds depends on the lengths in its window, on the seed and on where the window begins, and on nothing else.
A window that begins or ends inside a step gives it what is missing or left over, of any length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.ordering import rng
from feedd.ordering.epoch import NeedCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.values import ShardIndex

BUCKETS = 4
"""The domain of this module, beside those of ``rng``: part of the order, never renumber."""


@dataclass(frozen=True, slots=True)
class NeedLengths(NeedCounts):
    """Nothing can be said before the lengths of these shards' samples are known.

    Attributes:
        learn: takes their indexes, in that order; what is asked again right after it can be said.
    """

    learn: Callable[[Sequence[ShardIndex]], None]


def by_length(lengths: NDArray[np.int64], start: int, step_samples: int, key: int) -> NDArray[np.int64]:
    """Return the order of a window's samples, as indices.

    Args:
        lengths: int64[samples], in the order they would have by chance alone.
        start: position of the window's first sample in its partition's stream.
        step_samples: of the partition in a step of all ranks.
        key: of the random words that say which length comes when.
    """
    sizes = _cut(int(lengths.shape[0]), start, step_samples)
    places = rng.permutation(sizes.shape[0], key)  # the steps, by ascending length
    step = np.empty(lengths.shape[0], np.int64)
    step[np.argsort(lengths, kind="stable")] = np.repeat(places, sizes[places])
    return np.argsort(step, kind="stable")  # inside a step by chance, so that no rank has the longest of each


def _cut(count: int, start: int, step_samples: int) -> NDArray[np.int64]:
    """Return how many of the samples each step gets: whole ones, but for the first and the last."""
    edges = np.arange(start - start % step_samples, start + count + step_samples, step_samples)
    return np.diff(np.clip(edges, start, start + count)).astype(np.int64)


def lengths_of(index: ShardIndex, sources: Sequence[str]) -> NDArray[np.int64]:
    """Return the stored bytes of a field, int64[samples]; -1 where a sample lacks it.

    Args:
        index: of the shard.
        sources: names it may have, the first one that a sample has counts.
    """
    found = np.full(index.sample_count, -1, np.int64)
    for source in reversed(sources):
        if source in index.fields:
            sizes = index.sizes[index.fields.index(source)]
            found = np.where(sizes >= 0, sizes, found)
    return found


def gathered(
    lengths: Mapping[int, NDArray[np.int64]], shard: NDArray[np.int64], ordinal: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the length of each sample ``(shard[i], ordinal[i])``."""
    found = np.empty(shard.shape[0], np.int64)
    for number in dict.fromkeys(shard.tolist()):
        here = shard == number
        found[here] = lengths[number][ordinal[here]]
    return found
