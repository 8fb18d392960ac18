"""The cache's index: its entries, their pins, and which entry to evict. Pure: no files, no clock, no tasks.

``committed_bytes + reserved_bytes <= limit_bytes`` always holds, also while entries from disk are adopted. The same
holds for each quota. A pinned entry is never evicted.
"""

from __future__ import annotations

import enum
import heapq
import math
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from feedd.cache import entry_layout
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from feedd.values import NextUses, ObjectRef

NO_GROUP = ""
_COMPACT_SLACK = 64
_BULK_SHARE = 8  # of a heap: fewer new tickets are pushed one by one, more are worth a new heapify
NOT_NEEDED = sys.float_info.max


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


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Not even an empty cache has the space; nothing was changed.

    Attributes:
        needed_bytes: bytes of all requested objects, or of those that count against ``quota``.
        limit_bytes: the limit they exceed.
        quota: URL prefix of the quota that is too small; empty: the cache itself is.
    """

    needed_bytes: int
    limit_bytes: int
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


class Capacity:
    """Bytes taken of a limit and of the quotas inside it, and the idle entries in the order of their eviction.

    Attributes:
        limit_bytes: upper limit of ``taken_bytes``.
        taken_bytes: disk bytes of all entries, reserved or committed.
        order: eviction order of idle entries; the index maintains it.
    """

    def __init__(self, limit_bytes: int, quotas: Quotas | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self.order = EvictionOrder()
        self._quotas = quotas or Quotas()
        self._group_bytes: Counter[str] = Counter()  # of groups with a quota

    def group(self, ref: ObjectRef) -> str:
        """Return the quota that an object counts against; empty: none."""
        return self._quotas.group(ref)

    def fits(self, entry: Entry) -> bool:
        """Whether an entry fits without any eviction."""
        if entry.disk_bytes > self._free_bytes:
            return False
        limit_bytes = self._quotas.limit_bytes(entry.group) if entry.group != NO_GROUP else None
        return limit_bytes is None or self._group_bytes[entry.group] + entry.disk_bytes <= limit_bytes

    def take(self, entry: Entry) -> None:
        """Add an entry's bytes."""
        self.taken_bytes += entry.disk_bytes
        if entry.group != NO_GROUP:
            self._group_bytes[entry.group] += entry.disk_bytes

    def give_back(self, entry: Entry) -> None:
        """Subtract an entry's bytes."""
        self.taken_bytes -= entry.disk_bytes
        if entry.group != NO_GROUP:
            self._group_bytes[entry.group] -= entry.disk_bytes

    def lacking_bytes(self, sizes: Mapping[ObjectRef, int]) -> int:
        """Return how many bytes new objects lack: in the cache as a whole, or in the quota that lacks most."""
        return max(sum(sizes.values()) - self._free_bytes, *self._over_quota(sizes).values(), 0)

    def lacking_quota(self, sizes: Mapping[ObjectRef, int], keep: Collection[Entry] = ()) -> str:
        """Return a quota in which too little can be evicted now for objects not in the cache; empty: none."""
        for group, over_bytes in self._over_quota(sizes).items():
            inside = self.order.take(over_bytes, after=-math.inf, keep=keep, group=group)
            if inside is None:
                return group
            self._restore(inside)
        return NO_GROUP

    def too_large(self, refs: Iterable[ObjectRef]) -> TooLarge | None:
        """Return why even an empty cache cannot hold ``refs`` (no duplicates) together, or None."""
        sizes = {ref: entry_layout.disk_bytes(ref) for ref in refs}
        needed_bytes = sum(sizes.values())
        if needed_bytes > self.limit_bytes:
            return TooLarge(needed_bytes, self.limit_bytes)
        for group, group_bytes in self._quotas.sums(sizes.items()).items():
            limit_bytes = self._quotas.limit_bytes(group)
            if limit_bytes is not None and group_bytes > limit_bytes:
                return TooLarge(group_bytes, limit_bytes, group)
        return None

    def price(self, refs: Iterable[ObjectRef]) -> float:
        """Return the earliest next use among the entries that ``refs`` would evict; changes nothing.

        None of ``refs`` may be in the cache. inf: no eviction is needed. ``NOT_NEEDED``: only entries without a known
        use would be evicted. -inf: there is no space now.
        """
        victims = self.victims({ref: entry_layout.disk_bytes(ref) for ref in refs}, -math.inf)
        if victims is None:
            return -math.inf
        self._restore(victims)
        return min(*(entry.next_use for entry in victims), NOT_NEEDED) if victims else math.inf

    def victims(self, sizes: Mapping[ObjectRef, int], after: float, keep: Collection[Entry] = ()) -> list[Entry] | None:
        """Take entries to evict for new objects out of the order: first inside their quotas, then anywhere.

        Args:
            sizes: disk bytes of the objects, none of them in the cache.
            after: only entries whose next use is strictly later; -inf: any.
            keep: entries not to be taken.

        Returns:
            The entries to evict. None: they would not be enough, and the order is unchanged.
        """
        taken: list[Entry] = []
        for group, over_bytes in self._over_quota(sizes).items():
            inside = self.order.take(over_bytes, after=after, keep=keep, group=group)
            if inside is None:
                self._restore(taken)
                return None
            taken += inside
        freed_bytes = sum(entry.disk_bytes for entry in taken)
        wanted_bytes = sum(sizes.values()) - self._free_bytes - freed_bytes
        if wanted_bytes > 0:
            anywhere = self.order.take(wanted_bytes, after=after, keep=keep)
            if anywhere is None:
                self._restore(taken)
                return None
            taken += anywhere
        return taken

    @property
    def _free_bytes(self) -> int:
        return self.limit_bytes - self.taken_bytes

    def _over_quota(self, sizes: Mapping[ObjectRef, int]) -> dict[str, int]:
        """Return by how many bytes each exceeded quota would be exceeded."""
        found = {}
        for group, group_bytes in self._quotas.sums(sizes.items()).items():
            limit_bytes = self._quotas.limit_bytes(group)
            assert limit_bytes is not None, "only groups with a quota are summed"
            over_bytes = self._group_bytes[group] + group_bytes - limit_bytes
            if over_bytes > 0:
                found[group] = over_bytes
        return found

    def _restore(self, victims: Iterable[Entry]) -> None:
        for entry in victims:
            self.order.add(entry)


