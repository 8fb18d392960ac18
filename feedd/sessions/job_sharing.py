"""One decode for several jobs: sessions that ask for the same batches read the same decoded one.

Jobs of a group run side by side, each at its own pace. A batch is decoded when the first of them wants it, into memory
of the group, and kept until all have taken it or its room is needed for a later one. Who comes after that has it
decoded once more: nothing is lost by being slow but the sharing, and it is counted.

A client that can read the group's memory without changing it is lent the batch where it lies; others get a copy in a
slot of their own (``sessions.group_members``).
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from feedd.flow.pools import CPU
from feedd.flow.singleflight import SingleFlight
from feedd.flow.tasks import off_loop, run_to_end
from feedd.metrics import PIPELINE_SHARED
from feedd.sessions.shared_batches import WINDOW_BATCHES, Keeping

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from feedd.batching.assembler import Assembler
    from feedd.catalog.stages import Stages
    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.sessions.own_batches import BatchDecoder
    from feedd.sessions.shared_batches import Kept
    from feedd.values import BatchReady, SlotRef

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

    @property
    def assembler(self) -> Assembler:
        """Decodes into that arena."""
        return self._assembler

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

    async def copy(self, member: object, plan: BatchPlan, decoder: BatchDecoder, into: memoryview) -> BatchReady:
        """Copy the decoded batch into ``into``, decoding it first where nobody has.

        Args:
            member: that joined.
            plan: of the batch.
            decoder: the member's, into the group's arena.
            into: a slot of the member's.

        Raises:
            As ``BatchDecoder.decode``.
        """
        kept = await self._found(None, plan, decoder)
        kept.reader_count += 1
        try:
            return await self._copied(kept, into)
        finally:
            self._kept.copied(kept, member)
            self._freed.set()

    async def lease(self, holder: object, plan: BatchPlan, decoder: BatchDecoder) -> Kept:
        """Lend the decoded batch to a member until it lets go; decode it first where nobody has.

        A batch too large for a slot is not lent: it travels by itself.

        Raises:
            As ``copy``.
        """
        kept = await self._found(holder, plan, decoder)
        if kept.slot is None:
            kept.taken_by.add(holder)
            self._kept.sweep()
        else:
            self._kept.hold(kept, holder)
        return kept

    def let_go(self, kept: Kept, holder: object) -> None:
        """End the lease of a batch."""
        self._kept.let_go(kept, holder)
        self._freed.set()

    async def close(self) -> None:
        """End what is under way and free the memory."""
        await self._flight.cancel_all()
        await self._stages.inflight.withdraw(self)
        self._kept.clear()
        self._assembler.close()
        self._arena.close()

    async def _found(self, holder: object, plan: BatchPlan, decoder: BatchDecoder) -> Kept:
        """Return the batch, decoded if need be; nothing is awaited after it was found."""
        key = (plan.cursor.epoch, plan.cursor.step)
        while (kept := self._kept.find(key, holder)) is None:
            await self._flight.do(key, lambda: self._make(key, plan, decoder))
        if kept.taken_by:
            self._stages.recorder.count(PIPELINE_SHARED, outcome="taken")
        return kept

    async def _make(self, key: tuple[int, int], plan: BatchPlan, decoder: BatchDecoder) -> Kept:
        self._stages.recorder.count(PIPELINE_SHARED, outcome="again" if key <= self._furthest else "made")
        self._furthest = max(key, self._furthest)
        slot = await self._room()
        try:
            (ready,) = await decoder.decode([plan], [slot], self)
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
        await run_to_end(job, stop)  # even if cancelled: until then both memories are in use
        return ready

    def _free(self, slot: SlotRef) -> None:
        self._arena.give_back(slot)
        self._freed.set()


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
