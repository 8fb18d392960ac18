"""One decode for several jobs: sessions that ask for the same batches read the same decoded one.

Jobs of a group run side by side, each at its own pace. A batch is decoded when the first of them wants it, into memory
of the group, and kept until all have taken it or its room is needed for a later one. Who comes after that has it
decoded once more: nothing is lost by being slow but the sharing, and it is counted.

A client that can read the group's memory without changing it is lent the batch where it lies (``SharedLeases``); others
get a copy in a slot of their own.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from feedd.errors import Internal
from feedd.flow.pools import CPU
from feedd.flow.singleflight import SingleFlight
from feedd.flow.tasks import off_loop, to_its_end
from feedd.metrics import PIPELINE_SHARED
from feedd.sessions.shared_batches import WINDOW_BATCHES, Keeping
from feedd.values import SlotRef

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence
    from contextlib import AbstractContextManager

    from feedd.batching.assembler import Assembler
    from feedd.catalog.stages import Stages
    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchRows
    from feedd.sessions.shared_batches import Kept
    from feedd.values import BatchReady, Cursor, ObjectRef, ShardIndex

LEASES_MOST = 8  # of one session where the daemon chooses: the group looks ahead for all of them
_LENDERS = 4
_GROUP_BYTES = 1 << 30
_STRIDE_BYTES = 4 << 20
_INLINE_BYTES = 1 << 20  # copied at once: a thread costs as much


def slots_to_lend(lease_count: int, slot_bytes: int) -> int:
    """Return the slots of a group's arena whose members hold so many leases each.

    Enough for the window and one member's leases, and for four members where that is not too much; others take copies.
    """
    return max(WINDOW_BATCHES + lease_count + 1, min(_LENDERS * lease_count + 1, _GROUP_BYTES // slot_bytes))


class SharedBatches:
    """The batches of one group. Owns its arena."""

    def __init__(self, arena: Arena, assembler: Assembler, stages: Stages, tasks: asyncio.TaskGroup) -> None:
        self._arena = arena
        self._assembler = assembler
        self._stages = stages
        self._flight: SingleFlight[tuple[int, int], Kept] = SingleFlight(tasks)
        self._kept = Keeping(arena)
        self._freed = asyncio.Event()
        self._furthest = (-1, -1)

    def __repr__(self) -> str:
        return f"SharedBatches({self._kept.member_count} members, {len(self._kept)} batches)"

    @property
    def member_count(self) -> int:
        """Sessions that joined and did not leave."""
        return self._kept.member_count

    @property
    def arena(self) -> Arena:
        """Where its batches lie; the group's."""
        return self._arena

    def join(self, member: object) -> None:
        """Add a session; what was made before it came is not kept for it."""
        self._kept.join(member)

    def admit(self, member: object, lease_count: int) -> bool:
        """Promise a member that many leases at a time; False: there are not slots enough, let it take copies."""
        return self._kept.admit(member, lease_count)

    def leave(self, member: object) -> None:
        """Remove a session: nothing is kept for it any more."""
        self._kept.leave(member)
        self._freed.set()

    async def batch(
        self,
        member: object,
        rows: BatchRows,
        refs: Sequence[ObjectRef],
        indexes: Sequence[ShardIndex],
        into: memoryview,
    ) -> BatchReady:
        """Copy the decoded batch into ``into``, decoding it first where nobody has.

        Raises:
            As ``Assembler.fill`` and the cache do.
        """
        kept = await self._found(None, rows, refs, indexes)
        kept.reader_count += 1
        try:
            return await self._copied(kept, into)
        finally:
            self._kept.copied(kept, member)
            self._freed.set()

    async def lend(
        self,
        holder: SharedLeases,
        ticket: SlotRef,
        rows: BatchRows,
        refs: Sequence[ObjectRef],
        indexes: Sequence[ShardIndex],
    ) -> BatchReady:
        """Lend the decoded batch to a member, until it gives ``ticket`` back; decode it first where nobody has.

        Raises:
            As ``batch``.
        """
        kept = await self._found(holder, rows, refs, indexes)
        if kept.slot is None:  # too large for a slot: it travels by itself
            kept.taken_by.add(holder)
            self._kept.sweep()
            return kept.ready
        self._kept.hold(kept, holder)
        holder.lent(ticket, kept)
        return replace(kept.ready, place=kept.slot.index)

    def let_go(self, kept: Kept, holder: SharedLeases) -> None:
        """End the lease of a batch."""
        self._kept.let_go(kept, holder)
        self._freed.set()

    def check_failures(self, at: Cursor) -> None:
        """Make sure that the epoch's steps up to ``at`` are within the failure budget; see ``Assembler``."""
        self._assembler.check_failures(at)

    async def close(self) -> None:
        """End what is under way and free the memory."""
        await self._flight.cancel_all()
        await self._stages.inflight.withdraw(self)
        self._kept.clear()
        self._assembler.close()
        self._arena.close()

    async def _found(
        self, holder: SharedLeases | None, rows: BatchRows, refs: Sequence[ObjectRef], indexes: Sequence[ShardIndex]
    ) -> Kept:
        """Return the batch, decoded if need be; nothing is awaited after it was found."""
        key = (rows.cursor.epoch, rows.cursor.step)
        while (kept := self._kept.find(key, holder)) is None:
            await self._flight.do(key, lambda: self._make(key, rows, refs, indexes))
        if kept.taken_by:
            self._stages.recorder.count(PIPELINE_SHARED, outcome="taken")
        return kept

    async def _make(
        self, key: tuple[int, int], rows: BatchRows, refs: Sequence[ObjectRef], indexes: Sequence[ShardIndex]
    ) -> Kept:
        self._stages.recorder.count(PIPELINE_SHARED, outcome="again" if key <= self._furthest else "made")
        self._furthest = max(key, self._furthest)
        slot = await self._room()
        try:
            ready = await self._stages.inflight.read(
                list(refs), rows, lambda files: self._assembler.fill(rows, indexes, files, slot), self
            )
        except BaseException:
            self._free(slot)
            raise
        if ready.oversize is not None:
            self._free(slot)
        self._freed.set()  # where nobody takes it any more, its room is another's
        return self._kept.add(key, ready, None if ready.oversize is not None else slot)

    async def _room(self) -> SlotRef:
        while (slot := self._kept.room()) is None:
            self._freed.clear()
            await self._freed.wait()  # for a copy, or for another batch in the making: both end
        return slot

    async def _copied(self, kept: Kept, into: memoryview) -> BatchReady:
        ready = kept.ready
        if kept.slot is None:
            return ready
        source = self._arena.view(kept.slot)[: ready.size_bytes]
        if ready.size_bytes > into.nbytes:  # a slot cut for other shards: it travels by itself
            own = await off_loop(lambda: memoryview(bytearray(source)), ready.size_bytes)
            return replace(ready, oversize=own)
        if ready.size_bytes <= _INLINE_BYTES:
            into[: ready.size_bytes] = source
            return ready
        stop = threading.Event()
        job = CPU.begin(_copy, source, into, stop)
        await to_its_end(job, stop)  # even if cancelled: until then both memories are in use
        return ready

    def _free(self, slot: SlotRef) -> None:
        self._arena.give_back(slot)
        self._freed.set()


