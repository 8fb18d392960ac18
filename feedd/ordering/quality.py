"""How well an order mixes shards in a batch, compared with a full shuffle and an equally large shuffle buffer.

Samples of one shard resemble each other (one camera, one class, one day). So the number of shards in a batch counts. A
full shuffle is the best possible, but it needs random access to the whole dataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.ordering import rng
from feedd.ordering.epoch import EpochMap, reading_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.dataset.assignment import Assignment
    from feedd.ordering.epoch import EpochOptions

_SAMPLES_MAX = 1 << 18  # samples examined: enough for two digits
_SHUFFLED_MAX = 1 << 23  # samples that are fully shuffled for comparison; for larger datasets some are drawn
_FULL, _BUFFER = 101, 102  # domains of random numbers used only for comparison


@dataclass(frozen=True, slots=True)
class Mix:
    """Distinct shards among the samples of a batch, on average.

    Attributes:
        windows: in this order.
        full: in a full shuffle of the same samples.
        buffer: with the shards in the same order through a shuffle buffer as large as the largest window.
        none: without shuffling.
        window_samples: samples of the largest window, which is the size of buffer and windows.
    """

    windows: float
    full: float
    buffer: float
    none: float
    window_samples: int


def mix(share: Assignment, counts: NDArray[np.int64], options: EpochOptions, batch_size: int) -> Mix:
    """Measure one partition's epoch.

    Args:
        share: the partition.
        counts: int64[n], samples of each of its shards.
        options: options of the order, with shuffling.
        batch_size: samples of a batch.
    """
    known = dict(zip(share.shards.tolist(), counts.tolist(), strict=True))
    plan = EpochMap(share, options, known)
    pieces: list[NDArray[np.int64]] = []
    largest = taken = 0
    for window in range(plan.window_count):
        if taken >= _SAMPLES_MAX:
            break
        shards, _ = plan.samples(window)
        pieces.append(shards)
        taken += shards.shape[0]
        largest = max(largest, int(shards.shape[0]))
    windows = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)
    places = reading_order(share.shards, options)
    order = share.shards[places], counts[places]
    key = rng.derive(_FULL, options.seed, options.epoch)
    return Mix(
        windows=_distinct(windows, batch_size),
        full=_distinct(_shuffled(*order, key), batch_size),
        buffer=_distinct(_buffered(_first(*order, _SAMPLES_MAX + largest), largest, options), batch_size),
        none=_distinct(_first(share.shards, counts, _SAMPLES_MAX), batch_size),
        window_samples=largest,
    )


def _first(shards: NDArray[np.int64], counts: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return the shard of each of the first ``limit`` samples."""
    enough = int(np.searchsorted(np.cumsum(counts), limit)) + 1
    return np.repeat(shards[:enough], counts[:enough])[:limit]


def _shuffled(shards: NDArray[np.int64], counts: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    """Return the shard of each of the first samples of a full shuffle."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    if total <= _SHUFFLED_MAX:
        return np.repeat(shards, counts)[rng.permutation(total, key)[:_SAMPLES_MAX]]
    # With so many samples, hardly any is drawn twice.
    drawn = rng.stream(key, np.arange(_SAMPLES_MAX)) % np.uint64(total)
    return shards[np.searchsorted(ends, drawn.astype(np.int64), "right")]


def _distinct(shards: NDArray[np.int64], batch_size: int) -> float:
    """Return the mean count of distinct values per batch, without the short last batch unless it is the only one."""
    batch_count = shards.shape[0] // batch_size
    if not batch_count:
        return float(np.unique(shards).shape[0])
    batches = np.sort(shards[: batch_count * batch_size].reshape(batch_count, batch_size), axis=1)
    return float(1 + (np.diff(batches, axis=1) != 0).sum(axis=1).mean())


def _buffered(shards: NDArray[np.int64], size: int, options: EpochOptions) -> NDArray[np.int64]:
    """Pass samples through a buffer: each new sample replaces a random one, which is output."""
    if size < 1 or shards.shape[0] <= size:
        return shards[rng.permutation(shards.shape[0], rng.derive(_BUFFER, options.seed, options.epoch))]
    held = shards[:size].tolist()
    drawn = rng.stream(rng.derive(_BUFFER, options.seed, options.epoch), np.arange(shards.shape[0] - size))
    out = []
    for place, coming in zip((drawn % np.uint64(size)).tolist(), shards[size:].tolist(), strict=True):
        out.append(held[place])
        held[place] = coming
    return np.array(out, dtype=np.int64)
