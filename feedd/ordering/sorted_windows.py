"""Windows in reading order, sorted once for all readers of a plan: all ranks, and readers in advance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from numpy.typing import NDArray

    WindowRows = tuple[NDArray[np.signedinteger], NDArray[np.signedinteger]]
    """(shard, ordinal), [samples] each, in reading order; see ``EpochMap.samples``."""

ROW_BYTES = 8
"""Bytes of one sample in ``WindowRows``."""


def widened(
    shard: NDArray[np.signedinteger], ordinal: NDArray[np.signedinteger], rows: slice | NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return some rows of a window as int64; a shard that all rows share stays one number."""
    return shard[rows].astype(np.int64, copy=False), ordinal[rows].astype(np.int64, copy=False)


class WindowName(NamedTuple):
    """Names a window by epoch, partition of the node, and number."""

    epoch: int
    partition: int
    window: int


@dataclass(frozen=True, slots=True)
class NeedOrder:
    """Windows must be sorted first, which takes about 30 ns per sample.

    Attributes:
        key: names the windows and readers; equal keys mean the same sorting job.
        sort: sorts the windows; may run in a thread.
        size_bytes: approximate size of the result.
        learn: takes the result; a repeated request right afterwards succeeds.
    """

    key: tuple[Hashable, ...]
    sort: Callable[[], dict[WindowName, WindowRows]]
    size_bytes: int
    learn: Callable[[Mapping[WindowName, WindowRows]], None]


class SortedWindows:
    """The windows of all plans of a node; readers of one plan share its windows, and the last reader drops them.

    Synchronous, not thread-safe.

    Args:
        limit_bytes: bound of all kept windows. Each plan also keeps the few windows that it reads now, of any size.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._plans: dict[Hashable, Orders] = {}  # the plan that learned last comes last

    @property
    def cached_bytes(self) -> int:
        """Bytes of all kept windows."""
        return sum(plan.cached_bytes for plan in self._plans.values())

    @property
    def plan_count(self) -> int:
        """Number of plans with readers."""
        return len(self._plans)

    def enter(self, key: Hashable, least: int, owner: object = None) -> Orders:
        """Return the windows of a plan for one more reader. Balanced by one ``leave``.

        Args:
            key: plans with the same key sort the same windows alike.
            least: number of windows that the plan always keeps.
            owner: kept alive while the plan is read, because ``key`` may name an object by its id.
        """
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = Orders(self, key, least, owner)
        found.readers += 1
        return found

    def leave(self, orders: Orders) -> None:
        """Remove a reader of a plan; the last one drops the plan's windows."""
        assert orders.readers > 0, "a plan was left more often than entered"
        orders.readers -= 1
        if not orders.readers:
            del self._plans[orders.key]
            orders.clear()

    def drop_over_limit(self, learned: Orders) -> None:
        """Drop windows over the limit, of other plans first, the least recently read first."""
        self._plans.pop(learned.key, None)
        self._plans[learned.key] = learned
        over_bytes = self.cached_bytes - self._limit_bytes
        for plan in list(self._plans.values()):
            if over_bytes <= 0:
                return
            over_bytes -= plan.drop(over_bytes)


class Orders:
    """The most recently sorted windows of one plan, for all of its readers; see ``SortedWindows``.

    Attributes:
        key: key of the plan.
        readers: number of readers.
        cached_bytes: bytes of its windows.
    """

    def __init__(self, windows: SortedWindows, key: Hashable, least: int, owner: object) -> None:
        """Start without windows; called by ``SortedWindows.enter``."""
        self.key = key
        self.readers = 0
        self.cached_bytes = 0
        self._windows = windows
        self._least = least
        self._owner = owner
        self._cached: dict[WindowName, WindowRows] = {}
        self._at_least = least  # a step may read more windows

    def get(self, name: WindowName) -> WindowRows | None:
        """Return a window's rows and mark them as the most recently used, or return None."""
        found = self._cached.pop(name, None)
        if found is not None:
            self._cached[name] = found
        return found

    def learn(self, found: Mapping[WindowName, WindowRows]) -> None:
        """Add windows that were sorted together; none of them is dropped for another."""
        for name, rows in found.items():
            self._forget(name)
            self._cached[name] = rows
            self.cached_bytes += _bytes_of(rows)
        self._at_least = max(self._least, len(found))
        if self.readers:
            self._windows.drop_over_limit(self)
        else:
            self.drop(self.cached_bytes)  # a reader that left may be finishing

    def drop(self, over_bytes: int) -> int:
        """Drop the least recently read windows, but keep those that the plan needs; return the dropped bytes."""
        before = self.cached_bytes
        while len(self._cached) > self._at_least and before - self.cached_bytes < over_bytes:
            self._forget(next(iter(self._cached)))
        return before - self.cached_bytes

    def clear(self) -> None:
        """Drop all windows."""
        self._cached.clear()
        self.cached_bytes = 0

    def _forget(self, name: WindowName) -> None:
        rows = self._cached.pop(name, None)
        if rows is not None:
            self.cached_bytes -= _bytes_of(rows)


def _bytes_of(rows: WindowRows) -> int:
    return sum(column.nbytes for column in rows)