class SharedLeases:
    """One session's leases on batches that lie in its group's arena (seam ``Slots``).

    A ticket's number says nothing of where a batch lies: ``BatchReady.place`` does.
    """

    def __init__(self, count: int) -> None:
        self._entered: SharedBatches | None = None
        self._generations = [0] * count
        self._free = list(range(count - 1, -1, -1))
        self._taken: dict[SlotRef, Kept | None] = {}

    def __repr__(self) -> str:
        return f"SharedLeases({len(self._taken)}/{len(self._generations)})"

    def enter(self, group: SharedBatches) -> bool:
        """Lease from a group that was joined; False: it has not slots enough."""
        self._entered = group
        return group.admit(self, self.slot_count)

    @property
    def group(self) -> SharedBatches:
        """Whose batches these are."""
        assert self._entered is not None, "leases without a group"
        return self._entered

    @property
    def slot_count(self) -> int:
        """How many."""
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
        """Leases in use."""
        return len(self._taken)

    def take(self, at: Cursor | None = None) -> SlotRef | None:
        """Return a ticket nobody holds, under a fresh generation, or None; ``at`` is for the group to find."""
        del at
        if not self._free:
            return None
        index = self._free.pop()
        self._generations[index] += 1
        ticket = SlotRef(index, self._generations[index])
        self._taken[ticket] = None
        return ticket

    def lent(self, ticket: SlotRef, kept: Kept) -> None:
        """Take note of what was lent on a ticket that was taken."""
        self._taken[ticket] = kept

    def give_back(self, slot: SlotRef) -> bool:
        """Free the ticket, and let go of what was lent on it; False where this use of it is over already."""
        if slot not in self._taken:
            return False
        kept = self._taken.pop(slot)
        self._free.append(slot.index)
        if kept is not None:
            self.group.let_go(kept, self)
        return True

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

    def close(self) -> None:
        """Nothing of its own is to be freed."""


class Sharing:
    """The groups of a daemon, by what their members have in common."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, SharedBatches] = {}
        self._making: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    @property
    def group_count(self) -> int:
        """Groups that have members."""
        return len(self._groups)

    async def join(self, key: Hashable, member: object, make: Callable[[], Awaitable[SharedBatches]]) -> SharedBatches:
        """Add a session to the group of that name, making it where it is the first.

        Jobs that start together wait for one of them to make it: its memory is allocated once. A maker that fails or is
        cancelled leaves it to the next, so that a group never stands without a member.

        Raises:
            As ``make`` does.
        """
        async with self._making.setdefault(key, asyncio.Lock()):
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = await make()
            group.join(member)
        return group

    async def leave(self, key: Hashable, member: object) -> None:
        """Remove a session; a group without members ends."""
        group = self._groups.get(key)
        if group is not None:
            group.leave(member)
            if not group.member_count:
                del self._groups[key]
                await group.close()


def _copy(source: memoryview, into: memoryview, stop: threading.Event) -> None:
    for at in range(0, source.nbytes, _STRIDE_BYTES):
        if stop.is_set():
            return
        end = min(at + _STRIDE_BYTES, source.nbytes)
        np.copyto(np.frombuffer(into[at:end], np.uint8), np.frombuffer(source[at:end], np.uint8))
