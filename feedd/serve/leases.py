"""Which slots a client holds; only this module takes slots from the arena and gives them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.protocols import Slots
    from feedd.values import Cursor, SlotRef


class Leases:
    """The session's leases. A lease exists only while the client's lifeline does, because only the lifeline can end it.

    Attributes:
        attached: the client has a lifeline.
        stale_count: refused releases of leases that were not held.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._held: dict[int, SlotRef] = {}
        self.attached = False
        self.stale_count = 0

    @property
    def held_count(self) -> int:
        """Number of slots that the client holds."""
        return len(self._held)

    def take(self, at: Cursor) -> SlotRef | None:
        """Return a slot for the batch at ``at``, if there is one."""
        return self._slots.take(at)

    def free(self, slot: SlotRef) -> None:
        """Give back a slot that the client does not hold."""
        given = self._slots.give_back(slot)
        assert given, f"slot {slot.index} was given back twice"

    def lease(self, slot: SlotRef) -> bool:
        """Lease the slot to the client and return True; without a lifeline, free the slot and return False."""
        if not self.attached:
            self.free(slot)
            return False
        self._held[slot.index] = slot
        return True

    def release(self, slot: SlotRef) -> None:
        """End a lease; a lease that is not held is only counted."""
        if self._held.get(slot.index) == slot:
            del self._held[slot.index]
            self.free(slot)
        else:
            self.stale_count += 1

    def reclaim(self, keep: Iterable[SlotRef] = ()) -> tuple[SlotRef, ...]:
        """End all leases except those in ``keep``; return the ended ones."""
        kept = set(keep)
        ended = tuple(slot for slot in self._held.values() if slot not in kept)
        for slot in ended:
            del self._held[slot.index]
            self.free(slot)
        return ended
