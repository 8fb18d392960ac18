"""The cache's books: who is in it, who holds what, who has to go. Pure: no files, no clock, no tasks.

``committed_bytes + reserved_bytes <= limit_bytes`` holds at all times, the first adoption of entries from disk
included; a pinned entry is never evicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.cache import layout
from feedd.cache.order import Entry, EntryState, EvictionOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from feedd.values import ObjectRef


@dataclass(frozen=True, slots=True)
class Claim:
    """Entries that are now pinned, and what the caller must do for them.

    Attributes:
        entries: one per ref asked for, in that order.
        present: those whose data is on disk.
        running: those whose fill somebody else has started.
        missing: those that the caller must fill, then commit or abort.
        evicted: no longer in the index; the caller removes their files before it fills anything.
    """

    entries: tuple[Entry, ...]
    present: tuple[Entry, ...]
    running: tuple[Entry, ...]
    missing: tuple[Entry, ...]
    evicted: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class FullNow:
    """No space until pins or reservations end; nothing was changed."""

    wanted_bytes: int


@dataclass(frozen=True, slots=True)
class TooLarge:
    """No space even in an empty cache; nothing was changed."""

    needed_bytes: int
    limit_bytes: int


class CacheIndex:
    """Entries by object version; every method decides at once and says what has to be done on disk.

    Attributes:
        limit_bytes: upper limit of committed plus reserved bytes.
        committed_bytes: disk bytes of whole entries.
        reserved_bytes: disk bytes claimed by fills under way.
        committed_count: whole entries.
        pin_count: pins held on entries, also on those that were removed since.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.committed_bytes = 0
        self.reserved_bytes = 0
        self.committed_count = 0
        self.pin_count = 0
        self._entries: dict[ObjectRef, Entry] = {}
        self._next_uses: dict[ObjectRef, float] = {}  # finite ones only, of entries and of objects not yet here
        self._order = EvictionOrder()
        self._now = 0

    def __iter__(self) -> Iterator[Entry]:
        """All entries, reserved ones included."""
        return iter(self._entries.values())

    def find(self, ref: ObjectRef) -> Entry | None:
        """Return the object's entry, reserved or committed."""
        return self._entries.get(ref)

    def adopt(self, ref: ObjectRef) -> bool:
        """Enter an object found on disk at start, oldest use first; False where the limit leaves no room for it."""
        size = layout.disk_bytes(ref)
        if ref in self._entries or self._free_bytes < size:
            return False
        self.commit(self._reserve(ref))
        return True

    def reserve_all(self, refs: Sequence[ObjectRef]) -> Claim | FullNow | TooLarge:
        """Pin all of ``refs`` (no duplicates) and reserve what is missing: everything or nothing."""
        sizes = {ref: layout.disk_bytes(ref) for ref in refs}
        needed_bytes = sum(sizes.values())
        if needed_bytes > self.limit_bytes:
            return TooLarge(needed_bytes, self.limit_bytes)
        here = {ref: self._entries[ref] for ref in refs if ref in self._entries}
        wanted_bytes = sum(size for ref, size in sizes.items() if ref not in here) - self._free_bytes
        evicted = self._evict(wanted_bytes, after=-math.inf, keep=set(here.values()))
        if evicted is None:
            return FullNow(wanted_bytes)
        damaged = {ref for ref, entry in here.items() if entry.damaged}
        for ref in damaged:
            self.reopen(here[ref])
        missing = damaged | (sizes.keys() - here.keys())
        entries = tuple(here.get(ref) or self._reserve(ref) for ref in refs)
        for entry in entries:
            self._pin(entry)
        present = tuple(entry for entry in entries if entry.state is EntryState.COMMITTED)
        reserved = [entry for entry in entries if entry.state is EntryState.RESERVED]
        running = tuple(entry for entry in reserved if entry.ref not in missing)
        fresh = tuple(entry for entry in reserved if entry.ref in missing)
        return Claim(entries, present, running, fresh, evicted)

    def reserve_ahead(self, ref: ObjectRef) -> Claim | FullNow | TooLarge:
        """Reserve one object nobody waits for, unpinned; evicts only what is needed strictly later than it.

        The object must not be in the index yet. An object whose next use is unknown evicts nothing.
        """
        assert ref not in self._entries, "already here"
        size = layout.disk_bytes(ref)
        if size > self.limit_bytes:
            return TooLarge(size, self.limit_bytes)
        wanted_bytes = size - self._free_bytes
        evicted = self._evict(wanted_bytes, after=self._next_uses.get(ref, math.inf))
        if evicted is None:
            return FullNow(wanted_bytes)
        entry = self._reserve(ref)
        return Claim((entry,), (), (), (entry,), evicted)

    def commit(self, entry: Entry) -> bool:
        """Make a filled entry whole; False where it was orphaned: then its space is free and its file must go."""
        if self._entries.get(entry.ref) is not entry:
            self.abort(entry)
            return False
        assert entry.state is EntryState.RESERVED, "commit follows reserve"
        self.reserved_bytes -= entry.disk_bytes
        self.committed_bytes += entry.disk_bytes
        self.committed_count += 1
        entry.state = EntryState.COMMITTED
        self._touch(entry)
        if not entry.pins:
            self._order.add(entry)
        return True

    def abort(self, entry: Entry) -> None:
        """Give up a reservation; pins still held on it end without effect."""
        assert entry.state is EntryState.RESERVED, "abort follows reserve"
        self.reserved_bytes -= entry.disk_bytes
        entry.state = EntryState.GONE
        self.orphan(entry)

    def orphan(self, entry: Entry) -> None:
        """Hide a reserved entry whose fill is being cancelled: a new demand reserves anew, the space stays claimed."""
        if self._entries.get(entry.ref) is entry:
            del self._entries[entry.ref]

    def unpin(self, entry: Entry) -> bool:
        """Drop one pin; True where that removed a damaged entry, whose file the caller then removes."""
        assert entry.pins > 0, "unpin follows a pin"
        entry.pins -= 1
        self.pin_count -= 1
        if entry.pins or entry.state is not EntryState.COMMITTED:
            return False
        if entry.damaged:
            self._drop(entry)
            return True
        self._touch(entry)
        self._order.add(entry)
        return False

    def reopen(self, entry: Entry) -> None:
        """Turn a committed entry whose file is gone or broken into a reservation in place, its pins kept."""
        assert entry.state is EntryState.COMMITTED, "only whole entries can break"
        if entry.stamp:
            self._order.remove(entry)
        self.committed_bytes -= entry.disk_bytes
        self.committed_count -= 1
        self.reserved_bytes += entry.disk_bytes
        entry.state = EntryState.RESERVED
        entry.damaged = False
        entry.generation += 1

    def discard(self, ref: ObjectRef) -> Entry | None:
        """Remove a broken entry, once its last pin ends if it has any; returned where the file can go right now."""
        entry = self._entries.get(ref)
        if entry is None or entry.state is not EntryState.COMMITTED:
            return None  # a fill under way brings fresh bytes anyway
        if entry.pins:
            entry.damaged = True
            return None
        self._order.remove(entry)
        self._drop(entry)
        return entry

    def make_room(self, wanted_bytes: int, after: float = -math.inf) -> tuple[Entry, ...]:
        """Evict idle entries of ``wanted_bytes`` in all, where the disk has less space than the limit promised."""
        return self._evict(wanted_bytes, after=after) or ()

    def note_next_use(self, uses: Iterable[tuple[ObjectRef, float]]) -> None:
        """Set when objects are needed next, those not here included; inf forgets.

        Raises:
            ValueError: a position is not a number.
        """
        for ref, position in uses:
            if math.isnan(position):
                raise ValueError(f"expected a position or inf as the next use of {ref.url}, got nan")
            if position == math.inf:
                self._next_uses.pop(ref, None)
            else:
                self._next_uses[ref] = position
            entry = self._entries.get(ref)
            if entry is not None and entry.next_use != position:
                entry.next_use = position
                self._order.move(entry)

    @property
    def _free_bytes(self) -> int:
        return self.limit_bytes - self.committed_bytes - self.reserved_bytes

    def _reserve(self, ref: ObjectRef) -> Entry:
        entry = Entry(ref, layout.disk_bytes(ref), next_use=self._next_uses.get(ref, math.inf))
        self._entries[ref] = entry
        self.reserved_bytes += entry.disk_bytes
        return entry

    def _pin(self, entry: Entry) -> None:
        if entry.stamp:
            self._order.remove(entry)
        entry.pins += 1
        self.pin_count += 1

    def _evict(
        self, wanted_bytes: int, *, after: float, keep: set[Entry] | frozenset[Entry] = frozenset()
    ) -> tuple[Entry, ...] | None:
        if wanted_bytes <= 0:
            return ()
        victims = self._order.take(wanted_bytes, after=after, keep=keep)
        if victims is None:
            return None
        for entry in victims:
            self._drop(entry)
        return tuple(victims)

    def _drop(self, entry: Entry) -> None:
        self.committed_bytes -= entry.disk_bytes
        self.committed_count -= 1
        entry.state = EntryState.GONE
        del self._entries[entry.ref]

    def _touch(self, entry: Entry) -> None:
        self._now += 1
        entry.used_at = self._now
