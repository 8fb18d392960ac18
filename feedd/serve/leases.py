"""How many slots of a session are in use, and which of them its client holds. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.serve.instructions import Free, Reclaim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.serve.instructions import Instruction
    from feedd.values import SlotRef


class Leases:
    """The session's ledger. A lease exists only while the client's lifeline does: without it nobody could end one.

    Attributes:
        attached: whether the client's lifeline is there.
        stale_count: releases refused because no such lease was held.
        taken_count: slots that are not free: promised to a production, holding a batch, or leased.
    """

    def __init__(self, slot_count: int) -> None:
        self._slot_count = slot_count
        self._held: dict[int, SlotRef] = {}
        self.attached = False
        self.stale_count = 0
        self.taken_count = 0

    @property
    def held_count(self) -> int:
        """Slots the client holds."""
        return len(self._held)

    def promise(self) -> bool:
        """Set one slot aside for a production; False: all are taken."""
        if self.taken_count >= self._slot_count:
            return False
        self.taken_count += 1
        return True

    def unused(self) -> None:
        """Count a promised slot as free: nothing was made in it."""
        self.taken_count -= 1

    def free(self, slot: SlotRef) -> Free:
        """Count a slot the client does not hold as free."""
        self.taken_count -= 1
        return Free(slot)

    def lease(self, slot: SlotRef) -> bool:
        """Let the client hold it; False, and nothing happens, where there is no lifeline."""
        if self.attached:
            self._held[slot.index] = slot
        return self.attached

    def release(self, slot: SlotRef) -> list[Instruction]:
        """End a lease; one that is not held (any more) is counted and nothing else."""
        if self._held.get(slot.index) != slot:
            self.stale_count += 1
            return []
        del self._held[slot.index]
        return [self.free(slot)]

    def reclaim(self, keep: Iterable[SlotRef] = ()) -> list[Instruction]:
        """End all leases but those in ``keep``."""
        kept = set(keep)
        ended = tuple(slot for slot in self._held.values() if slot not in kept)
        for slot in ended:
            del self._held[slot.index]
        self.taken_count -= len(ended)
        return [Reclaim(ended)] if ended else []
