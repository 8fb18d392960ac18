"""Sessions that use the batches of their job group: as copies in own slots, or as leases of the group's slots."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from feedd.errors import Internal
from feedd.sessions.own_batches import Batches
from feedd.values import Produced, SlotRef

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import RunPlan
    from feedd.sessions.job_sharing import SharedBatches
    from feedd.sessions.own_batches import BatchDecoder
    from feedd.sessions.shared_batches import SharedBatch
    from feedd.values import Cursor


class GroupMember(Batches):
    """A session that gets its batches from a job group, one by one."""

    def __init__(self) -> None:
        self._group: SharedBatches | None = None
        self._decoder: BatchDecoder | None = None
        self._leave: Callable[[object], Awaitable[None]] | None = None

    def enter(self, group: SharedBatches, decoder: BatchDecoder, leave: Callable[[object], Awaitable[None]]) -> None:
        """Connect the session to the group that it joined.

        Args:
            group: the job group.
            decoder: decodes the session's listing into the group's arena.
            leave: leaves the group.
        """
        self._group, self._decoder, self._leave = group, decoder, leave

    @property
    def group(self) -> SharedBatches:
        """The job group."""
        assert self._group is not None, "a member without a group"
        return self._group

    @property
    def decoder(self) -> BatchDecoder:
        """The decoder that fills the group's arena."""
        assert self._decoder is not None, "a member without a group"
        return self._decoder

    def check_failures(self, at: Cursor) -> None:
        """Ask the group's assembler, which has the failure budget."""
        self.group.assembler.check_failures(at)

    async def leave_group(self) -> None:
        """Leave the job group."""
        assert self._leave is not None, "a member without a group"
        await self._leave(self)


class SharedCopies(GroupMember):
    """Batches that are copied from a job group into the session's own arena."""

    def __init__(self, arena: Arena, detach: Callable[[], None]) -> None:
        """Create; ``detach`` takes the arena from the workers."""
        super().__init__()
        self._arena = arena
        self._detach = detach

    @property
    def slots(self) -> Arena:
        """The session's arena."""
        return self._arena

    def client_mapping(self) -> AbstractContextManager[int]:
        """Lend the arena's memfd to the client; see ``Batches``."""
        return self._arena.client_mapping()

    async def make(self, plans: Sequence[RunPlan], decoding: Callable[[], object]) -> Produced:
        """Return a copy of the group's batch; see ``Batches.make``."""
        del decoding  # the group's part
        (plan,) = plans
        slot = self._arena.take()
        assert slot is not None, "more batches are made than there are slots"
        try:
            batch = await self.group.copy(self, plan, self.decoder, self._arena.view(slot))
        except BaseException:
            self.release(slot)
            raise
        return Produced(batch, slot)

    def release(self, slot: SlotRef) -> None:
        """Free the slot."""
        freed = self._arena.give_back(slot)
        assert freed, f"slot {slot.index} was given back twice"

    async def close(self) -> None:
        """Leave the group and free the arena."""
        await self.leave_group()
        self._detach()
        self._arena.close()


class SharedLeases(GroupMember):
    """Batches that the session reads in its group's arena (implements ``Slots``).

    A slot here is a ticket. Its number says nothing about a batch's address; ``BatchReady.arena_slot`` does.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._generations = [0] * count
        self._free = list(range(count - 1, -1, -1))
        self._taken: dict[SlotRef, SharedBatch | None] = {}

    def __repr__(self) -> str:
        return f"SharedLeases({len(self._taken)}/{len(self._generations)})"

    def enter(self, group: SharedBatches, decoder: BatchDecoder, leave: Callable[[object], Awaitable[None]]) -> None:
        """Connect the session to the group, whose arena it reads; see ``GroupMember.enter``."""
        super().enter(group, decoder, leave)
        self.shared_slot_count = group.arena.slot_count

    def admitted(self, group: SharedBatches) -> bool:
        """Reserve all leases in the joined group; False: the group has too few slots."""
        return group.admit(self, self.slot_count)

    @property
    def slots(self) -> Self:
        """The tickets, which this object manages itself."""
        return self

    @property
    def slot_count(self) -> int:
        """Number of tickets."""
        return len(self._generations)

    @property
    def slot_bytes(self) -> int:
        """Size of each slot of the group's arena."""
        return self.group.arena.slot_bytes

    def client_mapping(self) -> AbstractContextManager[int]:
        """Lend the group's memfd to one client until the context ends; the group's memory counts until then."""
        return self.group.arena.client_mapping(read_only=True)

    @property
    def taken_count(self) -> int:
        """Number of tickets in use."""
        return len(self._taken)

    async def make(self, plans: Sequence[RunPlan], decoding: Callable[[], object]) -> Produced:
        """Return a lease of the group's batch; see ``Batches.make``."""
        del decoding  # the group's part
        (plan,) = plans
        index = self._free.pop()
        self._generations[index] += 1
        ticket = SlotRef(index, self._generations[index])
        self._taken[ticket] = None
        try:
            kept = await self.group.lease(self, plan, self.decoder)
        except BaseException:
            self.release(ticket)
            raise
        if kept.slot is None:
            return Produced(kept.ready, ticket)
        self._taken[ticket] = kept
        return Produced(replace(kept.ready, arena_slot=kept.slot.index), ticket)

    def release(self, slot: SlotRef) -> None:
        """Free the ticket and end its lease."""
        kept = self._taken.pop(slot)
        self._free.append(slot.index)
        if kept is not None:
            self.group.let_go(kept, self)

    def view(self, slot: SlotRef) -> memoryview:
        """Return the bytes of a ticket's batch.

        Raises:
            Internal: the ticket has no batch.
        """
        kept = self._taken.get(slot)
        if kept is None or kept.slot is None:
            raise Internal(f"ticket {slot.index} of generation {slot.generation} has no batch")
        return self.group.arena.view(kept.slot)

    def retain_leased(self) -> None:
        """Keep leased slots out of use while the group lasts, because a client may go on reading them."""
        self._taken = dict.fromkeys(self._taken)

    async def close(self) -> None:
        """Leave the job group."""
        await self.leave_group()
