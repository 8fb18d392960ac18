"""Telling the cache what comes: the wish list ahead of each session, and when each shard is needed next."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from feedd.plan.horizon import Horizon
from feedd.plan.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from feedd.plan.listing import Listing
    from feedd.plan.node import NodeEpoch
    from feedd.plan.reader import Reader
    from feedd.protocols import ShardCache
    from feedd.values import Cursor, ObjectRef

_AHEAD_WINDOWS = 2
_AHEAD_SHARDS = 16
_SLACK = 1 / 16  # of an epoch's bytes: so far a stream falls behind others before its positions are told again


class Crowd:
    """Who reads what: readers of the same epoch of the same assignment go together, as far as the slowest is.

    Attributes:
        horizon: a stream per group, so that groups in different epochs or datasets can be compared.
    """

    def __init__(self) -> None:
        self.horizon = Horizon()
        self._groups: dict[tuple[object, ...], Progress] = {}

    def group(self, key: tuple[object, ...]) -> Progress | None:
        """Return the group of that name, if it has readers."""
        return self._groups.get(key)

    def found(self, key: tuple[object, ...]) -> Progress:
        """Return a new group."""
        group = self._groups[key] = Progress()
        return group

    def leave(self, key: tuple[object, ...], name: str) -> range | None:
        """Remove a reader; return the windows that everybody has now left, or None: it was the last, the group ends."""
        group = self._groups[key]
        left = group.leave(name)
        if group.reader_count:
            return left
        del self._groups[key]
        return None


@dataclass(frozen=True)
class _Walk:
    """One epoch of one assignment as a stream of bytes, which the next epoch continues."""

    key: tuple[object, ...]
    epoch: int
    plan: NodeEpoch
    listing: Listing
    reader: Reader

    @cached_property
    def _starts(self) -> NDArray[np.float64]:
        return _starts(self.listing.sizes[self.plan.order])

    @cached_property
    def _next_starts(self) -> dict[int, float]:
        shards = list(self.reader.places(self.epoch + 1))  # in the order of that epoch
        starts = _starts(self.listing.sizes[shards]) + self._starts[-1]
        return dict(zip(shards, starts.tolist(), strict=False))

    @property
    def epoch_bytes(self) -> float:
        return float(self._starts[-1])

    def position(self, window: int) -> float:
        """Return where a window starts in the stream."""
        return float(self._starts[min(self.plan.position(window), len(self._starts) - 1)])

    def uses(self, first_place: int, shards: NDArray[np.int64]) -> Iterator[tuple[ObjectRef, float]]:
        """Yield uses in this epoch, of shards that stand one after another in its order."""
        starts = self._starts[first_place : first_place + len(shards)].tolist()
        refs = self.listing.refs
        return ((refs[shard], start) for shard, start in zip(shards.tolist(), starts, strict=True))

    def next_uses(self, shards: NDArray[np.int64]) -> Iterator[tuple[ObjectRef, float]]:
        """Yield uses in the next epoch."""
        refs, starts = self.listing.refs, self._next_starts
        return ((refs[shard], starts[shard]) for shard in shards.tolist())


class Outlook:
    """One session's view of the future."""

    def __init__(self, name: str, listing: Listing, reader: Reader, cache: ShardCache, crowd: Crowd) -> None:
        self._name = name
        self._listing = listing
        self._reader = reader
        self._cache = cache
        self._crowd = crowd
        self._walk: _Walk | None = None
        self._progress = Progress()
        self._window = -1

    def enter(self, at: Cursor) -> None:
        """Start (or resume) an epoch at a cursor: say when everything is needed, and wish for what comes first."""
        plan = self._reader.epoch_map(at)
        # Two sessions belong together when they walk the same shards in the same order. By what was listed, not by
        # which listing: the same objects listed twice are the same shards in the cache.
        key = (self._listing.digest, at.epoch, plan.order.tobytes())
        before, walk = self._walk, self._walk
        if walk is None or walk.key != key:
            walk = _Walk(key, at.epoch, plan, self._listing, self._reader)
        self._walk, self._window = walk, at.window
        group = self._crowd.group(key)
        if group is None:
            group = self._found(walk, at.window)
        self._progress = group
        # The founder has told of all shards: that takes a microsecond each, so only once.
        for window in group.join(self._name, at.window):
            self._tell(walk, walk.uses(plan.position(window), plan.shards(window)))
        if before is not None and before is not walk:
            self._leave(before)
        self._wish(walk, at.window)

    def skip_to(self, at: Cursor) -> None:
        """Resume further on than was expected: what is being read ahead is dropped, so that it delays nothing."""
        self._cache.prefetch([], self._name)
        self.enter(at)

    def advance(self, at: Cursor, first_window: int, last_window: int) -> None:
        """Take note that a batch of these windows is being made."""
        if self._walk is None or at.epoch != self._walk.epoch:
            self.enter(at)
        walk = self._walk
        assert walk is not None
        for window in self._progress.advance(self._name, first_window):
            self._tell(walk, walk.next_uses(walk.plan.shards(window)))
        if last_window > self._window:
            self._window = last_window
            self._cache.note_next_use(self._crowd.horizon.advance(walk.key, walk.position(first_window)))
            self._wish(walk, last_window)  # never empty, which would cancel what this very batch is about to wait for

    def close(self) -> None:
        """Withdraw; what no other reader needs has no next use any more."""
        self._cache.prefetch([], self._name)
        if self._walk is not None:
            self._leave(self._walk)
            self._walk = None

    def _found(self, walk: _Walk, window: int) -> Progress:
        """Begin a group, with a stream that stands at ``window``: what lies before is due in the next epoch."""
        self._crowd.horizon.open(walk.key, walk.position(window), walk.epoch_bytes * _SLACK)
        order, behind = walk.plan.order, walk.plan.position(window)
        self._tell(walk, walk.uses(behind, order[behind:]))
        self._tell(walk, walk.next_uses(order[:behind]))
        return self._crowd.found(walk.key)

    def _leave(self, walk: _Walk) -> None:
        left = self._crowd.leave(walk.key, self._name)
        if left is None:
            self._cache.note_next_use(self._crowd.horizon.close(walk.key))
            return
        for window in left:
            self._tell(walk, walk.next_uses(walk.plan.shards(window)))

    def _tell(self, walk: _Walk, uses: Iterable[tuple[ObjectRef, float]]) -> None:
        self._cache.note_next_use(self._crowd.horizon.tell(walk.key, uses))

    def _wish(self, walk: _Walk, window: int) -> None:
        plan = walk.plan
        start = plan.position(window)
        width = len(plan.shards(0))
        count = width + max(_AHEAD_WINDOWS * width, _AHEAD_SHARDS)  # the window at hand, and beyond it
        shards = plan.order[start : start + count].tolist()
        if len(shards) < count:  # and beyond the epoch's end, so that the next one begins with its shards at hand
            shards += itertools.islice(self._reader.places(walk.epoch + 1), count - len(shards))
        self._cache.prefetch([self._listing.refs[shard] for shard in dict.fromkeys(shards)], self._name)


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return where each of these begins when they follow one another, and where the last one ends."""
    return np.concatenate([np.zeros(1), np.cumsum(sizes, dtype=np.float64)])
