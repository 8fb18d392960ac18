"""One epoch of one node as a stream of bytes: tells the cache when each shard is needed.

A position counts the bytes of the shards before it, in the order in which they are needed; the next epoch continues the
stream. A reader's progress is reported in windows.
"""

from __future__ import annotations

import hashlib
import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    from feedd.dataset.listing import DatasetView
    from feedd.ordering.node_epoch import NodeEpoch
    from feedd.values import ObjectRef

_AHEAD_WINDOWS: Final = 2
_AHEAD_SHARDS: Final = 16
_AHEAD_SHARDS_MAX: Final = 64
_CACHE_SHARE: Final = 1 / 8
_LAST: Final = np.iinfo(np.int64).max  # behind all numbers of shards and places
_FEW: Final = 8
"""A node that reads less than this part of all shards looks places up in a sorted column, which takes less memory."""


def readahead_bytes(bytes_in_flight: int, cache_bytes: int) -> int:
    """Return the bytes of shards that a session may name in advance; see ``EpochAccess.wishes``.

    Shards fetched further ahead take room from those that the next epoch finds again.

    Args:
        bytes_in_flight: most bytes requested at one time.
        cache_bytes: size of the cache.
    """
    return min(bytes_in_flight, int(cache_bytes * _CACHE_SHARE))


def readahead_count(width: int, shard_bytes: float, readahead_bytes: int) -> int:
    """Return how many shards after the current window should be in the cache.

    Small shards that lie far away arrive in time only if many are requested at once. So it is up to 64 shards within
    ``readahead_bytes``, but at least 16 and two windows.

    Args:
        width: shards of a window.
        shard_bytes: mean size of a shard.
        readahead_bytes: see ``EpochAccess.wishes``.
    """
    within = int(min(readahead_bytes / max(shard_bytes, 1.0), _AHEAD_SHARDS_MAX))
    return max(_AHEAD_WINDOWS * width, _AHEAD_SHARDS, within)


class EpochAccess(Protocol):
    """An epoch's uses, as the cache asks for them. Two epochs with the same key are the same."""

    @property
    def key(self) -> tuple[object, ...]:
        """Common key of readers that read the same stream."""

    @property
    def epoch(self) -> int:
        """Number of the epoch."""

    @property
    def epoch_bytes(self) -> float:
        """Bytes of the epoch."""

    def prepare(self) -> None:
        """Compute now what the first questions would wait for; takes a fifth of a microsecond per shard."""

    def position(self, window: int) -> float:
        """Return the stream position where a window starts."""

    def next_uses(self, refs: Collection[ObjectRef], window: int) -> NDArray[np.float64]:
        """Return the position where each object is needed next, float64[refs]; ``inf``: the node does not read it.

        Args:
            refs: any objects, with their conversions.
            window: all earlier windows have been read.
        """

    def ending(self, window: int) -> list[int]:
        """Return the shards (dataset indices) that this epoch does not need after a window."""

    @property
    def assigned(self) -> NDArray[np.integer]:
        """The shards of the node (dataset indices); a shard may be listed twice."""

    def wishes(self, window: int, readahead_bytes: int = 0) -> list[int]:
        """Return the shards (dataset indices) that should be in the cache from a window on, the first needed first.

        Args:
            window: number of the window.
            readahead_bytes: a small share of the cache. More shards in advance would leave less room for those that the
                next epoch finds again.
        """

    def needed(self, window: int) -> list[int]:
        """Return the shards of one window (dataset indices); none past the last window."""


