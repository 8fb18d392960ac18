"""Windows in reading order, sorted once for all readers of a plan: those of all ranks, and those that look ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    WindowRows = tuple[NDArray[np.int64], NDArray[np.int64]]
    """(shard, ordinal), int64[samples] each, in reading order."""

ROW_BYTES = 16
"""A sample's, in ``WindowRows``."""


class WindowName(NamedTuple):
    """Which window: of an epoch, of one of the node's partitions."""

    epoch: int
    partition: int
    window: int


@dataclass(frozen=True, slots=True)
class NeedOrder:
    """Nothing can be said before windows are sorted: some 30 ns a sample.

    Attributes:
        key: which windows of which readers: who is to sort the same has the same.
        sort: does it; may run in a thread.
        size_bytes: of what it returns, about.
        learn: takes what it returned; what is asked again right after it can be said.
    """

    key: tuple[Hashable, ...]
    sort: Callable[[], dict[WindowName, WindowRows]]
    size_bytes: int
    learn: Callable[[Mapping[WindowName, WindowRows]], None]


class SortedWindows:
    """The windows of all plans of a node: those of one plan are shared by its readers, and dropped with the last one.

    Synchronous, not thread-safe.

    Args:
        limit_bytes: of all windows that are kept. Each plan keeps the few that it reads now, whatever they take.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._plans: dict[Hashable, Orders] = {}  # the one that learned last is the last

    @property
    def kept_bytes(self) -> int:
        """Bytes of all windows that are kept."""
        return sum(plan.kept_bytes for plan in self._plans.values())

    @property
    def plan_count(self) -> int:
        """Plans that somebody reads."""
        return len(self._plans)

    def enter(self, key: Hashable, least: int, owner: object = None) -> Orders:
        """Return the windows of a plan for one more reader. Balanced by one ``leave``.

        Args:
            key: plans of one key sort the same windows alike.
            least: windows that the plan keeps whatever they take.
            owner: kept as long as the plan is read, where ``key`` names an object by its id.
        """
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = Orders(self, key, least, owner)
        found.readers += 1
        return found

    def leave(self, orders: Orders) -> None:
        """Give a plan up; nobody else reads it: its windows are dropped."""
        assert orders.readers > 0, "a plan was left more often than entered"
        orders.readers -= 1
        if not orders.readers:
            del self._plans[orders.key]
            orders.clear()

    def make_room(self, learned: Orders) -> None:
        """Drop what is over the limit: of other plans first the windows that were not read for longest."""
        self._plans.pop(learned.key, None)
        self._plans[learned.key] = learned
        over_bytes = self.kept_bytes - self._limit_bytes
        for plan in list(self._plans.values()):
            if over_bytes <= 0:
                return
            over_bytes -= plan.drop(over_bytes)


class Orders:
    """The windows of one plan that were sorted last, for all of its readers; see ``SortedWindows``.

    Attributes:
        key: of the plan.
        readers: who has entered it.
        kept_bytes: of its windows.
    """

    def __init__(self, windows: SortedWindows, key: Hashable, least: int, owner: object) -> None:
        """Keep nothing yet; made by ``SortedWindows.enter``."""
        self.key = key
        self.readers = 0
        self.kept_bytes = 0
        self._windows = windows
        self._least = least
        self._owner = owner
        self._held: dict[WindowName, WindowRows] = {}
        self._at_least = least  # what a step reads may be more

    def get(self, name: WindowName) -> WindowRows | None:
        """Return a window's rows, now the most recently used ones, or None."""
        found = self._held.pop(name, None)
        if found is not None:
            self._held[name] = found
        return found

    def learn(self, found: Mapping[WindowName, WindowRows]) -> None:
        """Take windows that were sorted, together: none of them is dropped for another."""
        for name, rows in found.items():
            self._forget(name)
            self._held[name] = rows
            self.kept_bytes += _bytes_of(rows)
        self._at_least = max(self._least, len(found))
        if self.readers:
            self._windows.make_room(self)
        else:
            self.drop(self.kept_bytes)  # whoever left may be finishing

    def drop(self, over_bytes: int) -> int:
        """Drop the windows that were not read for longest, as far as the plan can do without; return their bytes."""
        before = self.kept_bytes
        while len(self._held) > self._at_least and before - self.kept_bytes < over_bytes:
            self._forget(next(iter(self._held)))
        return before - self.kept_bytes

    def clear(self) -> None:
        """Drop all windows."""
        self._held.clear()
        self.kept_bytes = 0

    def _forget(self, name: WindowName) -> None:
        rows = self._held.pop(name, None)
        if rows is not None:
            self.kept_bytes -= _bytes_of(rows)


def _bytes_of(rows: WindowRows) -> int:
    return sum(column.nbytes for column in rows)
