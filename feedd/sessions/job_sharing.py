"""One decode for several jobs: sessions that request the same batches share each decoded batch.

Jobs of a group run side by side, each at its own pace. A batch is decoded into the group's memory when the first job
requests it. It is kept until all jobs have taken it or a later batch needs its slot. A job that requests it after that
has it decoded again, and a metric counts the repeat.

A client that can read the group's memory without changing it leases the batch in place. Other clients get a copy in a
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
    from feedd.ordering.batch_plan import RunPlan
    from feedd.sessions.own_batches import BatchDecoder
    from feedd.sessions.shared_batches import SharedBatch
    from feedd.values import BatchReady, SlotRef

LEASES_MOST = 8  # of a session if the daemon chooses; the group already decodes ahead for all members
_LENDERS = 4  # members that an arena of moderate size has leases for
_GROUP_BYTES = 1 << 30
_STRIDE_BYTES = 4 << 20
_INLINE_BYTES = 1 << 20  # copied on the event loop, because a thread costs as much


def slots_to_lease(lease_count: int, slot_bytes: int) -> int:
    """Return the slots of a group's arena whose members each hold up to ``lease_count`` leases.

    The slots suffice for the window and one member's leases. They suffice for four members if that takes at most 1 GiB.
    Further members take copies.
    """
    return max(WINDOW_BATCHES + lease_count + 1, min(_LENDERS * lease_count + 1, _GROUP_BYTES // slot_bytes))


class SharedBatches:
    """The batches of one job group. Owns the group's arena."""

    def __init__(self, arena: Arena, assembler: Assembler, stages: Stages, tasks: asyncio.TaskGroup) -> None:
        self._arena = arena
        self._assembler = assembler
        self._stages = stages
        self._flight: SingleFlight[tuple[int, int], SharedBatch] = SingleFlight(tasks)
        self._shared_batches = Keeping(arena)
        self._freed = asyncio.Event()
        self._furthest = (-1, -1)

    def __repr__(self) -> str:
        return f"SharedBatches({self._shared_batches.member_count} members, {len(self._shared_batches)} batches)"

    @property
    def member_count(self) -> int:
        """Number of sessions in the group."""
        return self._shared_batches.member_count

    @property
    def arena(self) -> Arena:
        """The group's arena, which holds its batches."""
        return self._arena

    @property
    def assembler(self) -> Assembler:
        """The assembler that fills the group's arena."""
        return self._assembler

    def join(self, member: object) -> None:
        """Add a session; batches made earlier are not kept for it."""
        self._shared_batches.join(member)

    def admit(self, member: object, lease_count: int) -> bool:
        """Reserve a number of leases for a member; False: too few slots, so the member must take copies."""
        return self._shared_batches.admit(member, lease_count)

    def leave(self, member: object) -> None:
        """Remove a session: no more batches are kept for it."""
        self._shared_batches.leave(member)
        self._freed.set()

    async def copy(self, member: object, plan: RunPlan, decoder: BatchDecoder, into: memoryview) -> BatchReady:
        """Copy a decoded batch into ``into``; decode it first if no member has.

        Args:
            member: a member of the group.
            plan: the plan of the batch.
            decoder: the member's decoder, which fills the group's arena.
            into: a slot of the member's arena.

        Raises:
            As ``BatchDecoder.decode``.
        """
        kept = await self._found(None, plan, decoder)
        kept.reader_count += 1
        try:
            return await self._copied(kept, into)
        finally:
            self._shared_batches.copied(kept, member)
            self._freed.set()

    async def lease(self, holder: object, plan: RunPlan, decoder: BatchDecoder) -> SharedBatch:
        """Lease a decoded batch to a member until ``let_go``; decode it first if no member has.

        A batch too large for a slot is not leased but sent inline.

        Raises:
            As ``copy``.
        """
        kept = await self._found(holder, plan, decoder)
        if kept.slot is None:
            kept.taken_by.add(holder)
            self._shared_batches.sweep()
        else:
            self._shared_batches.hold(kept, holder)
        return kept

    def let_go(self, kept: SharedBatch, holder: object) -> None:
        """End the lease of a batch."""
        self._shared_batches.let_go(kept, holder)
        self._freed.set()

    async def close(self) -> None:
        """Cancel running decodes and free the memory."""
        await self._flight.cancel_all()
        await self._stages.inflight.withdraw(self)
        self._shared_batches.clear()
        self._assembler.close()
        self._arena.close()

    async def _found(self, holder: object, plan: RunPlan, decoder: BatchDecoder) -> SharedBatch:
        """Return the batch, decoded first if needed. The code does not await after it finds the batch."""
        key = (plan.cursor.epoch, plan.cursor.step)
        while (kept := self._shared_batches.find(key, holder)) is None:
            await self._flight.do(key, lambda: self._make(key, plan, decoder))
        if kept.taken_by:
            self._stages.recorder.count(PIPELINE_SHARED, outcome="taken")
        return kept

    async def _make(self, key: tuple[int, int], plan: RunPlan, decoder: BatchDecoder) -> SharedBatch:
        self._stages.recorder.count(PIPELINE_SHARED, outcome="again" if key <= self._furthest else "made")
        self._furthest = max(key, self._furthest)
        slot = await self._free_slot()
        try:
            ((ready, _),) = await decoder.decode(plan, slot, self)
        except BaseException:
            self._free(slot)
            raise
        if ready.oversize is not None:
            self._free(slot)
        self._freed.set()  # if no member needs the batch any more, its slot is free for others
        return self._shared_batches.add(key, ready, None if ready.oversize is not None else slot)

    async def _free_slot(self) -> SlotRef:
        while (slot := self._shared_batches.free_slot()) is None:
            self._freed.clear()
            await self._freed.wait()  # for a copy or a decode that uses a slot: both end
        return slot

    async def _copied(self, kept: SharedBatch, into: memoryview) -> BatchReady:
        ready = kept.ready
        if kept.slot is None:
            return ready
        source = self._arena.view(kept.slot)[: ready.size_bytes]
        if ready.size_bytes > into.nbytes:  # the slot was sized for other shards, so the batch is sent inline
            own = await off_loop(lambda: memoryview(bytearray(source)), ready.size_bytes)
            return replace(ready, oversize=own)
        if ready.size_bytes <= _INLINE_BYTES:
            into[: ready.size_bytes] = source
            return ready
        stop = threading.Event()
        job = CPU.begin(_copy, source, into, stop)
        await run_to_end(job, stop)  # even if cancelled: the thread uses both buffers until it ends
        return ready

    def _free(self, slot: SlotRef) -> None:
        self._arena.give_back(slot)
        self._freed.set()


class Sharing:
    """The job groups of a daemon, by a key of the options that their members share."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, SharedBatches] = {}
        self._making: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    @property
    def group_count(self) -> int:
        """Number of groups that have members."""
        return len(self._groups)

    async def join(self, key: Hashable, member: object, make: Callable[[], Awaitable[SharedBatches]]) -> SharedBatches:
        """Add a session to the group of that key; the first session makes the group.

        Jobs that start together wait until one of them has made the group, so its memory is allocated once. If that job
        fails or is cancelled, the next job makes the group, so a group always has a member.

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
        """Remove a session; the last one to leave closes the group."""
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
