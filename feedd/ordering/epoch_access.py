"""One epoch of one node as a stream of bytes: tells the cache when each shard is needed.

A position counts the bytes of the shards before it, in the order in which they are needed; the next epoch continues the
stream. A reader's progress is reported in windows.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from feedd.dataset.listing import DatasetView
    from feedd.ordering.node_epoch import NodeEpoch
    from feedd.values import ObjectRef

    Use = tuple[ObjectRef, float]

_AHEAD_WINDOWS = 2
_AHEAD_SHARDS = 16


class EpochAccess(Protocol):
    """An epoch's uses, as reported to the cache. Two epochs with the same key are the same."""

    @property
    def key(self) -> tuple[object, ...]:
        """Common key of readers that read the same stream."""

    @property
    def epoch(self) -> int:
        """Number of the epoch."""

    @property
    def epoch_bytes(self) -> float:
        """Bytes of the epoch."""

    def position(self, window: int) -> float:
        """Return the stream position where a window starts."""

    def start(self, window: int) -> Iterator[Use]:
        """Yield the next use of every shard of the node, for a stream that stands at ``window``."""

    def again(self, window: int) -> Iterator[Use]:
        """Yield the uses in this epoch of the shards that end with ``window``."""

    def left(self, window: int) -> Iterator[Use]:
        """Yield the next uses, after ``window``, of the shards that end with it."""

    def wishes(self, window: int) -> list[int]:
        """Return the shards (dataset indices) that should be in the cache from a window on, the first needed first."""

    def needed(self, window: int) -> list[int]:
        """Return the shards of one window (dataset indices); none past the last window."""


class NodeAccess:
    """The epoch of one dataset, as an ``EpochAccess``."""

    def __init__(self, view: DatasetView, epoch: int, plan: NodeEpoch, places: Callable[[int], dict[int, int]]) -> None:
        """Describe an epoch.

        Args:
            view: the dataset.
            epoch: number of the epoch.
            plan: order of the epoch.
            places: returns each shard's first place in the order of an epoch; called for the next epoch.
        """
        # Two sessions belong together if they read the same shards in the same order. The listing's content counts: the
        # same objects and conversions, listed twice, are the same shards in the cache.
        # The windows must be the same too, because progress is reported in windows.
        self.key: tuple[object, ...] = (
            view.listing.digest,
            view.name,
            epoch,
            plan.order.tobytes(),
            plan.edges.tobytes(),
        )
        self.epoch = epoch
        self._view = view
        self._plan = plan
        self._positions = places

    @cached_property
    def _starts(self) -> NDArray[np.float64]:
        return _starts(self._view.listing.sizes[self._plan.order])

    @cached_property
    def _next_starts(self) -> dict[int, float]:
        shards = list(self._positions(self.epoch + 1))  # in the order of that epoch
        starts = _starts(self._view.listing.sizes[shards]) + self._starts[-1]
        return dict(zip(shards, starts.tolist(), strict=False))

    @property
    def epoch_bytes(self) -> float:
        """Bytes of the epoch."""
        return float(self._starts[-1])

    def position(self, window: int) -> float:
        """Return the stream position where a window starts."""
        return float(self._starts[min(self._plan.position(window), len(self._starts) - 1)])

    def start(self, window: int) -> Iterator[Use]:
        """Yield the next use of every shard of the node; shards before ``window`` are next needed in the next epoch."""
        order, behind = self._plan.order, self._plan.position(window)
        return itertools.chain(self._uses(behind, order[behind:]), self._next_uses(order[:behind]))

    def again(self, window: int) -> Iterator[Use]:
        """Yield the uses in this epoch of a window's shards."""
        return self._uses(self._plan.position(window), self._plan.shards(window))

    def left(self, window: int) -> Iterator[Use]:
        """Yield the uses in the next epoch of a window's shards."""
        return self._next_uses(self._plan.shards(window))

    def wishes(self, window: int) -> list[int]:
        """Return the shards (dataset indices) of a window and of the following windows, also across the epoch's end."""
        plan = self._plan
        start = plan.position(window)
        width = len(plan.shards(0))
        count = width + max(_AHEAD_WINDOWS * width, _AHEAD_SHARDS)
        shards: list[int] = plan.order[start : start + count].tolist()
        if len(shards) < count:  # the next epoch starts with its shards in the cache
            shards += itertools.islice(self._positions(self.epoch + 1), count - len(shards))
        return list(dict.fromkeys(shards))

    def needed(self, window: int) -> list[int]:
        """Return the shards of one window (dataset indices); none past the last window."""
        found: list[int] = self._plan.shards(window).tolist()
        return found

    def _uses(self, first_place: int, shards: NDArray[np.int64]) -> Iterator[Use]:
        """Yield uses in this epoch, of shards that are consecutive in its order."""
        starts = self._starts[first_place : first_place + len(shards)].tolist()
        refs = self._view.refs
        return ((refs[shard], start) for shard, start in zip(shards.tolist(), starts, strict=True))

    def _next_uses(self, shards: NDArray[np.int64]) -> Iterator[Use]:
        refs, starts = self._view.refs, self._next_starts
        return ((refs[shard], starts[shard]) for shard in shards.tolist())


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the start of each size in a sequence, and the end of the last."""
    return np.concatenate([np.zeros(1), np.cumsum(sizes, dtype=np.float64)])
