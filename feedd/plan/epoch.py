"""One node's epoch as a pure function: shard order, windows, samples, batches, and whose batch is whose.

Node batch ``b`` is rows ``[b*B, (b+1)*B)`` of the node's sample stream: windows one after another, samples permuted
inside each. It belongs to local rank ``b mod L`` as its step ``b div L``. Sample counts may become known one shard at
a time: ``locate`` answers with the batch, with the shards whose counts it still needs, or with the end.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.plan import rng

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EpochOptions:
    """What an order depends on, besides the assignment.

    Attributes:
        window_shards: shards per shuffle window; without shuffle a window is one shard.
        batch_size: samples per batch.
    """

    epoch: int
    seed: int
    shuffle: bool
    window_shards: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Samples ``[low, high)`` of one window's permuted order."""

    window: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Located:
    """A batch: its segments, in order, and the anchor that finds it (and every later one) again."""

    segments: tuple[Segment, ...]
    anchor_window: int
    anchor_sample: int


@dataclass(frozen=True, slots=True)
class NeedCounts:
    """Nothing can be said before the sample counts of these shards (dataset indices) are known."""

    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PastEnd:
    """The epoch ends before this batch; the node has ``samples`` samples in it."""

    samples: int


def epoch_order(assigned: NDArray[np.int64], options: EpochOptions) -> NDArray[np.int64]:
    """Return the node's shards (dataset indices) in the order in which this epoch reads them.

    A shard's place is decided by the stream word of its own dataset index, so that the relative order of two shards
    is the same on whatever node they are.
    """
    if not options.shuffle:
        return assigned
    key = rng.derive(rng.SHARDS, options.seed, options.epoch)
    return assigned[np.argsort(rng.stream(key, assigned), kind="stable")]


class EpochMap:
    """Where each batch of one node's epoch lies. Synchronous, no I/O; not thread-safe."""

    def __init__(
        self, assigned: NDArray[np.int64], options: EpochOptions, counts: Mapping[int, int], *, anchor: tuple[int, int]
    ) -> None:
        """Plan an epoch.

        Args:
            assigned: int64, the node's shards as dataset indices.
            options: what the order depends on.
            counts: sample counts by dataset index; may grow between calls, never change.
            anchor: (window, position in the stream of its first sample) from a cursor; (0, 0) at the start.
        """
        self._options = options
        self._counts = counts
        self._order = epoch_order(assigned, options)
        self._width = options.window_shards if options.shuffle else 1
        self.window_count = -(-int(self._order.shape[0]) // self._width)
        self._starts: list[tuple[int, int]] = [(0, 0)]  # (stream position, window), ascending in both
        self.add_anchor(*anchor)

    def add_anchor(self, window: int, sample: int) -> None:
        """Take note that ``window`` starts at stream position ``sample``.

        Raises:
            ValueError: no such window, or it contradicts what is known.
        """
        if not 0 <= window <= self.window_count or sample < 0:
            raise ValueError(f"expected a window in [0, {self.window_count}], got {window} at sample {sample}")
        place = bisect_right(self._starts, window, key=lambda start: start[1])
        before = self._starts[place - 1]
        if before[1] == window:
            if before[0] != sample:
                raise ValueError(f"expected window {window} to start at sample {before[0]}, got {sample}")
            return
        after = self._starts[place] if place < len(self._starts) else None
        if sample < before[0] or (after is not None and sample > after[0]):
            raise ValueError(f"expected window {window} to start after {before}, before {after}, got {sample}")
        insort(self._starts, (sample, window))

    def shards(self, window: int) -> NDArray[np.int64]:
        """Return the shards (dataset indices) of one window, in order; empty past the last window."""
        return self._order[window * self._width : (window + 1) * self._width]

    def position(self, window: int) -> int:
        """Return where in the epoch's shard order the window starts."""
        return window * self._width

    @property
    def order(self) -> NDArray[np.int64]:
        """The node's shards (dataset indices) in reading order."""
        return self._order

    def locate(self, batch_index: int) -> Located | NeedCounts | PastEnd:
        """Find node batch ``batch_index``."""
        low = batch_index * self._options.batch_size
        high = low + self._options.batch_size
        start, window = self._starts[bisect_right(self._starts, (low, self.window_count + 1)) - 1]
        anchor: tuple[int, int] | None = None
        segments: list[Segment] = []
        while window < self.window_count:
            count = self._window_samples(window)
            if isinstance(count, NeedCounts):
                return count
            end = start + count
            if end > low:
                anchor = anchor or (window, start)
                segments.append(Segment(window, max(low - start, 0), min(high - start, count)))
            window, start = window + 1, end
            if window <= self.window_count:
                self._remember(window, start)
            if end >= high:
                break
        if anchor is None:
            return PastEnd(samples=start)
        return Located(tuple(segment for segment in segments if segment.high > segment.low), *anchor)

    def samples(self, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (shard, ordinal), int64 each, of a window's samples in reading order. Its counts must be known."""
        shards = self.shards(window)
        counts = np.array([self._counts[int(shard)] for shard in shards], dtype=np.int64)
        shard = np.repeat(shards, counts)
        starts = np.cumsum(counts) - counts
        ordinal = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(starts, counts)
        if self._options.shuffle:
            key = rng.derive(rng.SAMPLES, self._options.seed, self._options.epoch, window)
            places = rng.permutation(int(ordinal.shape[0]), key)
            shard, ordinal = shard[places], ordinal[places]
        return shard, ordinal

    def _window_samples(self, window: int) -> int | NeedCounts:
        shards = self.shards(window).tolist()
        missing = tuple(shard for shard in shards if shard not in self._counts)
        return NeedCounts(missing) if missing else sum(self._counts[shard] for shard in shards)

    def _remember(self, window: int, start: int) -> None:
        if self._starts[-1][1] < window:
            self._starts.append((start, window))


def seeds(options: EpochOptions, shard: NDArray[np.int64], ordinal: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the augmentation seed of each sample: a function of (seed, epoch, shard, ordinal) and of nothing else."""
    key = rng.derive(rng.AUGMENT, options.seed, options.epoch)
    return rng.stream(key, rng.stream(key, shard) ^ ordinal.astype(np.uint64))


def batch_of(step: int, local_rank: int, local_world_size: int) -> int:
    """Return the node batch that is step ``step`` of a local rank."""
    return step * local_world_size + local_rank


def rank_steps(sample_count: int, batch_size: int, local_rank: int, local_world_size: int) -> int:
    """Return how many batches of ``sample_count`` samples a local rank gets, the short last one included."""
    batches = -(-sample_count // batch_size)
    return max(0, -(-(batches - local_rank) // local_world_size))
