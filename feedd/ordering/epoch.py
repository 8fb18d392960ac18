"""One partition's epoch as a pure function: shard order, windows, and the stream of its samples.

The stream is windows one after another, samples permuted inside each. Sample counts may become known one shard at a
time. ``locate`` returns the place of a span of the stream, or the shards whose counts it still needs, or the end.

Rules, each with the test that holds it:

- Each sample has one place: ``test_every_sample_exactly_once``.
- A step's samples do not depend on what was asked before: ``test_batches_may_be_asked_for_in_any_order``.
- An anchor replaces the counts of all windows before it: ``test_resume_at_every_step``. One that contradicts the plan
  is refused: ``test_a_foreign_cursor_is_refused``.
- Windows are full, but grow in epoch 0: ``test_windows_of_so_many_shards``, ``test_windows_of_so_many_bytes``.
- Without shuffle the order is the listing's: ``test_without_shuffle_order_is_the_listing``.
- A sample's augmentation does not depend on its batch: ``test_seeds_do_not_depend_on_the_batch``.
- An order is the same in every version: ``tests/e2e/test_stored_runs.py``.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from feedd.ordering import rng

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from feedd.dataset.assignment import Assignment

_FEW_SAMPLES: Final = 4  # of a shard
_SEARCHED_SAMPLES: Final = 1024  # of a window; the order in which its shards are needed then takes 0.1 ms to find
Anchor = tuple[int, int]
"""A window, and the position in the stream of its first sample."""


@dataclass(frozen=True, slots=True)
class EpochOptions:
    """Everything that an order depends on, besides the assignment.

    Attributes:
        window_shards: shards per shuffle window; without shuffle a window is one shard.
        window_bytes: size of a window instead, as many shards as fit, at least one; 0: by their number.
        growing: the first windows of epoch 0 have 1, 2, 4, ... shards at most, so that the first batch of a run waits
            for one shard.
    """

    epoch: int
    seed: int
    shuffle: bool
    window_shards: int
    window_bytes: int = 0
    growing: bool = True


class Segment(NamedTuple):
    """Samples ``[low, high)`` of one window's permuted order."""

    window: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Located:
    """A span of the stream, cut off at the stream's end: its segments, in order.

    Attributes:
        anchor: window of the span's first sample and that window's position, from which all that follows can be found
            again.
    """

    segments: tuple[Segment, ...]
    anchor: Anchor


@dataclass(frozen=True, slots=True)
class NeedCounts:
    """The sample counts of these shards (dataset indices) are needed first."""

    shards: tuple[int, ...]


def reading_order(assigned: NDArray[np.int64], options: EpochOptions) -> NDArray[np.int64]:
    """Return the reading order of this epoch, as indices into ``assigned`` (dataset indices).

    A shard's place follows from the stream word of its own dataset index. So the relative order of two shards is the
    same on every node.
    """
    if not options.shuffle:
        return np.arange(assigned.shape[0], dtype=np.int64)
    key = rng.derive(rng.SHARDS, options.seed, options.epoch)
    return rng.ascending(rng.stream(key, assigned))


