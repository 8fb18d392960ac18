"""Which shards a mixed epoch needs, and from when till when; used as hints for the cache.

Batches come from the mixture itself, so these times need not be exact. The even order is within half a sample per
source of a straight line. So a source's weight alone gives the start and end of its windows. If sources are drawn, an
end is delayed by four standard deviations of the draw.

Windows of a schedule are not windows of a source: a new window begins at each step at which some source needs new
shards.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from feedd.ordering.epoch_access import readahead_count

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from feedd.dataset.listing import DatasetView
    from feedd.ordering.mixing import Mixture
    from feedd.ordering.repeating_source import RepeatingSource
    from feedd.values import ObjectRef


@dataclass(frozen=True, eq=False)
class ShardSchedule:
    """The shards of one node's mixed epoch; a shard needed in two own epochs of its source is listed twice.

    Attributes:
        shards: int64[n], dataset indices, in order of the first step that needs them.
        begins: int64[n], the window of that step; ascending.
        ends: int64[n], the window of the last step.
        edges: int64[windows], the first step of each window; at least one window.
    """

    shards: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    edges: NDArray[np.int64]

    def window(self, step: int) -> int:
        """Return the window of a step."""
        return int(np.searchsorted(self.edges, step, "right")) - 1

    def position(self, window: int) -> int:
        """Return the number of entries of ``shards`` in earlier windows."""
        return int(np.searchsorted(self.begins, window, "left"))

    def needed(self, window: int) -> NDArray[np.int64]:
        """Return the entries of the shards that a window needs."""
        return np.flatnonzero(self.ends[: self.position(window + 1)] >= window)

    def ending(self, window: int) -> NDArray[np.int64]:
        """Return the entries of the shards that are not needed after a window."""
        low, high = np.searchsorted(self._sorted_ends, (window, window + 1))
        return self._by_end[low:high]

    def first_since(self, window: int, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each shard (dataset index) its first entry that does not end before a window; -1: none."""
        count = self.shards.shape[0]
        held, key, least = self._by_shard
        at = np.minimum(np.searchsorted(key, shards * (self.edges.shape[0] + 1) + window, "left"), count - 1)
        found = (held[at] == shards) & (key[at] >= shards * (self.edges.shape[0] + 1) + window)
        return np.where(found, least[at], -1)

    @cached_property
    def _by_shard(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Entries by shard and end: their shards, keys to search, and the least entry from each on of its shard."""
        count = self.shards.shape[0]
        order = np.lexsort((self.ends, self.shards))
        shards, key = self.shards[order], self.shards[order] * (self.edges.shape[0] + 1) + self.ends[order]
        # The least entry from here to the end of the same shard; entries of lower shards are smaller than all of them.
        least = np.minimum.accumulate((order + shards * count)[::-1])[::-1] - shards * count
        return shards, key, least

    @cached_property
    def digest(self) -> bytes:
        """Digest that is equal for equal schedules."""
        columns = (self.shards, self.begins, self.ends, self.edges)
        return hashlib.blake2b(b"".join(column.tobytes() for column in columns), digest_size=16).digest()

    @cached_property
    def _by_end(self) -> NDArray[np.int64]:
        return np.argsort(self.ends, kind="stable")

    @cached_property
    def _sorted_ends(self) -> NDArray[np.int64]:
        return self.ends[self._by_end]


def schedule(
    partitions: Sequence[tuple[Mixture, Sequence[RepeatingSource]]], epoch: int, rank_samples: int
) -> ShardSchedule:
    """Return the schedule of a node's mixed epoch.

    Args:
        partitions: for each partition of the node, its mixture and its streams of the sources.
        epoch: the mixed epoch.
        rank_samples: samples that each partition gives to a step.
    """
    found = [_needed(mixture, streams, epoch) for mixture, streams in partitions]
    shards, begins, ends = (np.concatenate(columns) for columns in zip(*found, strict=True))
    samples = partitions[0][0].epoch_samples(epoch)
    assert samples is not None
    last = samples // rank_samples - 1
    order = np.argsort(begins, kind="stable")
    first_step = np.clip(begins[order] // rank_samples, 0, last).astype(np.int64)
    last_step = np.clip(ends[order] // rank_samples, first_step, last).astype(np.int64)
    edges = np.union1d([0], first_step)
    return ShardSchedule(
        shards[order],
        np.searchsorted(edges, first_step, "right") - 1,
        np.searchsorted(edges, last_step, "right") - 1,
        edges,
    )


def _needed(
    mixture: Mixture, streams: Sequence[RepeatingSource], epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return (shard, first sample, last sample) of a partition's mixed epoch; the samples are approximate."""
    parts, unit = mixture.parts(epoch).tolist(), mixture.unit
    lows, highs = mixture.starts(epoch).tolist(), mixture.ends(epoch).tolist()
    slack = (np.count_nonzero(parts) / 2 + 1) * unit
    found = [(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))]
    for part, stream, low, high in zip(parts, streams, lows, highs, strict=True):
        if low == high:
            continue
        needed, share = stream.needed(low, high), part / sum(parts)
        first, last = (((at - low) // unit + 0.5) * unit / share for at in (needed.first, needed.last))
        found.append((needed.shards, first - slack, last + slack + mixture.spread_samples(share)))
    shards, first, last = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return shards, first, last


class MixedAccess:
    """One mixed epoch as a stream of bytes, which the next epoch continues; see ``epoch_access.EpochAccess``."""

    def __init__(
        self,
        view: DatasetView,
        epoch: int,
        its: ShardSchedule,
        following: Callable[[], ShardSchedule],
        assigned: NDArray[np.int64],
    ) -> None:
        self.key: tuple[object, ...] = ("mixed", view.listing.digest, view.name, epoch, its.digest)
        self.epoch = epoch
        self._schedule = its
        self._following = following
        self.assigned = assigned
        self._view = view
        self._sizes = view.listing.sizes
        self._starts = self._starts_of(its)

    @property
    def epoch_bytes(self) -> float:
        """Bytes of the epoch; shards that come twice count twice."""
        return float(self._starts[-1])

    def prepare(self) -> None:
        """Sort the shards of this epoch and of the next one."""
        _ = self._next, self._is_assigned
        self._schedule.first_since(0, self.assigned[:1])

    def position(self, window: int) -> float:
        """Return the stream position where a window starts."""
        return float(self._starts[self._schedule.position(window)])

    def next_uses(self, refs: Collection[ObjectRef], window: int) -> NDArray[np.float64]:
        """Return where each object is needed next: in this epoch, in the next one, or after its end."""
        shards = self._view.find(refs)
        found = np.full(shards.shape, np.inf)
        own = np.flatnonzero((shards >= 0) & self._is_assigned[shards])
        here = self._schedule.first_since(window, shards[own])
        found[own] = np.where(here < 0, self._next[shards[own]], self._starts[here])
        return found

    def ending(self, window: int) -> list[int]:
        """Return the shards (dataset indices) that this epoch does not need after a window."""
        found: list[int] = self._schedule.shards[self._schedule.ending(window)].tolist()
        return found

    def wishes(self, window: int, readahead_bytes: int = 0) -> list[int]:
        """Return the shards (dataset indices) that should be in the cache from a window on, the first needed first."""
        its = self._schedule
        here, end = its.needed(window), its.position(window + 1)
        more = readahead_count(here.shape[0], self.epoch_bytes / max(its.shards.shape[0], 1), readahead_bytes)
        wishes = its.shards[here].tolist() + its.shards[end : end + more].tolist()
        missing = here.shape[0] + more - len(wishes)
        if missing:
            wishes += self._following().shards[:missing].tolist()
        return list(dict.fromkeys(wishes))

    def needed(self, window: int) -> list[int]:
        """Return the shards of one window (dataset indices); none past the last window."""
        found: list[int] = self._schedule.shards[self._schedule.needed(window)].tolist()
        return found

    def _starts_of(self, its: ShardSchedule) -> NDArray[np.float64]:
        return np.concatenate([np.zeros(1), np.cumsum(self._sizes[its.shards], dtype=np.float64)])

    @cached_property
    def _is_assigned(self) -> NDArray[np.bool_]:
        found = np.zeros(self._sizes.shape, np.bool_)
        found[self.assigned] = True
        return found

    @cached_property
    def _next(self) -> NDArray[np.float64]:
        """Position of each shard (by dataset index) in the next epoch; that epoch's end if the shard is not needed."""
        its = self._following()
        starts = self._starts_of(its) + self.epoch_bytes
        positions = np.full(self._sizes.shape, starts[-1])
        positions[its.shards[::-1]] = starts[:-1][::-1]
        return positions
