"""The cache's index: its entries, their pins, and which entry to evict. Pure: no files, no clock, no tasks.

``committed_bytes + reserved_bytes <= limit_bytes`` always holds, also while entries from disk are adopted. The same
holds for each quota. A pinned entry is never evicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.cache import entry_layout
from feedd.cache.policy.capacity import Capacity, TooLarge
from feedd.cache.policy.eviction_order import Entry, EntryState
from feedd.cache.policy.quota import NO_GROUP

__all__ = ["CacheIndex", "FullNow", "Reservation", "TooLarge"]

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from feedd.cache.policy.quota import Quotas
    from feedd.values import NextUses, ObjectRef


@dataclass(frozen=True, slots=True)
class Reservation:
    """Entries that are now pinned, and what the caller must do for them.

    Attributes:
        entries: one per requested ref, in that order.
        present: entries whose data is on disk.
        running: entries whose fill another caller has started.
        missing: entries that the caller must fill, then commit or abort.
        evicted: no longer in the index; the caller removes their files before it fills anything.
    """

    entries: tuple[Entry, ...]
    present: tuple[Entry, ...]
    running: tuple[Entry, ...]
    missing: tuple[Entry, ...]
    evicted: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class FullNow:
    """There is no space until pins or reservations end; nothing was changed.

    Attributes:
        wanted_bytes: bytes missing now.
        quota: URL prefix of the quota that has no space; empty: the cache itself has none.
    """

    wanted_bytes: int
    quota: str = NO_GROUP


class CacheIndex:
    """Entries by object version; every method decides at once and returns what has to be done on disk.

    Attributes:
        space: the space, and which entry is evicted when it runs out.
        committed_bytes: disk bytes of whole entries.
        reserved_bytes: disk bytes reserved by running fills.
        committed_count: whole entries.
        pin_count: pins held on entries, including entries removed since.
        next_uses: tells when objects are needed next; None: nothing is known.
    """

    def __init__(self, limit_bytes: int, quotas: Quotas | None = None) -> None:
        self.space = Capacity(limit_bytes, quotas)
        self.committed_bytes = 0
        self.reserved_bytes = 0
        self.committed_count = 0
        self.pin_count = 0
        self._entries: dict[ObjectRef, Entry] = {}
        self.next_uses: NextUses | None = None
        self._now = 0

    @property
    def limit_bytes(self) -> int:
        """Upper limit of committed plus reserved bytes."""
        return self.space.limit_bytes

    def __len__(self) -> int:
        """Number of all entries, reserved ones included."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all entries, reserved ones included."""
        return iter(self._entries.values())

    def find(self, ref: ObjectRef) -> Entry | None:
        """Return the object's entry, reserved or committed, or None."""
        return self._entries.get(ref)

    def adopt_all(self, sizes: Iterable[tuple[ObjectRef, int]]) -> list[ObjectRef]:
        """Enter objects found on disk, oldest use first, in one call because there may be a million.

        Args:
            sizes: objects and their disk bytes.

        Returns:
            The objects not entered: a limit leaves no room for them after the earlier ones, or they are indexed
                already.
        """
        adopted: list[Entry] = []
        refused: list[ObjectRef] = []
        entries, space = self._entries, self.space
        found = list(sizes)
        for (ref, disk_bytes), next_use in zip(found, self._times([ref for ref, _ in found]), strict=True):
            entry = Entry(ref, disk_bytes, EntryState.COMMITTED, next_use=next_use, group=space.group(ref))
            if not space.fits(entry) or entries.setdefault(ref, entry) is not entry:
                refused.append(ref)
                continue
            space.take(entry)
            self._now += 1
            entry.used_at = self._now
            adopted.append(entry)
        self.committed_bytes += sum(entry.disk_bytes for entry in adopted)
        self.committed_count += len(adopted)
        space.order.add_all(adopted)
        return refused

    def reserve_all(self, refs: Sequence[ObjectRef]) -> Reservation | FullNow | TooLarge:
        """Pin all of ``refs`` (no duplicates) and reserve the missing ones: all or nothing."""
        here = {ref: self._entries[ref] for ref in refs if ref in self._entries}
        if len(here) == len(refs) and not any(entry.damaged for entry in here.values()):
            return self._pinned(tuple(here.values()), frozenset(), ())
        too_large = self.space.too_large(refs)
        if too_large is not None:
            return too_large
        sizes = {ref: entry_layout.disk_bytes(ref) for ref in refs if ref not in here}
        keep = set(here.values())
        evicted = self._evict(sizes, after=-math.inf, keep=keep)
        if evicted is None:
            return FullNow(self.space.lacking_bytes(sizes), self.space.lacking_quota(sizes, keep))
        damaged = {ref for ref, entry in here.items() if entry.damaged}
        for ref in damaged:
            self.reopen(here[ref])
        missing = damaged | sizes.keys()
        times = dict(zip(sizes, self._times(tuple(sizes)), strict=True))
        entries = tuple(here.get(ref) or self._reserve(ref, times[ref]) for ref in refs)
        return self._pinned(entries, missing, evicted)

    def _pinned(
        self, entries: tuple[Entry, ...], missing: Collection[ObjectRef], evicted: tuple[Entry, ...]
    ) -> Reservation:
        """Pin entries of one request; ``missing`` are those that it fetches."""
        for entry in entries:
            self._pin(entry)
        present = tuple(entry for entry in entries if entry.state is EntryState.COMMITTED)
        reserved = [entry for entry in entries if entry.state is EntryState.RESERVED]
        running = tuple(entry for entry in reserved if entry.ref not in missing)
        fresh = tuple(entry for entry in reserved if entry.ref in missing)
        return Reservation(entries, present, running, fresh, evicted)

    def reserve_early(self, ref: ObjectRef) -> Reservation | FullNow | TooLarge:
        """Reserve one object in advance, unpinned; evicts only entries that are needed strictly later.

        The object must not be in the index yet. An object whose next use is unknown evicts nothing.
        """
        assert ref not in self._entries, "already here"
        too_large = self.space.too_large((ref,))
        if too_large is not None:
            return too_large
        sizes = {ref: entry_layout.disk_bytes(ref)}
        next_use = self._times((ref,))[0]
        evicted = self._evict(sizes, after=next_use)
        if evicted is None:
            return FullNow(self.space.lacking_bytes(sizes))
        entry = self._reserve(ref, next_use)
        return Reservation((entry,), (), (), (entry,), evicted)

    def commit(self, entry: Entry) -> bool:
        """Make a filled entry whole. False: it was orphaned, so its space is free and its file must be removed."""
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
            self.space.order.add(entry)
        return True

    def abort(self, entry: Entry) -> None:
        """Give up a reservation; pins still held on it end without effect."""
        assert entry.state is EntryState.RESERVED, "abort follows reserve"
        self.reserved_bytes -= entry.disk_bytes
        self.space.give_back(entry)
        entry.state = EntryState.GONE
        self.orphan(entry)

    def orphan(self, entry: Entry) -> None:
        """Hide a reserved entry whose fill is being cancelled. A new request reserves anew; the space stays taken."""
        if self._entries.get(entry.ref) is entry:
            del self._entries[entry.ref]

    def unpin(self, entry: Entry) -> bool:
        """Drop one pin. True: a damaged entry was removed, and the caller removes its file."""
        assert entry.pins > 0, "unpin follows a pin"
        entry.pins -= 1
        self.pin_count -= 1
        if entry.pins or entry.state is not EntryState.COMMITTED:
            return False
        if entry.damaged:
            self._drop(entry)
            return True
        self._touch(entry)
        self.space.order.add(entry)
        return False

    def reopen(self, entry: Entry) -> None:
        """Turn a committed entry whose file is gone or broken into a reservation; its pins stay."""
        assert entry.state is EntryState.COMMITTED, "only whole entries can break"
        if entry.stamp:
            self.space.order.remove(entry)
        self.committed_bytes -= entry.disk_bytes
        self.committed_count -= 1
        self.reserved_bytes += entry.disk_bytes
        entry.state = EntryState.RESERVED
        entry.damaged = False
        entry.generation += 1

    def discard(self, ref: ObjectRef) -> Entry | None:
        """Remove a broken entry, or mark a pinned one for removal with its last pin.

        Returns:
            The removed entry, whose file the caller removes now, or None.
        """
        entry = self._entries.get(ref)
        if entry is None or entry.state is not EntryState.COMMITTED:
            return None  # a running fill brings fresh bytes anyway
        if entry.pins:
            entry.damaged = True
            return None
        self.space.order.remove(entry)
        self._drop(entry)
        return entry

    def free_space(self, wanted_bytes: int, after: float = -math.inf) -> tuple[Entry, ...]:
        """Evict idle entries of ``wanted_bytes`` in total, because the disk has less space than the limit assumed."""
        victims = self.space.order.take(wanted_bytes, after=after) if wanted_bytes > 0 else []
        return self._drop_all(victims or [])

    def note_next_use(self, times: NextUses, refs: Sequence[ObjectRef] | None = None) -> None:
        """Take next uses from ``times`` from now on; see ``ShardCache.note_next_use``.

        Raises:
            ValueError: a time is not a number.
        """
        self.next_uses = times
        if refs is None:
            entries = list(self._entries.values())
        else:
            entries = [self._entries[ref] for ref in refs if ref in self._entries]
        for entry, time in zip(entries, self._times([entry.ref for entry in entries]), strict=True):
            if entry.next_use != time:
                entry.next_use = time
                self.space.order.move(entry)

    def _times(self, refs: Sequence[ObjectRef]) -> Sequence[float]:
        """Return when each object is needed next; inf: unknown or never."""
        if self.next_uses is None or not refs:
            return [math.inf] * len(refs)
        found = self.next_uses(refs)
        wrong = next((ref for ref, time in zip(refs, found, strict=True) if math.isnan(time)), None)
        if wrong is not None:
            raise ValueError(f"expected a time or inf as the next use of {wrong.url}, got nan")
        return found

    def _reserve(self, ref: ObjectRef, next_use: float) -> Entry:
        entry = Entry(ref, entry_layout.disk_bytes(ref), next_use=next_use, group=self.space.group(ref))
        self._entries[ref] = entry
        self.reserved_bytes += entry.disk_bytes
        self.space.take(entry)
        return entry

    def _pin(self, entry: Entry) -> None:
        if entry.stamp:
            self.space.order.remove(entry)
        entry.pins += 1
        self.pin_count += 1

    def _evict(
        self, sizes: Mapping[ObjectRef, int], *, after: float, keep: Collection[Entry] = ()
    ) -> tuple[Entry, ...] | None:
        victims = self.space.victims(sizes, after, keep)
        return None if victims is None else self._drop_all(victims)

    def _drop_all(self, victims: Iterable[Entry]) -> tuple[Entry, ...]:
        dropped = tuple(victims)
        for entry in dropped:
            self._drop(entry)
        return dropped

    def _drop(self, entry: Entry) -> None:
        self.committed_bytes -= entry.disk_bytes
        self.committed_count -= 1
        self.space.give_back(entry)
        entry.state = EntryState.GONE
        del self._entries[entry.ref]

    def _touch(self, entry: Entry) -> None:
        self._now += 1
        entry.used_at = self._now
