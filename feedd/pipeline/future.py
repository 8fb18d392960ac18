"""Telling the cache what comes: the wish list ahead of each session, and when each shard is needed next."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from feedd.plan.progress import Progress
from feedd.values import Cursor

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from feedd.plan.epoch import EpochMap
    from feedd.plan.listing import Listing
    from feedd.plan.reader import Reader
    from feedd.protocols import ShardCache
    from feedd.values import ObjectRef

_AHEAD_WINDOWS = 2
_AHEAD_SHARDS = 16


class Crowd:
    """Who reads what: readers of the same epoch of the same assignment go together, as far as the slowest is."""

    def __init__(self) -> None:
        self._groups: dict[tuple[object, ...], Progress] = {}
        self._reader_counts: Counter[tuple[object, ...]] = Counter()

    def come(self, dataset: tuple[object, ...]) -> None:
        """Take note of a reader of a dataset's assignment, in whatever epoch."""
        self._reader_counts[dataset] += 1

    def go(self, dataset: tuple[object, ...]) -> bool:
        """Forget it; True where it was the last one."""
        self._reader_counts[dataset] -= 1
        if self._reader_counts[dataset]:
            return False
        del self._reader_counts[dataset]
        return True

    def group(self, key: tuple[object, ...]) -> Progress | None:
        """Return the group of that name, if it has readers."""
        return self._groups.get(key)

    def found(self, key: tuple[object, ...]) -> Progress:
        """Return a new group."""
        group = self._groups[key] = Progress()
        return group

    def leave(self, key: tuple[object, ...], name: str) -> range:
        """Remove a reader, the last one with its group; return the windows that everybody has now left."""
        group = self._groups[key]
        left = group.leave(name)
        if not group.reader_count:
            del self._groups[key]
        return left


class Outlook:
    """One session's view of the future. Positions count shards: ``epoch * assigned + place in the epoch's order``."""

    def __init__(self, name: str, listing: Listing, reader: Reader, cache: ShardCache, crowd: Crowd) -> None:
        self._name = name
        self._listing = listing
        self._reader = reader
        self._cache = cache
        self._crowd = crowd
        # By what was listed, not by which listing: the same objects listed twice are the same shards in the cache.
        self._dataset = (listing.digest, reader.assigned.tobytes())
        crowd.come(self._dataset)
        self._epoch = -1
        self._key: tuple[object, ...] = ()
        self._progress: Progress | None = None
        self._window = -1

    def enter(self, at: Cursor) -> None:
        """Start (or resume) an epoch at a cursor: say when everything is needed, and wish for what comes first."""
        plan = self._reader.epoch_map(at)
        # Two sessions belong together when they walk the same shards in the same order.
        key = (self._listing.digest, at.epoch, plan.order.tobytes())
        if key != self._key:
            self._leave()
        self._epoch, self._window, self._key = at.epoch, at.anchor_window, key
        self._progress = self._crowd.group(key)
        if self._progress is None:
            self._progress = self._crowd.found(key)
            behind = plan.position(at.anchor_window)
            self._cache.note_next_use(self._uses(plan.order[behind:], at.epoch, behind))
            self._cache.note_next_use(self._next_epoch(plan.order[:behind]))
        # The founder has told of all shards: that takes a microsecond each, so only once.
        for window in self._progress.join(self._name, at.anchor_window):
            self._cache.note_next_use(self._uses(plan.shards(window), at.epoch, plan.position(window)))
        self._wish(plan, at.anchor_window)

    def skip_to(self, at: Cursor) -> None:
        """Resume further on than was expected: what is being read ahead is dropped, so that it delays nothing."""
        self._cache.prefetch([], self._name)
        self.enter(at)

    def advance(self, at: Cursor, first_window: int, last_window: int) -> None:
        """Take note that a batch of these windows is being made."""
        if at.epoch != self._epoch:
            self.enter(at)
        assert self._progress is not None
        plan = self._reader.epoch_map(at)
        for window in self._progress.advance(self._name, first_window):
            self._cache.note_next_use(self._next_epoch(plan.shards(window)))
        if last_window > self._window:
            self._window = last_window
            self._wish(plan, last_window)  # never empty, which would cancel what this very batch is about to wait for

    def close(self) -> None:
        """Withdraw; what no other reader of the dataset needs has no next use any more."""
        self._cache.prefetch([], self._name)
        left = self._leave()
        refs = self._listing.refs
        if self._crowd.go(self._dataset):
            self._cache.note_next_use((refs[shard], math.inf) for shard in self._reader.assigned.tolist())
        elif left:
            plan = self._reader.epoch_map(Cursor(self._epoch))
            for window in left:
                self._cache.note_next_use(self._next_epoch(plan.shards(window)))

    def _leave(self) -> range:
        if self._progress is None:
            return range(0)
        self._progress = None
        return self._crowd.leave(self._key, self._name)

    def _wish(self, plan: EpochMap, window: int) -> None:
        start = plan.position(window)
        width = len(plan.shards(0))
        count = width + max(_AHEAD_WINDOWS * width, _AHEAD_SHARDS)  # the window at hand, and beyond it
        self._cache.prefetch([self._listing.refs[s] for s in plan.order[start : start + count].tolist()], self._name)

    def _uses(self, shards: NDArray[np.int64], epoch: int, first_place: int) -> Iterator[tuple[ObjectRef, float]]:
        base = float(epoch * self._reader.assigned_count + first_place)
        refs = self._listing.refs
        return ((refs[shard], base + place) for place, shard in enumerate(shards.tolist()))

    def _next_epoch(self, shards: NDArray[np.int64]) -> Iterator[tuple[ObjectRef, float]]:
        places = self._reader.places(self._epoch + 1)
        base = float((self._epoch + 1) * self._reader.assigned_count)
        refs = self._listing.refs
        return ((refs[shard], base + places[shard]) for shard in shards.tolist())
