"""One node's epoch: its partitions side by side, dealt out to its ranks step by step.

In step ``s`` every partition of the node gives samples ``[s*g, (s+1)*g)`` of its stream. ``g`` is the number of samples
that the node's ranks take in a step, divided by the node's partitions. Concatenated, they are the node's step, of which
local rank ``l`` takes samples ``[l*B, (l+1)*B)``. So a step of all ranks of all nodes holds the same samples for any
number of nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from feedd.ordering.epoch import EpochMap, NeedCounts, Segment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from feedd.dataset.assignment import Assignment
    from feedd.dataset.step_counts import Deal
    from feedd.ordering.epoch import Anchor, EpochOptions


class Piece(NamedTuple):
    """Consecutive samples of one partition's window; ``again``: not for the first time in this epoch."""

    partition: int
    segment: Segment
    again: bool

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.segment.high - self.segment.low


@dataclass(frozen=True, slots=True)
class Step:
    """The samples of one rank's step, in order, and the partitions' anchors at it. No samples: the end."""

    pieces: tuple[Piece, ...]
    anchors: tuple[Anchor, ...]


class _CurrentWindows:
    """The current window of each of many partitions; most stay in theirs from step to step."""

    def __init__(self, count: int) -> None:
        self._anchors: list[Anchor] = [(0, 0)] * count
        self._starts = np.zeros(count, np.int64)
        self._ends = np.full(count, -1, np.int64)  # unknown
        self._said: tuple[Anchor, ...] | None = None

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """Anchors of all partitions; the same object while nothing changes."""
        if self._said is None:
            self._said = tuple(self._anchors)
        return self._said

    def leaving(self, low: int, high: int) -> list[int]:
        """Return the partitions whose current window does not contain samples ``[low, high)``."""
        numbers: list[int] = np.flatnonzero((self._starts > low) | (self._ends < high)).tolist()
        return numbers

    def enter(self, number: int, anchor: Anchor, end: int) -> None:
        """Move a partition to a window that ends at position ``end`` of its stream."""
        if self._anchors[number] != anchor:
            self._anchors[number] = anchor
            self._said = None
        self._starts[number], self._ends[number] = anchor[1], end


