"""A map bounded by the weight of its values; the least recently used is dropped first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class WeightedLru(Generic[K, V]):
    """Synchronous, not thread-safe. A value heavier than the limit is kept alone until the next value is added."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value and mark it as the most recently used, or return None."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Add or replace a value; drop others while the weight exceeds the limit."""
        self.pop(key)
        self._items[key] = (value, weight)
        self._weight += weight
        while self._weight > self._limit and len(self._items) > 1:
            _, (_, dropped) = self._items.popitem(last=False)
            self._weight -= dropped

    def pop(self, key: K) -> None:
        """Remove a key if it exists."""
        found = self._items.pop(key, None)
        if found is not None:
            self._weight -= found[1]

    def clear(self) -> None:
        """Remove all values."""
        self._items.clear()
        self._weight = 0

    @property
    def weight(self) -> int:
        """Total weight of all values."""
        return self._weight

    def __len__(self) -> int:
        return len(self._items)