class NodeAccess:
    """The epoch of one dataset, as an ``EpochAccess``."""

    def __init__(
        self, view: DatasetView, epoch: int, plan: NodeEpoch, order_of: Callable[[int], NDArray[np.int32]]
    ) -> None:
        """Describe an epoch.

        Args:
            view: the dataset.
            epoch: number of the epoch.
            plan: order of the epoch.
            order_of: returns the node's shards in the order of an epoch; called for the next epoch.
        """
        # Two sessions belong together if they read the same shards in the same order. The listing's content counts: the
        # same objects and conversions, listed twice, are the same shards in the cache.
        # The windows must be the same too, because progress is reported in windows.
        self.key: tuple[object, ...] = (
            view.listing.digest,
            view.name,
            epoch,
            _digest(plan.order),
            _digest(plan.edges),
        )
        self.epoch = epoch
        self._view = view
        self._plan = plan
        self._order_of = order_of

    @cached_property
    def _lookup(self) -> _Lookup:
        return _Lookup(self._plan.order, self._view.listing.sizes)

    @cached_property
    def _next_lookup(self) -> _Lookup:
        return _Lookup(self._order_of(self.epoch + 1), self._view.listing.sizes)

    @property
    def epoch_bytes(self) -> float:
        """Bytes of the epoch."""
        return float(self._lookup.starts[-1])

    @property
    def assigned(self) -> NDArray[np.int32]:
        """The shards of the node (dataset indices), in the order of the epoch."""
        return self._plan.order

    def prepare(self) -> None:
        """Order the shards of this epoch and of the next one."""
        _ = self._lookup, self._next_lookup

    def position(self, window: int) -> float:
        """Return the stream position where a window starts."""
        starts = self._lookup.starts
        return float(starts[min(self._plan.position(window), len(starts) - 1)])

    def next_uses(self, refs: Collection[ObjectRef], window: int) -> NDArray[np.float64]:
        """Return where each object is needed next: from ``window`` on, or in the next epoch."""
        shards = self._view.find(refs)
        here = self._lookup.since(self._plan.position(window), shards)
        found = np.full(shards.shape, np.inf)
        found[here >= 0] = self._lookup.starts[here[here >= 0]]
        later = np.flatnonzero((here < 0) & (shards >= 0))
        later = later[self._lookup.since(0, shards[later]) >= 0]  # the others are shards of other nodes
        if later.size:
            following = self._next_lookup
            found[later] = following.starts[following.since(0, shards[later])] + self.epoch_bytes
        return found

    def ending(self, window: int) -> list[int]:
        """Return the shards of one window (dataset indices)."""
        return self.needed(window)

    def wishes(self, window: int, readahead_bytes: int = 0) -> list[int]:
        """Return the shards (dataset indices) of a window and of the following windows, also across the epoch's end.

        Whole windows are in the order of need, so that shards of one sample arrive in the order of the batches.
        """
        plan = self._plan
        width = len(plan.shards(0))
        count = width + readahead_count(width, self.epoch_bytes / max(len(plan.order), 1), readahead_bytes)
        following = (plan.by_need(number) for number in range(window, plan.window_count))
        shards = list(itertools.islice(itertools.chain.from_iterable(following), count))
        if len(shards) < count:  # the next epoch starts with its shards in the cache
            shards += self._order_of(self.epoch + 1)[: count - len(shards)].tolist()
        return list(dict.fromkeys(shards))

    def needed(self, window: int) -> list[int]:
        """Return the shards of one window (dataset indices), as ``wishes`` does; none past the last window."""
        return self._plan.by_need(window)


class _Lookup:
    """Where shards stand in an order, and where they start in its stream of bytes.

    Attributes:
        starts: float64[order + 1], the start of each place, and the end of the last.
    """

    def __init__(self, order: NDArray[np.integer], sizes: NDArray[np.int64]) -> None:
        self.starts = np.zeros(order.shape[0] + 1)
        np.cumsum(sizes[order], out=self.starts[1:])
        places = np.arange(order.shape[0], dtype=np.int32)
        self._length = order.shape[0] + 1
        self._first = np.zeros(0, np.int32)  # place of each shard of the dataset
        self._all: NDArray[np.int64] | None = None  # instead of ``_first``: (shard, place) as one number, ascending
        few = order.shape[0] * _FEW < sizes.shape[0]
        if not few:
            self._first = np.full(sizes.shape, -1, np.int32)
            self._first[order[::-1]] = places[::-1]
        if few or np.count_nonzero(self._first >= 0) < order.shape[0]:  # partitions share some shards
            self._all = np.append(np.sort(order.astype(np.int64) * self._length + places), _LAST)

    def since(self, place: int, shards: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the place of each shard from ``place`` on, int32[shards]; -1: there is none.

        Args:
            place: earlier places do not count.
            shards: dataset indices; -1: no shard.
        """
        if self._all is None:
            found = self._first[shards]
        else:
            at = np.searchsorted(self._all, shards * self._length + place)
            shard, after = np.divmod(self._all[at], self._length)
            found = np.where(shard == shards, after, -1).astype(np.int32)
        found[(found < place) | (shards < 0)] = -1
        return found


def _digest(numbers: NDArray[np.integer]) -> bytes:
    return hashlib.blake2b(numbers.tobytes(), digest_size=16).digest()