class NodeEpoch:
    """The position of each step of one node's epoch. Synchronous, no I/O; not thread-safe."""

    def __init__(
        self, shares: tuple[Assignment, ...], options: EpochOptions, counts: Mapping[int, int], deal: Deal
    ) -> None:
        self._maps = tuple(EpochMap(share, options, counts) for share in shares)
        self._deal = deal
        self._step_samples = deal.batch_size * deal.local_world_size // len(shares)
        self._current = _CurrentWindows(len(shares))
        self._noted: tuple[Anchor, ...] = ()
        self.window_count = max(one.window_count for one in self._maps)
        if len(self._maps) == 1:
            self._order = self._maps[0].order
        else:
            windows = [one.shards(window) for window in range(self.window_count) for one in self._maps]
            self._order = np.concatenate(windows, dtype=np.int32) if windows else self._maps[0].order

    def know(self, counts: tuple[NDArray[np.int64], ...]) -> None:
        """Set the counts of all shards, per partition, in its share's order."""
        for one, share_counts in zip(self._maps, counts, strict=True):
            one.know(share_counts)

    def add_anchors(self, anchors: tuple[Anchor, ...]) -> None:
        """Record the starts of the partitions' windows; empty: nothing is known.

        Raises:
            ValueError: there are no such windows, or they contradict earlier facts.
        """
        if anchors is self._noted or anchors is self._current.anchors:
            return  # they came from this object
        if anchors and len(anchors) != len(self._maps):
            raise ValueError(f"expected anchors of {len(self._maps)} partitions, got {len(anchors)}")
        for one, anchor in zip(self._maps, anchors, strict=False):
            one.add_anchor(*anchor)
        self._noted = anchors

    @property
    def order(self) -> NDArray[np.int32]:
        """The node's shards (dataset indices) in reading order."""
        return self._order

    @property
    def edges(self) -> NDArray[np.int64]:
        """Starts of windows in the order of each partition, one partition after another."""
        return np.concatenate([one.edges for one in self._maps])

    def shards(self, window: int) -> NDArray[np.int64]:
        """Return the shards (dataset indices) of one window of all partitions; empty past the last window."""
        if len(self._maps) == 1:
            return self._maps[0].shards(window)
        return np.concatenate([one.shards(window) for one in self._maps])

    def by_need(self, window: int) -> list[int]:
        """Return the shards (dataset indices) of one window of all partitions, the first needed first.

        Shards without samples come last. The order is that of ``shards`` unless the window has few samples for each
        shard, and all are counted. It is a guess if the samples of a window are sorted by length.
        """
        shards: list[int] = self.shards(window).tolist()
        if len(shards) == 1:
            return shards
        places: dict[int, int] = {}
        for one in self._maps:
            found = one.first_places(window)
            if found is None:
                return shards
            for shard, place in found.items():
                places[shard] = min(place, places.get(shard, place))
        return sorted(shards, key=lambda shard: places.get(shard, math.inf))

    def position(self, window: int) -> int:
        """Return the position of the window's first shard in the node's order."""
        return sum(one.position(window) for one in self._maps)

    def samples(self, partition: int, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (shard, ordinal) of a partition's window; see ``EpochMap.samples``."""
        return self._maps[partition].samples(window)

    def window_samples(self, partition: int, window: int) -> int:
        """Return the number of samples of a partition's window, which must be counted or found by ``step``."""
        return self._maps[partition].window_samples(window)

    def is_last(self, partition: int, window: int) -> bool:
        """Whether this window is the last of its partition."""
        return window + 1 >= self._maps[partition].window_count

    def is_counted(self, partition: int, window: int) -> bool:
        """Whether the samples of all shards of a partition's window are known."""
        return not isinstance(self._maps[partition].counted(window), NeedCounts)

    def partition(self, number: int) -> EpochMap:
        """Return the epoch of one partition."""
        return self._maps[number]

    @property
    def step_samples(self) -> int:
        """Samples that each partition gives in a step of all ranks."""
        return self._step_samples

    @property
    def sample_counts(self) -> tuple[int | None, ...]:
        """Number of samples of each partition, or None if not known yet."""
        return tuple(one.sample_count for one in self._maps)

    def step(self, index: int) -> Step | NeedCounts:
        """Find the rank's step ``index``; past the end it has no samples."""
        deal, per_step = self._deal, self._step_samples
        if deal.steps is not None and index >= deal.steps:
            return Step((), ())
        # Only the rank's own samples, so that no other samples need be counted.
        if len(self._maps) == 1 and not deal.wrap:
            low = index * per_step + deal.local_rank * deal.batch_size
            found = self._maps[0].locate(low, low + deal.batch_size)
            if isinstance(found, NeedCounts):
                return found
            return Step(tuple(Piece(0, segment, again=False) for segment in found.segments), (found.anchor,))
        parts = self._parts(index * per_step, (index + 1) * per_step)
        if isinstance(parts, NeedCounts):
            return parts
        low = deal.local_rank * deal.batch_size
        return Step(tuple(self._dealt(parts, index * per_step, low, low + deal.batch_size)), self._current.anchors)

    def steps_before(self, index: int) -> int:
        """Return the number of the rank's steps, after step ``index`` was found to be past its end."""
        deal = self._deal
        if deal.steps is not None:
            return deal.steps
        low, high = 0, index  # search the first step without samples; later steps never have more samples
        while low < high:
            middle = (low + high) // 2
            if self._available(middle) > deal.local_rank * deal.batch_size:
                low = middle + 1
            else:
                high = middle
        return low

    def _available(self, index: int) -> int:
        """Return the samples of a node's step; a partition whose end was not seen counts as full."""
        per_step, total = self._step_samples, 0
        for one in self._maps:
            count = one.sample_count
            total += per_step if count is None else min(max(count - index * per_step, 0), per_step)
        return total

    def _parts(self, low: int, high: int) -> dict[int, list[Piece]] | NeedCounts:
        """Find samples ``[low, high)`` of the partitions that leave their window or lack some of them.

        For all other partitions, the samples are in the current window.
        """
        parts: dict[int, list[Piece]] = {}
        for number in self._current.leaving(low, high):
            part = self._part(number, low, high)
            if isinstance(part, NeedCounts):
                return part
            parts[number], (window, start) = part
            count = self._maps[number].counted(window) if window < self._maps[number].window_count else 0
            assert isinstance(count, int), "samples were found in a window that is not counted"
            self._current.enter(number, (window, start), start + count)
        return parts

    def _dealt(self, parts: Mapping[int, list[Piece]], at: int, low: int, high: int) -> list[Piece]:
        """Return samples ``[low, high)`` of a step; partitions not in ``parts`` begin it at ``at``."""
        per_step = self._step_samples
        sizes = np.full(len(self._maps), per_step, np.int64)
        for number, pieces in parts.items():
            sizes[number] = sum(piece.size for piece in pieces)
        ends = np.cumsum(sizes)
        first, last = int(np.searchsorted(ends, low, "right")), int(np.searchsorted(ends, high, "left"))
        found: list[Piece] = []
        for number in range(first, min(last + 1, len(self._maps))):
            own = parts.get(number)
            if own is None:
                window, start = self._current.anchors[number]
                own = [Piece(number, Segment(window, at - start, at - start + per_step), again=False)]
            found += own
        before = int(ends[first - 1]) if first else 0
        return _between(found, low - before, high - before)

    def _part(self, number: int, low: int, high: int) -> tuple[list[Piece], Anchor] | NeedCounts:
        one = self._maps[number]
        found = one.locate(low, high)
        if isinstance(found, NeedCounts):
            return found
        pieces = [Piece(number, segment, again=False) for segment in found.segments]
        missing = high - low - sum(piece.size for piece in pieces)
        count = one.sample_count
        while missing and self._deal.wrap and count:
            start = (high - missing) % count
            more = one.locate(start, min(start + missing, count))
            if isinstance(more, NeedCounts):
                return more
            pieces += [Piece(number, segment, again=True) for segment in more.segments]
            missing -= min(missing, count - start)
        return pieces, found.anchor


def _between(pieces: list[Piece], low: int, high: int) -> list[Piece]:
    """Return samples ``[low, high)`` of the concatenated pieces."""
    found: list[Piece] = []
    at = 0
    for piece in pieces:
        start, end = max(low - at, 0), min(high - at, piece.size)
        if start < end:
            first = piece.segment.low
            found.append(piece._replace(segment=piece.segment._replace(low=first + start, high=first + end)))
        at += piece.size
    return found
