"""Sessions that take the batches of their job group: as copies in slots of their own, or where they lie."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from feedd.errors import Internal
from feedd.protocols import Produced
from feedd.values import SlotRef

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.sessions.job_sharing import SharedBatches
    from feedd.sessions.own_batches import BatchDecoder
    from feedd.sessions.shared_batches import Kept
    from feedd.values import Cursor


class GroupMember:
    """A session whose batches its group decodes."""

    def __init__(self) -> None:
        self._group: SharedBatches | None = None
        self._decoder: BatchDecoder | None = None
        self._leave: Callable[[object], Awaitable[None]] | None = None

    def enter(self, group: SharedBatches, decoder: BatchDecoder, leave: Callable[[object], Awaitable[None]]) -> None:
        """Take batches from a group that was joined.

        Args:
            group: it.
            decoder: with the session's listing, into the group's arena.
            leave: leaves the group.
        """
        self._group, self._decoder, self._leave = group, decoder, leave

    @property
    def group(self) -> SharedBatches:
        """Whose batches these are."""
        assert self._group is not None, "a member without a group"
        return self._group

    @property
    def decoder(self) -> BatchDecoder:
        """Decodes into the group's arena."""
        assert self._decoder is not None, "a member without a group"
        return self._decoder

    @property
    def at_once(self) -> int:
        """How many batches are best made together: a group makes them one by one."""
        return 1

    def check_failures(self, at: Cursor) -> None:
        """Make sure that the epoch's steps up to ``at`` are within the failure budget; see ``Assembler``."""
        self.group.assembler.check_failures(at)

    def epoch_ended(self, epoch: int) -> None:
        """Do nothing: a group decodes nothing in advance."""

    async def leave_group(self) -> None:
        """Take no more batches."""
        assert self._leave is not None, "a member without a group"
        await self._leave(self)


class SharedCopies(GroupMember):
    """The batches of a session that copies those of its group into an arena of its own.

    Attributes:
        slots: that arena.
    """

    def __init__(self, arena: Arena, detach: Callable[[], None]) -> None:
        """Bind; ``detach``: takes the arena from the workers."""
        super().__init__()
        self.slots = arena
        self._detach = detach

    @property
    def shared_slot_count(self) -> int:
        """0: no other session reads this arena."""
        return 0

    async def make(self, plans: Sequence[BatchPlan], decoding: Callable[[], object]) -> list[Produced]:
        """Return the first of some batches; see ``OwnBatches.make``."""
        del decoding  # the group's part
        slot = self.slots.take()
        assert slot is not None, "more batches are made than there are slots"
        try:
            batch = await self.group.copy(self, plans[0], self.decoder, self.slots.view(slot))
        except BaseException:
            self.release(slot)
            raise
        return [Produced(batch, slot)]

    def release(self, slot: SlotRef) -> None:
        """Free the slot of a batch that was made."""
        freed = self.slots.give_back(slot)
        assert freed, f"slot {slot.index} was given back twice"

    def keep_lent(self) -> None:
        """Do nothing: no other session writes to this arena."""

    async def close(self) -> None:
        """Leave the group, free the arena."""
        await self.leave_group()
        self._detach()
        self.slots.close()


class SharedLeases(GroupMember):
    """The batches of a session that reads them where they lie: in its group's arena (seam ``Slots``).

    A slot of these is a ticket: its number says nothing of where a batch lies, ``BatchReady.place`` does.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._generations = [0] * count
        self._free = list(range(count - 1, -1, -1))
        self._taken: dict[SlotRef, Kept | None] = {}

    def __repr__(self) -> str:
        return f"SharedLeases({len(self._taken)}/{len(self._generations)})"

    def admitted(self, group: SharedBatches) -> bool:
        """Have a group that was joined promise all leases; False: it has not slots enough."""
        return group.admit(self, self.slot_count)

    @property
    def slots(self) -> Self:
        """The tickets."""
        return self

    @property
    def shared_slot_count(self) -> int:
        """Slots of the group's arena."""
        return self.group.arena.slot_count

    @property
    def slot_count(self) -> int:
        """How many tickets."""
        return len(self._generations)

    @property
    def slot_bytes(self) -> int:
        """Size of each of the group's slots."""
        return self.group.arena.slot_bytes

    def client_mapping(self) -> AbstractContextManager[int]:
        """Hand the group's memfd to one client; the group's memory counts until the exit."""
        return self.group.arena.client_mapping()

    @property
    def taken_count(self) -> int:
        """Tickets in use."""
        return len(self._taken)

    async def make(self, plans: Sequence[BatchPlan], decoding: Callable[[], object]) -> list[Produced]:
        """Return the first of some batches; see ``OwnBatches.make``."""
        del decoding  # the group's part
        index = self._free.pop()
        self._generations[index] += 1
        ticket = SlotRef(index, self._generations[index])
        self._taken[ticket] = None
        try:
            kept = await self.group.lease(self, plans[0], self.decoder)
        except BaseException:
            self.release(ticket)
            raise
        if kept.slot is None:
            return [Produced(kept.ready, ticket)]
        self._taken[ticket] = kept
        return [Produced(replace(kept.ready, place=kept.slot.index), ticket)]

    def release(self, slot: SlotRef) -> None:
        """Free the ticket, and let go of what was lent on it."""
        kept = self._taken.pop(slot)
        self._free.append(slot.index)
        if kept is not None:
            self.group.let_go(kept, self)

    def view(self, slot: SlotRef) -> memoryview:
        """Return the bytes that were lent on a ticket.

        Raises:
            Internal: nothing was.
        """
        kept = self._taken.get(slot)
        if kept is None or kept.slot is None:
            raise Internal(f"expected a ticket with a batch, got {slot.index} of generation {slot.generation}")
        return self.group.arena.view(kept.slot)

    def keep_lent(self) -> None:
        """Leave what is lent out of use for as long as the group lasts: a client may go on reading it."""
        self._taken = dict.fromkeys(self._taken)

    async def close(self) -> None:
        """Leave the group."""
        await self.leave_group()