class EpochMap:
    """The position of each sample of one partition's epoch. Synchronous, no I/O; not thread-safe."""

    def __init__(self, share: Assignment, options: EpochOptions, counts: Mapping[int, int]) -> None:
        """Plan an epoch.

        Args:
            share: the partition.
            options: everything the order depends on.
            counts: sample counts by dataset index; may grow between calls, never change.
        """
        self._options = options
        self._counts = counts
        # Numbers of shards lie in 32 bits, because a dataset may have millions of them.
        self._positions = places = reading_order(share.shards, options).astype(np.int32)
        self._order = share.shards[places].astype(np.int32)
        self._lows = None if share.lows is None else share.lows[places]
        self._highs = None if share.highs is None else share.highs[places]
        self._edges = _edges(options, int(places.shape[0]), None if share.sizes is None else share.sizes[places])
        self.window_count: int = self._edges.shape[0] - 1
        self._known: NDArray[np.int64] | None = None  # start of each window in the stream, and the stream's end
        self._starts: list[tuple[int, int]] = [(0, 0)]  # else: (stream position, window), ascending in both
        self._samples: dict[int, int] = {}  # sample counts of the windows that were searched

    def know(self, share_counts: NDArray[np.int64]) -> None:
        """Set the counts of all shards, int64 in the share's order; nothing needs counting any more."""
        sums = (
            np.add.reduceat(share_counts[self._positions], self._edges[:-1])
            if self.window_count
            else np.zeros(0, dtype=np.int64)
        )
        self._known = np.concatenate([np.zeros(1, np.int64), np.cumsum(sums)])

    def add_anchor(self, window: int, sample: int) -> None:
        """Record that ``window`` starts at stream position ``sample``.

        Raises:
            ValueError: there is no such window, or it contradicts earlier facts.
        """
        if not 0 <= window <= self.window_count or sample < 0:
            raise ValueError(f"expected a window in [0, {self.window_count}], got {window} at sample {sample}")
        if self._known is not None:
            if self._known[window] != sample:
                raise ValueError(f"expected window {window} to start at sample {self._known[window]}, got {sample}")
            return
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
        return self._order[self._slice(window)].astype(np.int64)

    def position(self, window: int) -> int:
        """Return the position of the window's first shard in the epoch's shard order."""
        return int(self._edges[min(window, self.window_count)])

    @property
    def order(self) -> NDArray[np.int32]:
        """The shards (dataset indices) in reading order."""
        return self._order

    @property
    def edges(self) -> NDArray[np.int64]:
        """Positions in ``order`` where each window begins, and the end of the last window."""
        return self._edges

    @property
    def sample_count(self) -> int | None:
        """Number of samples of the stream, or None if not known yet."""
        if self._known is not None:
            return int(self._known[-1])
        start, window = self._starts[-1]
        return start if window == self.window_count else None

    def windows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each window's start, and the end of the last window, in ``order`` and in the stream.

        All counts must be known.
        """
        assert self.sample_count is not None, "all counts must be known"
        if self._known is not None:
            return self._edges, self._known
        return self._edges, np.fromiter((start for start, _ in self._starts), np.int64, len(self._starts))

    def start(self, window: int) -> int:
        """Return the stream position of a window in which ``locate`` found samples."""
        if self._known is not None:
            return int(self._known[window])
        found = self._starts[bisect_right(self._starts, window, key=lambda start: start[1]) - 1]
        assert found[1] == window, f"window {window} was not located"
        return found[0]

    def locate(self, low: int, high: int) -> Located | NeedCounts:
        """Find samples ``[low, high)`` of the stream; there are no segments past the end."""
        start, window = self._start_before(low)
        anchor: tuple[int, int] | None = None
        segments: list[Segment] = []
        while window < self.window_count:
            count = self.counted(window)
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
        # past the end, or for an empty span: later samples are found from here as well
        return Located(tuple(segment for segment in segments if segment.high > segment.low), anchor or (window, start))

    def samples(self, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (shard, ordinal) of a window's samples in reading order. Its counts must be known.

        The numbers are int32 where they fit, because windows are kept; widen those of a batch. May run in a thread,
        because the inputs do not change.
        """
        shards = self.shards(window)
        lows, counts = self._spans(window, shards)
        before = np.cumsum(counts) - counts - lows  # added to an ordinal, the sample's place in the window
        count = int(counts.sum())
        if self._options.shuffle:
            key = rng.derive(rng.SAMPLES, self._options.seed, self._options.epoch, window)
            places = rng.narrow_permutation(count, key)
        else:
            places = np.arange(count, dtype=rng.index_type(count))
        before = before.astype(places.dtype)
        if shards.shape[0] == 1:
            return np.broadcast_to(shards, places.shape), places if before[0] == 0 else places - before[0]
        # Small numbers of the window's shards stay in a core's cache while they are drawn at random.
        number = np.repeat(
            np.arange(shards.shape[0], dtype=np.uint16 if shards.shape[0] < 1 << 16 else np.int64), counts
        )
        if self._options.shuffle:
            number = number[places]
        places -= before[number]
        return shards.astype(places.dtype)[number], places

    def first_places(self, window: int) -> dict[int, int] | None:
        """Return the place of each shard's first sample in a window, or None if it is unknown or does not matter.

        If shards have many samples each, the first batches of a window need nearly all of its shards.
        """
        if window >= self.window_count:
            return {}
        count = self.counted(window)
        if isinstance(count, NeedCounts) or count > min(_FEW_SAMPLES * len(self.shards(window)), _SEARCHED_SAMPLES):
            return None
        shards: list[int] = self.samples(window)[0].tolist()
        return dict(zip(reversed(shards), range(count - 1, -1, -1), strict=True))  # the first place is written last

    def first_sample(self, window: int) -> tuple[int, int]:
        """Return shard and ordinal of a window's first sample. Without shuffle, the others follow in that shard."""
        shards = self.shards(window)
        lows, _ = self._spans(window, shards[:1])
        return int(shards[0]), int(lows[0])

    def window_samples(self, window: int) -> int:
        """Return the number of samples of a window. Its counts must be known."""
        return int(self._spans(window, self.shards(window))[1].sum())

    def counted(self, window: int) -> int | NeedCounts:
        """Return the number of samples of a window, or the shards that must be counted first."""
        if self._known is not None:
            return int(self._known[window + 1] - self._known[window])
        known = self._samples.get(window)
        if known is not None:
            return known
        if self._lows is None:
            missing = tuple(shard for shard in self.shards(window).tolist() if shard not in self._counts)
            if missing:
                return NeedCounts(missing)
        count = self._samples[window] = self.window_samples(window)
        return count

    def _start_before(self, sample: int) -> tuple[int, int]:
        """Return the last known window that starts at or before a position of the stream, after its start."""
        if self._known is None:
            return self._starts[bisect_right(self._starts, (sample, self.window_count + 1)) - 1]
        window = int(np.searchsorted(self._known, sample, "right")) - 1
        return int(self._known[window]), window

    def _slice(self, window: int) -> slice:
        return slice(self.position(window), self.position(window + 1))

    def _spans(self, window: int, shards: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first sample and the number of samples, int64 each, of every shard of a window."""
        if self._lows is None or self._highs is None:
            counts = np.array([self._counts[shard] for shard in shards.tolist()], dtype=np.int64)
            return np.zeros_like(counts), counts
        here = self._slice(window)
        return self._lows[here], self._highs[here] - self._lows[here]

    def _remember(self, window: int, start: int) -> None:
        if self._known is not None:
            return
        if self._starts[-1][1] < window:
            self._starts.append((start, window))
        else:
            place = bisect_right(self._starts, window, key=lambda start: start[1])
            if self._starts[place - 1][1] != window:
                self._starts.insert(place, (start, window))


def _edges(options: EpochOptions, shard_count: int, sizes: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return the positions in the order where each window begins, and the end of the last window."""
    if not options.shuffle:
        return np.arange(shard_count + 1, dtype=np.int64)
    growing = options.growing and options.epoch == 0
    if not options.window_bytes:
        doublings = (options.window_shards - 1).bit_length() if growing else 0
        # Windows of 1, 2, 4, ... shards end at 1, 3, 7, ...
        first = (1 << np.arange(doublings + 1, dtype=np.int64)) - 1
        starts = np.arange(first[-1], shard_count, options.window_shards, dtype=np.int64)
        return np.append(np.concatenate([first[first < min(first[-1], shard_count)], starts]), shard_count)
    assert sizes is not None, "windows by bytes need the sizes of shards"
    ends = np.cumsum(sizes)
    edges, before, shards_max = [0], 0, 1 if growing else shard_count
    while edges[-1] < shard_count:
        end = int(np.searchsorted(ends, before + options.window_bytes, "right"))
        edges.append(max(min(end, edges[-1] + shards_max), edges[-1] + 1))
        before, shards_max = int(ends[edges[-1] - 1]), min(2 * shards_max, shard_count)
    return np.array(edges, dtype=np.int64)


def seeds(options: EpochOptions, shard: NDArray[np.int64], ordinal: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the augmentation seed of each sample: a function of (seed, epoch, shard, ordinal) only."""
    key = rng.derive(rng.AUGMENT, options.seed, options.epoch)
    return rng.stream(key, rng.stream(key, shard) ^ ordinal.astype(np.uint64))
