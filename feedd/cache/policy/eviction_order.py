"""Which idle entries go first: furthest next use, then least recently used. Pure."""

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
_BULK_SHARE = 8  # of a heap: fewer new tickets than that are pushed, more are worth ordering all of it


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


_Ticket = tuple[float, int, int, Entry]  # furthest use first, then longest unused; stamps are unique


@dataclass(slots=True)
class _Lane:
    """Tickets of one group's entries: a heap, stale ones included, and how many are not stale."""

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
    """Idle (committed, unpinned) entries in the order of their eviction: heaps with tickets, stale ones skipped.

    A heap per group of entries, so that one group can be asked alone; there are as many as there are quotas.

    Attributes:
        idle_bytes: disk bytes of all entries in it.
    """

    def __init__(self) -> None:
        self.idle_bytes = 0
        self._last_stamp = 0
        self._lanes: dict[str, _Lane] = {}

    def add(self, entry: Entry) -> None:
        """Put an entry that has just become idle in its place."""
        assert entry.stamp == 0, "already in the order"
        self.idle_bytes += entry.disk_bytes
        self._lanes.setdefault(entry.group, _Lane()).count += 1
        self._push(entry)

    def add_all(self, entries: Iterable[Entry]) -> None:
        """Put entries in their places, as ``add`` would one after another; the work of very many is done at once."""
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
        """Take an entry out; it is no longer idle."""
        assert entry.stamp, "not in the order"
        entry.stamp = 0
        self.idle_bytes -= entry.disk_bytes
        self._lanes[entry.group].count -= 1

    def move(self, entry: Entry) -> None:
        """Put an entry whose next use changed in its new place."""
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
            What to evict, in order; None where that much cannot be freed.
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
