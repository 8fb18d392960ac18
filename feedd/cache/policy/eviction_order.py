"""Which idle entries are evicted first: furthest next use, then least recently used. Pure."""

from __future__ import annotations

import enum
import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from feedd.values import ObjectRef

_COMPACT_SLACK = 64
_BULK_SHARE = 8  # of a heap: fewer new tickets are pushed one by one, more are worth a new heapify


class EntryState(enum.Enum):
    """Life of an entry, in order; only reopened entries go back a step (see ``CacheIndex.reopen``)."""

    RESERVED = "reserved"
    COMMITTED = "committed"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Entry:
    """One object's entry in the cache; changed by ``CacheIndex`` only.

    Attributes:
        ref: the object.
        disk_bytes: disk bytes, header and rounding included.
        state: where the entry is in its life.
        pins: number of pins.
        next_use: position at which the object is needed next; inf: unknown or never.
        used_at: logical time of the last use.
        generation: number of times its file was replaced.
        damaged: found broken while pinned; fetched again at the next acquire, removed with its last pin.
        stamp: its current ticket in the eviction order; 0: not evictable.
        seen_s: when the file was last known to exist; the cache sets this, since the index has no clock.
        group: the quota it counts against; empty: none.
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
    group: str = ""


_Ticket = tuple[float, int, int, Entry]  # furthest use first, then least recently used; stamps are unique


@dataclass(slots=True)
class _Lane:
    """Tickets of one group's entries: a heap that may contain stale tickets, and the number of live ones."""

    heap: list[_Ticket] = field(default_factory=list)
    count: int = 0

    def push(self, ticket: _Ticket) -> None:
        if len(self.heap) > 2 * self.count + _COMPACT_SLACK:  # stale tickets stay bounded by live ones
            self.heap = [held for held in self.heap if _is_live(held)]
            heapq.heapify(self.heap)
        heapq.heappush(self.heap, ticket)

    def push_all(self, fresh: list[_Ticket]) -> None:
        self.count += len(fresh)
        if len(fresh) < len(self.heap) // _BULK_SHARE:
            for ticket in fresh:
                self.push(ticket)
            return
        self.heap = [*filter(_is_live, self.heap), *fresh]
        heapq.heapify(self.heap)

    def first(self) -> _Ticket | None:
        while self.heap and not _is_live(self.heap[0]):
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None


class EvictionOrder:
    """Idle (committed, unpinned) entries in the order of their eviction: heaps of tickets, stale ones skipped.

    There is one heap per quota, so that the entries of one quota can be evicted alone.

    Attributes:
        idle_bytes: disk bytes of all entries in the order.
    """

    def __init__(self) -> None:
        self.idle_bytes = 0
        self._last_stamp = 0
        self._lanes: dict[str, _Lane] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry that has just become idle."""
        assert entry.stamp == 0, "already in the order"
        self.idle_bytes += entry.disk_bytes
        self._lanes.setdefault(entry.group, _Lane()).count += 1
        self._push(entry)

    def add_all(self, entries: Iterable[Entry]) -> None:
        """Add many entries at once; the result is the same as with ``add`` one by one."""
        tickets: dict[str, list[_Ticket]] = {}
        for entry in entries:
            assert entry.stamp == 0, "already in the order"
            self.idle_bytes += entry.disk_bytes
            self._last_stamp += 1
            entry.stamp = self._last_stamp
            tickets.setdefault(entry.group, []).append((-entry.next_use, entry.used_at, entry.stamp, entry))
        for group, fresh in tickets.items():
            self._lanes.setdefault(group, _Lane()).push_all(fresh)

    def remove(self, entry: Entry) -> None:
        """Remove an entry that is no longer idle."""
        assert entry.stamp, "not in the order"
        entry.stamp = 0
        self.idle_bytes -= entry.disk_bytes
        self._lanes[entry.group].count -= 1

    def move(self, entry: Entry) -> None:
        """Reorder an entry whose next use changed."""
        if entry.stamp:
            self._push(entry)

    def take(
        self, wanted_bytes: int, *, after: float, keep: Collection[Entry] = (), group: str | None = None
    ) -> list[Entry] | None:
        """Take out the first entries that together free ``wanted_bytes``, or none at all.

        Args:
            wanted_bytes: disk bytes to free.
            after: only entries whose next use is strictly later; -inf: any.
            keep: entries not to be taken.
            group: only entries of this group; None: any.

        Returns:
            The entries to evict, in order; None if that much cannot be freed.
        """
        if self.idle_bytes < wanted_bytes:
            return None
        lanes = [lane for name, lane in self._lanes.items() if group in {None, name}]
        taken: list[_Ticket] = []
        kept: list[_Ticket] = []
        freed_bytes = 0
        while freed_bytes < wanted_bytes:
            ticket = min(filter(None, (lane.first() for lane in lanes)), default=None)
            if ticket is None or not ticket[3].next_use > after:
                break
            entry = ticket[3]
            heapq.heappop(self._lanes[entry.group].heap)
            if entry in keep:
                kept.append(ticket)
                continue
            taken.append(ticket)
            freed_bytes += entry.disk_bytes
        enough = freed_bytes >= wanted_bytes
        for ticket in kept if enough else kept + taken:
            heapq.heappush(self._lanes[ticket[3].group].heap, ticket)
        if not enough:
            return None
        victims = [ticket[3] for ticket in taken]
        for entry in victims:
            self.remove(entry)
        return victims

    def _push(self, entry: Entry) -> None:
        self._last_stamp += 1
        entry.stamp = self._last_stamp
        self._lanes[entry.group].push((-entry.next_use, entry.used_at, entry.stamp, entry))


def _is_live(ticket: _Ticket) -> bool:
    return ticket[3].stamp == ticket[2]
