"""Which idle entries go first: furthest next use, then least recently used. Pure."""

from __future__ import annotations

import enum
import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from feedd.values import ObjectRef

_COMPACT_SLACK = 64


class EntryState(enum.Enum):
    """Life of an entry, in order; only REOPENED entries go back a step (see ``CacheIndex.reopen``)."""

    RESERVED = "reserved"
    COMMITTED = "committed"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Entry:
    """One object's place in the cache; changed by ``CacheIndex`` only.

    Attributes:
        ref: the object.
        disk_bytes: what it takes on disk, headers and rounding included.
        state: where it is in its life.
        pins: how many hold it.
        next_use: position of the future at which it is needed; inf: unknown or never.
        used_at: logical time of its last use.
        generation: how often its file was replaced under it.
        damaged: found broken while pinned; fetched again at the next acquire, removed with its last pin.
        stamp: its current ticket in the eviction order; 0: not evictable.
        seen_s: when the file was last known to be there; the cache's to keep, the index has no clock.
    """

    ref: ObjectRef
    disk_bytes: int
    state: EntryState = EntryState.RESERVED
    pins: int = 0
    next_use: float = math.inf
    used_at: int = 0
    generation: int = 0
    damaged: bool = False
    stamp: int = 0
    seen_s: float = -math.inf


class EvictionOrder:
    """Idle (committed, unpinned) entries in the order of their eviction: a heap with tickets, stale ones skipped.

    Attributes:
        idle_bytes: disk bytes of all entries in it.
    """

    def __init__(self) -> None:
        self.idle_bytes = 0
        self._count = 0
        self._last_stamp = 0
        self._heap: list[tuple[float, int, int, Entry]] = []

    def add(self, entry: Entry) -> None:
        """Put an entry that has just become idle in its place."""
        assert entry.stamp == 0, "already in the order"
        self.idle_bytes += entry.disk_bytes
        self._count += 1
        self._push(entry)

    def remove(self, entry: Entry) -> None:
        """Take an entry out; it is no longer idle."""
        assert entry.stamp, "not in the order"
        entry.stamp = 0
        self.idle_bytes -= entry.disk_bytes
        self._count -= 1

    def move(self, entry: Entry) -> None:
        """Put an entry whose next use changed in its new place."""
        if entry.stamp:
            self._push(entry)

    def take(self, wanted_bytes: int, *, after: float, keep: Collection[Entry] = ()) -> list[Entry] | None:
        """Take out the first entries that together free ``wanted_bytes``, or none at all.

        Args:
            wanted_bytes: disk bytes to free.
            after: only entries whose next use is strictly later; -inf: any.
            keep: entries not to be taken.

        Returns:
            What to evict, in order; None where that much cannot be freed.
        """
        if self.idle_bytes < wanted_bytes:
            return None
        taken: list[tuple[float, int, int, Entry]] = []
        kept: list[tuple[float, int, int, Entry]] = []
        freed_bytes = 0
        while freed_bytes < wanted_bytes and self._heap:
            ticket = self._heap[0]
            entry = ticket[3]
            stale = entry.stamp != ticket[2]
            if not stale and not entry.next_use > after:
                break
            heapq.heappop(self._heap)
            if stale:
                continue
            if entry in keep:
                kept.append(ticket)
                continue
            taken.append(ticket)
            freed_bytes += entry.disk_bytes
        enough = freed_bytes >= wanted_bytes
        for ticket in kept if enough else kept + taken:
            heapq.heappush(self._heap, ticket)
        if not enough:
            return None
        victims = [ticket[3] for ticket in taken]
        for entry in victims:
            self.remove(entry)
        return victims

    def _push(self, entry: Entry) -> None:
        self._last_stamp += 1
        entry.stamp = self._last_stamp
        if len(self._heap) > 2 * self._count + _COMPACT_SLACK:  # stale tickets stay bounded by live ones
            self._heap = [ticket for ticket in self._heap if ticket[3].stamp == ticket[2]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (-entry.next_use, entry.used_at, entry.stamp, entry))
