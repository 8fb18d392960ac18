"""One epoch of one node as a stream of bytes: what is needed when, for the cache.

A position counts the bytes of the shards before it, in the order in which they are needed; the next epoch continues the
stream. Windows are the steps of that order by which a reader's progress is told.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from feedd.dataset.listing import Listing
    from feedd.ordering.node_epoch import NodeEpoch
    from feedd.values import ObjectRef

    Use = tuple[ObjectRef, float]

_AHEAD_WINDOWS = 2
_AHEAD_SHARDS = 16


class EpochAccess(Protocol):
    """What the cache is told of an epoch. Two walks of one key are the same."""

    @property
    def key(self) -> tuple[object, ...]:
        """What readers that go together have in common."""

    @property
    def epoch(self) -> int:
        """The epoch."""

    @property
    def epoch_bytes(self) -> float:
        """Bytes of the epoch."""

    def position(self, window: int) -> float:
        """Return where a window starts in the stream."""

    def start(self, window: int) -> Iterator[Use]:
        """Yield the next use of every shard of the node, for a stream that stands at ``window``."""

    def again(self, window: int) -> Iterator[Use]:
        """Yield the uses in this epoch of what is not needed after ``window``."""

    def left(self, window: int) -> Iterator[Use]:
        """Yield the uses that come after ``window``, of what is not needed in this one any more."""

    def wishes(self, window: int) -> list[int]:
        """Return what should be at hand from a window on (dataset indices), what is needed first in front."""

    def needed(self, window: int) -> list[int]:
        """Return the shards of one window (dataset indices); none past the last."""


class NodeAccess:
    """The epoch of one dataset."""

    def __init__(self, listing: Listing, epoch: int, plan: NodeEpoch, places: Callable[[int], dict[int, int]]) -> None:
        """Describe an epoch.

        Args:
            listing: the dataset.
            epoch: which.
            plan: its order.
            places: each shard's first place in the order of an epoch; asked for the next one.
        """
        # Two sessions belong together when they walk the same shards in the same order. By what was listed, not by
        # which listing: the same objects in the same forms, listed twice, are the same shards in the cache.
        # And in the same windows: by those they tell each other how far they are.
        self.key: tuple[object, ...] = (
            listing.digest,
            listing.view,
            epoch,
            plan.order.tobytes(),
            plan.edges.tobytes(),
        )
        self.epoch = epoch
        self._listing = listing
        self._plan = plan
        self._places = places

    @cached_property
    def _starts(self) -> NDArray[np.float64]:
        return _starts(self._listing.sizes[self._plan.order])

    @cached_property
    def _next_starts(self) -> dict[int, float]:
        shards = list(self._places(self.epoch + 1))  # in the order of that epoch
        starts = _starts(self._listing.sizes[shards]) + self._starts[-1]
        return dict(zip(shards, starts.tolist(), strict=False))

    @property
    def epoch_bytes(self) -> float:
        """Bytes of the epoch."""
        return float(self._starts[-1])

    def position(self, window: int) -> float:
        """Return where a window starts in the stream."""
        return float(self._starts[min(self._plan.position(window), len(self._starts) - 1)])

    def start(self, window: int) -> Iterator[Use]:
        """Yield the next use of every shard of the node: what lies before ``window`` is due in the next epoch."""
        order, behind = self._plan.order, self._plan.position(window)
        return itertools.chain(self._uses(behind, order[behind:]), self._next_uses(order[:behind]))

    def again(self, window: int) -> Iterator[Use]:
        """Yield the uses in this epoch of a window's shards."""
        return self._uses(self._plan.position(window), self._plan.shards(window))

    def left(self, window: int) -> Iterator[Use]:
        """Yield the uses in the next epoch of a window's shards."""
        return self._next_uses(self._plan.shards(window))

    def wishes(self, window: int) -> list[int]:
        """Return the window at hand and what lies beyond it, across the epoch's end, as dataset indices."""
        plan = self._plan
        start = plan.position(window)
        width = len(plan.shards(0))
        count = width + max(_AHEAD_WINDOWS * width, _AHEAD_SHARDS)
        shards: list[int] = plan.order[start : start + count].tolist()
        if len(shards) < count:  # the next one begins with its shards at hand
            shards += itertools.islice(self._places(self.epoch + 1), count - len(shards))
        return list(dict.fromkeys(shards))

    def needed(self, window: int) -> list[int]:
        """Return the shards of one window (dataset indices); none past the last."""
        found: list[int] = self._plan.shards(window).tolist()
        return found

    def _uses(self, first_place: int, shards: NDArray[np.int64]) -> Iterator[Use]:
        """Yield uses in this epoch, of shards that stand one after another in its order."""
        starts = self._starts[first_place : first_place + len(shards)].tolist()
        refs = self._listing.refs
        return ((refs[shard], start) for shard, start in zip(shards.tolist(), starts, strict=True))

    def _next_uses(self, shards: NDArray[np.int64]) -> Iterator[Use]:
        refs, starts = self._listing.refs, self._next_starts
        return ((refs[shard], starts[shard]) for shard in shards.tolist())


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return where each of these begins when they follow one another, and where the last one ends."""
    return np.concatenate([np.zeros(1), np.cumsum(sizes, dtype=np.float64)])
