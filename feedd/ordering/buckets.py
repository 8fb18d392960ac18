"""Steps of samples with similar length: sorts a window's samples by length, cuts steps, shuffles the steps. Pure.

A step is what a partition gives to all ranks together, at the same place in its stream for any number of ranks. So the
content of a step depends only on the lengths in its window, on the seed and on the window's start. If a window begins
or ends inside a step, it adds the missing or left-over samples, of any length.
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

    from feedd.shard_index import ShardIndex

BUCKETS = 4
"""A domain of ``rng``: part of the order, never renumber."""


@dataclass(frozen=True, slots=True)
class NeedLengths(NeedCounts):
    """The lengths of these shards' samples are needed first.

    Attributes:
        learn: takes the shards' indexes, in that order; a repeated request right afterwards succeeds.
    """

    learn: Callable[[Sequence[ShardIndex]], None]


def by_length(lengths: NDArray[np.int64], start: int, step_samples: int, key: int) -> NDArray[np.int64]:
    """Return the order of a window's samples, as indices.

    Args:
        lengths: int64[samples], in the window's random order.
        start: position of the window's first sample in its partition's stream.
        step_samples: samples of the partition in a step of all ranks.
        key: key of the random words that order the steps.
    """
    sizes = _step_sizes(int(lengths.shape[0]), start, step_samples)
    places = rng.permutation(sizes.shape[0], key)  # the steps, by ascending length
    step = np.empty(lengths.shape[0], np.int64)
    step[np.argsort(lengths, kind="stable")] = np.repeat(places, sizes[places])
    return np.argsort(step, kind="stable")  # random inside a step, so that no rank always gets the longest samples


def _step_sizes(count: int, start: int, step_samples: int) -> NDArray[np.int64]:
    """Return the number of samples of each step: whole steps, except for the first and the last."""
    edges = np.arange(start - start % step_samples, start + count + step_samples, step_samples)
    return np.diff(np.clip(edges, start, start + count)).astype(np.int64)


def lengths_of(index: ShardIndex, sources: Sequence[str]) -> NDArray[np.int64]:
    """Return the stored bytes of a field, int64[samples]; -1 if the sample lacks the field.

    Args:
        index: index of the shard.
        sources: possible names of the field; the first that a sample has counts.
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
