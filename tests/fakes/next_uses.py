"""Next uses as a test tells them, in place of a timeline of sessions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.values import NextUses, ObjectRef


class _Cache(Protocol):
    def note_next_use(self, times: NextUses, refs: Sequence[ObjectRef] | None = None) -> None: ...


class ToldUses:
    """Knows what it was told; everything else is never needed."""

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], float] = {}

    def tell(self, uses: Iterable[tuple[ObjectRef, float]]) -> None:
        """Set the times of some objects; ``inf`` forgets one."""
        self.known |= {_version(ref): time for ref, time in uses}

    def times(self, refs: Sequence[ObjectRef]) -> list[float]:
        return [self.known.get(_version(ref), math.inf) for ref in refs]


_TOLD: WeakKeyDictionary[_Cache, ToldUses] = WeakKeyDictionary()


def note_next_use(cache: _Cache, uses: Iterable[tuple[ObjectRef, float]]) -> None:
    """Tell a cache the times of some objects; those told earlier stay, ``inf`` forgets one."""
    told, found = _TOLD.setdefault(cache, ToldUses()), dict(uses)
    told.tell(found.items())
    cache.note_next_use(told.times, list(found))


def _version(ref: ObjectRef) -> tuple[object, ...]:
    return ref.root, ref.key, ref.etag, ref.conversion