class Quotas:
    """Groups of objects by URL prefix; the longest match wins. Only the cache's limit bounds all other objects."""

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        """Take limits in disk bytes by URL prefix, such as ``s3://bucket/train/``.

        Raises:
            ValueError: a prefix is empty, or a limit is not above 0.
        """
        for prefix, limit_bytes in (limits or {}).items():
            if not prefix:
                raise ValueError(
                    "expected the URL prefix of a quota, got an empty prefix: use the cache's size instead"
                )
            if limit_bytes <= 0:
                raise ValueError(f"expected a quota above 0 bytes for {prefix}, got {limit_bytes}")
        self._limits = dict(sorted((limits or {}).items(), key=lambda item: len(item[0]), reverse=True))

    def __repr__(self) -> str:
        return f"Quotas({', '.join(f'{prefix}: {format_size(size)}' for prefix, size in self._limits.items())})"

    def group(self, ref: ObjectRef) -> str:
        """Return the prefix that the object counts against; empty: none."""
        if not self._limits:
            return NO_GROUP
        url = ref.url
        return next((prefix for prefix in self._limits if url.startswith(prefix)), NO_GROUP)

    def limit_bytes(self, group: str) -> int | None:
        """Return the byte limit of a group; None: only the cache's own limit."""
        return self._limits.get(group)

    def sums(self, sizes: Iterable[tuple[ObjectRef, int]]) -> dict[str, int]:
        """Return the bytes of each group that has a quota."""
        found: dict[str, int] = {}
        if self._limits:
            for ref, size_bytes in sizes:
                group = self.group(ref)
                if group != NO_GROUP:
                    found[group] = found.get(group, 0) + size_bytes
        return found


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
