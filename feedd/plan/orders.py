"""Windows in reading order, sorted once for all readers of a plan: the session's own and those that look ahead."""

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


class Orders:
    """The windows that were sorted last. Synchronous, not thread-safe.

    Args:
        limit: how many are kept; at least what one step reads, for each reader.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[WindowName, WindowRows] = {}

    def get(self, name: WindowName) -> WindowRows | None:
        """Return a window's rows, now the most recently used ones, or None."""
        found = self._held.pop(name, None)
        if found is not None:
            self._held[name] = found
        return found

    def learn(self, found: Mapping[WindowName, WindowRows]) -> None:
        """Take windows that were sorted."""
        self._held |= found
        while len(self._held) > max(self._limit, len(found)):
            del self._held[next(iter(self._held))]
