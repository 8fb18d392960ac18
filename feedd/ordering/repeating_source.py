"""One source of a mixture, as one partition reads it: its own epochs one after another, without end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from feedd.ordering.epoch import EpochMap, EpochOptions, Located, seeds
from feedd.ordering.sorted_windows import widened

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.dataset.assignment import Assignment
    from feedd.ordering.sorted_windows import WindowRows

    Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]

_EPOCHS_KEPT = 3  # the current one, the next one if a batch spans both, and a third for hints to the cache
_WINDOWS_KEPT = 3  # as many as a plain reader keeps
_ROUNDS = 4  # a source that repeats more often in one mixed epoch is needed throughout


@dataclass(frozen=True, slots=True, eq=False)
class Needed:
    """The shards that a span of a source's stream needs, and the part of the span that needs each.

    Attributes:
        shards: int64[n], dataset indices, in order of their first sample.
        first: int64[n], the first position in the span whose window holds the shard.
        last: int64[n], the last such position.
    """

    shards: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


class RepeatingSource:
    """A source's stream on one partition. Synchronous, no I/O.

    Each own epoch equals that of a plain reader of this source alone with the same seed. Shards come in that epoch's
    order, in windows, samples permuted inside each. Caches only values it can compute again.
    """

    def __init__(self, share: Assignment, first: int, counts: NDArray[np.int64], options: EpochOptions) -> None:
        """Plan a stream.

        Args:
            share: the partition's part of the source, shards counted within the source.
            first: dataset index of the source's first shard.
            counts: samples of each of the source's shards.
            options: seed and shuffle; the epoch in it is ignored.
        """
        if share.lows is None or share.highs is None:
            held = counts[share.shards]
            share = replace(share, lows=np.zeros_like(held), highs=held)
        assert share.lows is not None
        assert share.highs is not None
        self._assignment = share
        self._counts = share.highs - share.lows
        self._first = first
        self._options = options
        self.sample_count = int(self._counts.sum())
        self._maps: dict[int, EpochMap] = {}
        self._windows: dict[tuple[int, int], WindowRows] = {}

    @property
    def shards(self) -> NDArray[np.int64]:
        """The stream's shards, as dataset indices, ascending."""
        return self._assignment.shards + self._first

    def take(self, low: int, high: int) -> Columns:
        """Return (shard, ordinal, augmentation seed) of positions ``[low, high)``; the source must have samples."""
        parts = []
        while low < high:
            epoch, start = divmod(low, self.sample_count)
            end = min(start + high - low, self.sample_count)
            parts += self._take(epoch, start, end)
            low += end - start
        if len(parts) == 1:
            return parts[0]
        shard, ordinal, seed = zip(*parts, strict=True)
        return np.concatenate(shard), np.concatenate(ordinal), np.concatenate(seed)

    def order(self, position: int) -> NDArray[np.int64]:
        """Return the shards (dataset indices) in the order in which they are needed from ``position`` on."""
        if not self.sample_count:
            return self.shards
        epoch, start = divmod(position, self.sample_count)
        plan = self._map(epoch)
        edges, starts = plan.windows()
        order = np.roll(plan.order, -int(edges[np.searchsorted(starts, start, "right") - 1]))
        return order.astype(np.int64) + self._first

    def needed(self, low: int, high: int) -> Needed:
        """Return the shards of the windows that hold positions ``[low, high)``; the source must have samples."""
        rounds = range(low // self.sample_count, -(-high // self.sample_count))
        parts = [self._needed(epoch, low, high) for epoch in (rounds[:1] if len(rounds) > _ROUNDS else rounds)]
        shards, first, last = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if len(rounds) > _ROUNDS:
            left = np.setdiff1d(self.shards, shards)  # shards of the first epoch that were read before
            shards = np.concatenate([shards, left])
            first = np.concatenate([first, np.full_like(left, rounds[1] * self.sample_count)])
            last = np.full_like(shards, high - 1)
        return Needed(shards, first, last)

    def _needed(
        self, epoch: int, low: int, high: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        plan = self._map(epoch)
        edges, starts = plan.windows()
        starts = starts + epoch * self.sample_count
        begin = int(np.searchsorted(starts[1:], low, "right"))
        end = int(np.searchsorted(starts[:-1], high, "left"))
        widths = np.diff(edges[begin : end + 1])
        first = np.repeat(np.maximum(starts[begin:end], low), widths)
        last = np.repeat(np.minimum(starts[begin + 1 : end + 1], high) - 1, widths)
        return plan.order[edges[begin] : edges[end]].astype(np.int64) + self._first, first, last

    def _take(self, epoch: int, low: int, high: int) -> list[Columns]:
        plan = self._map(epoch)
        found = plan.locate(low, high)
        assert isinstance(found, Located), "every count is known"
        options = replace(self._options, epoch=epoch)
        parts = []
        for segment in found.segments:
            shard, ordinal = widened(*self._window(epoch, segment.window), slice(segment.low, segment.high))
            parts.append((shard + self._first, ordinal, seeds(options, shard, ordinal)))
        return parts

    def _window(self, epoch: int, window: int) -> WindowRows:
        known = self._windows.get((epoch, window))
        if known is None:
            known = self._windows[epoch, window] = self._map(epoch).samples(window)
            while len(self._windows) > _WINDOWS_KEPT:
                del self._windows[next(iter(self._windows))]
        return known

    def _map(self, epoch: int) -> EpochMap:
        known = self._maps.get(epoch)
        if known is None:
            known = self._maps[epoch] = EpochMap(self._assignment, replace(self._options, epoch=epoch), {})
            known.know(self._counts)
            while len(self._maps) > _EPOCHS_KEPT:
                del self._maps[next(iter(self._maps))]
        return known
