"""Which decoded batches a group of jobs keeps, who reads them where they lie, and when a slot is free. No I/O.

A batch is *in use* while somebody copies it or holds a lease on it; its slot is then never given to another. One that
is not in use is kept for the members that have not taken it, as long as no later one needs its room.

Lenders never wait: the leases promised to all of them together are fewer than the slots, and who wants a batch made
holds none for it yet, so one slot at least is free, or holds a batch that is not in use, or is another's whose making
or copying ends by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedd.flow.arena import Arena
    from feedd.values import BatchReady, SlotRef

    Key = tuple[int, int]  # epoch, step

WINDOW_BATCHES = 8  # so many steps the fastest job may be ahead of the slowest before that decodes for itself


@dataclass(slots=True, eq=False)
class Kept:
    """A decoded batch in the group's memory.

    Attributes:
        slot: where; None: in memory of its own.
        taken_by: members that have it.
        reader_count: members that are copying it.
        holders: members that read it where it lies.
        gone: nobody finds it any more; it lasts until it is not in use.
    """

    ready: BatchReady
    slot: SlotRef | None
    taken_by: set[object] = field(default_factory=set)
    reader_count: int = 0
    holders: set[object] = field(default_factory=set)
    gone: bool = False

    @property
    def in_use(self) -> bool:
        """Whether somebody reads it."""
        return bool(self.reader_count or self.holders)


class Keeping:
    """The books of one group over the slots of its arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._kept: dict[Key, Kept] = {}  # the oldest first
        self._members: set[object] = set()
        self._promised: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def member_count(self) -> int:
        """Sessions that joined and did not leave."""
        return len(self._members)

    def join(self, member: object) -> None:
        """Add a session; what was made before it came is not kept for it."""
        for kept in self._kept.values():
            kept.taken_by.add(member)
        self._members.add(member)

    def admit(self, member: object, lease_count: int) -> bool:
        """Promise a member that many leases at a time; False: there are not slots enough, let it take copies."""
        if sum(self._promised.values()) + lease_count >= self._arena.slot_count:
            return False
        self._promised[member] = lease_count
        return True

    def leave(self, member: object) -> None:
        """Remove a session: nothing is kept for it any more. What it still holds stays where it is."""
        self._members.discard(member)
        self._promised.pop(member, None)
        self.sweep()

    def find(self, key: Key, holder: object | None = None) -> Kept | None:
        """Return a batch that is kept; for ``holder`` one that it does not hold already.

        A second lease of one place is never given to a client: it may have written there what it is still to find.
        """
        kept = self._kept.get(key)
        if kept is not None and holder in kept.holders:
            self._forget(key)
            return None
        return kept

    def room(self) -> SlotRef | None:
        """Return a slot to decode into, dropping the oldest batch not in use where there is no other; None: wait."""
        slot = self._arena.take()
        if slot is None:
            oldest = next((key for key, kept in self._kept.items() if kept.slot is not None and not kept.in_use), None)
            if oldest is not None:
                self._forget(oldest)
                slot = self._arena.take()
        return slot

    def add(self, key: Key, ready: BatchReady, slot: SlotRef | None) -> Kept:
        """Keep a batch that was made; one of that name that is still there was lent to who made it."""
        self._forget(key)
        kept = self._kept[key] = Kept(ready, slot)
        return kept

    def hold(self, kept: Kept, holder: object) -> None:
        """Lend a batch, just found, to a member."""
        kept.taken_by.add(holder)
        kept.holders.add(holder)

    def let_go(self, kept: Kept, holder: object) -> None:
        """End that lease."""
        kept.holders.remove(holder)
        self._ended(kept)

    def copied(self, kept: Kept, member: object) -> None:
        """Take note that a member that was counted as a reader has its copy, or gave up."""
        kept.reader_count -= 1
        kept.taken_by.add(member)
        self._ended(kept)

    def sweep(self) -> None:
        """Drop what all have, and the oldest of what is kept beyond the window."""
        idle = [key for key, kept in self._kept.items() if not kept.in_use]
        left = [key for key in idle if not self._members <= self._kept[key].taken_by]
        for key in {*idle}.difference(left[-WINDOW_BATCHES:]):
            self._forget(key)

    def clear(self) -> None:
        """Forget everything: the memory goes."""
        self._kept.clear()

    def _ended(self, kept: Kept) -> None:
        if kept.gone:
            self._free(kept)
        self.sweep()

    def _forget(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.gone = True
            self._free(kept)

    def _free(self, kept: Kept) -> None:
        if kept.slot is not None and not kept.in_use:
            self._arena.give_back(kept.slot)
