"""Bookkeeping of a job group's decoded batches: which ones are kept, their readers, and the free slots. No I/O.

A batch is *in use* while a member copies it or holds a lease on it. Its slot is then never given to another batch. A
batch that is not in use is kept for members that have not taken it, unless a later batch needs its slot.

Lease holders never wait for each other, because the leases reserved for all of them are fewer than the slots. A member
that requests a batch holds no lease for it yet. So at least one slot is free, or holds a batch that is not in use, or
belongs to a decode or copy that will end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedd.flow.arena import Arena
    from feedd.values import BatchReady, SlotRef

    Key = tuple[int, int]  # epoch, step

WINDOW_BATCHES = 8  # steps that the fastest job may be ahead before batches are decoded again for the slowest


@dataclass(slots=True, eq=False)
class SharedBatch:
    """A decoded batch in the group's memory.

    Attributes:
        ready: the decoded batch.
        slot: its slot; None: the batch has memory of its own.
        taken_by: members that have taken it.
        reader_count: members that are copying it.
        holders: members that lease it in place.
        gone: no member can find it any more; its slot is freed when it is not in use.
    """

    ready: BatchReady
    slot: SlotRef | None
    taken_by: set[object] = field(default_factory=set)
    reader_count: int = 0
    holders: set[object] = field(default_factory=set)
    gone: bool = False

    @property
    def in_use(self) -> bool:
        """Whether a member copies or leases it."""
        return bool(self.reader_count or self.holders)


class Keeping:
    """Tracks which batch is in which slot of one group's arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._shared_batches: dict[Key, SharedBatch] = {}  # oldest first
        self._members: set[object] = set()
        self._promised: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._shared_batches)

    @property
    def member_count(self) -> int:
        """Number of sessions in the group."""
        return len(self._members)

    def join(self, member: object) -> None:
        """Add a session; batches made earlier are not kept for it."""
        for kept in self._shared_batches.values():
            kept.taken_by.add(member)
        self._members.add(member)

    def admit(self, member: object, lease_count: int) -> bool:
        """Reserve a number of leases for a member; False: too few slots, so the member must take copies."""
        if sum(self._promised.values()) + lease_count >= self._arena.slot_count:
            return False
        self._promised[member] = lease_count
        return True

    def leave(self, member: object) -> None:
        """Remove a session: no more batches are kept for it. Its leases stay valid."""
        self._members.discard(member)
        self._promised.pop(member, None)
        self.sweep()

    def find(self, key: Key, holder: object | None = None) -> SharedBatch | None:
        """Return a kept batch, or None if there is none or ``holder`` already holds it.

        A client never gets a second lease of the same slot, because it may have written to the first one.
        """
        kept = self._shared_batches.get(key)
        if kept is not None and holder in kept.holders:
            self._forget(key)
            return None
        return kept

    def free_slot(self) -> SlotRef | None:
        """Return a slot to decode into, if needed by dropping the oldest unused batch; None: the caller must wait."""
        slot = self._arena.take()
        if slot is None:
            oldest = next(
                (key for key, kept in self._shared_batches.items() if kept.slot is not None and not kept.in_use), None
            )
            if oldest is not None:
                self._forget(oldest)
                slot = self._arena.take()
        return slot

    def add(self, key: Key, ready: BatchReady, slot: SlotRef | None) -> SharedBatch:
        """Keep a new batch; it replaces a batch of the same step, which its maker still leases."""
        self._forget(key)
        kept = self._shared_batches[key] = SharedBatch(ready, slot)
        return kept

    def hold(self, kept: SharedBatch, holder: object) -> None:
        """Lease a batch that was just found to a member."""
        kept.taken_by.add(holder)
        kept.holders.add(holder)

    def let_go(self, kept: SharedBatch, holder: object) -> None:
        """End a member's lease."""
        kept.holders.remove(holder)
        self._ended(kept)

    def copied(self, kept: SharedBatch, member: object) -> None:
        """Record that a member has finished or cancelled its copy."""
        kept.reader_count -= 1
        kept.taken_by.add(member)
        self._ended(kept)

    def sweep(self) -> None:
        """Drop batches that all members have, and the oldest ones beyond the window."""
        idle = [key for key, kept in self._shared_batches.items() if not kept.in_use]
        left = [key for key in idle if not self._members <= self._shared_batches[key].taken_by]
        for key in {*idle}.difference(left[-WINDOW_BATCHES:]):
            self._forget(key)

    def clear(self) -> None:
        """Forget all batches, because the memory is freed."""
        self._shared_batches.clear()

    def _ended(self, kept: SharedBatch) -> None:
        if kept.gone:
            self._free(kept)
        self.sweep()

    def _forget(self, key: Key) -> None:
        kept = self._shared_batches.pop(key, None)
        if kept is not None:
            kept.gone = True
            self._free(kept)

    def _free(self, kept: SharedBatch) -> None:
        if kept.slot is not None and not kept.in_use:
            self._arena.give_back(kept.slot)
