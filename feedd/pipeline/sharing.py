"""One decode for several jobs: sessions that ask for the same batches take copies of the same decoded one.

Jobs of a group run side by side, each at its own pace. A batch is decoded when the first of them wants it, into memory
of the group, and kept until all have taken it or its room is needed for a later one. Who comes after that has it
decoded once more: nothing is lost by being slow but the sharing, and it is counted.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from feedd.flow.singleflight import SingleFlight
from feedd.flow.tasks import to_its_end
from feedd.metrics import PIPELINE_SHARED
from feedd.pipeline.pinned import with_pinned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from feedd.flow.arena import Arena
    from feedd.pipeline.batches.assemble import Assembler
    from feedd.pipeline.stages import Stages
    from feedd.plan.reader import BatchRows
    from feedd.values import BatchReady, ObjectRef, ShardIndex, SlotRef

WINDOW_BATCHES = 8  # so many steps the fastest job may be ahead of the slowest before that decodes for itself
_STRIDE_BYTES = 4 << 20
_INLINE_BYTES = 1 << 20  # copied at once: a thread costs as much


@dataclass(slots=True, eq=False)
class _Kept:
    """A decoded batch in the group's memory.

    Attributes:
        slot: where; None: in memory of its own.
        taken_by: members that have it.
        reader_count: members that are copying it.
        gone: its room was needed.
    """

    ready: BatchReady
    slot: SlotRef | None
    taken_by: set[object] = field(default_factory=set)
    reader_count: int = 0
    gone: bool = False


class SharedBatches:
    """The batches of one group. Owns its arena."""

    def __init__(
        self, arena: Arena, assembler: Assembler, stages: Stages, tasks: asyncio.TaskGroup, *, counted: bool = True
    ) -> None:
        self._arena = arena
        self._counted = counted
        self._assembler = assembler
        self._stages = stages
        self._flight: SingleFlight[tuple[int, int], _Kept] = SingleFlight(tasks)
        self._kept: dict[tuple[int, int], _Kept] = {}  # the oldest first
        self._members: set[object] = set()
        self._freed = asyncio.Event()
        self._furthest = (-1, -1)

    def __repr__(self) -> str:
        return f"SharedBatches({len(self._members)} members, {len(self._kept)} batches)"

    @property
    def member_count(self) -> int:
        """Sessions that joined and did not leave."""
        return len(self._members)

    def join(self, member: object) -> None:
        """Add a session; what was made before it came is not kept for it."""
        for kept in self._kept.values():
            kept.taken_by.add(member)
        self._members.add(member)

    def leave(self, member: object) -> None:
        """Remove a session: nothing is kept for it any more."""
        self._members.discard(member)
        self._sweep()

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
        key = (rows.cursor.epoch, rows.cursor.step)
        while (kept := self._kept.get(key)) is None or kept.gone:
            await self._flight.do(key, lambda: self._make(key, rows, refs, indexes))
        if kept.taken_by and self._counted:
            self._stages.recorder.count(PIPELINE_SHARED, outcome="taken")
        kept.reader_count += 1
        try:
            return await self._copied(kept, into)
        finally:
            kept.reader_count -= 1
            kept.taken_by.add(member)
            self._sweep()

    async def prepare(self, rows: BatchRows, refs: Sequence[ObjectRef], indexes: Sequence[ShardIndex]) -> None:
        """Decode a batch that somebody will take.

        Raises:
            As ``batch``.
        """
        key = (rows.cursor.epoch, rows.cursor.step)
        if key not in self._kept:
            await self._flight.do(key, lambda: self._make(key, rows, refs, indexes))

    async def close(self) -> None:
        """End what is under way and free the memory."""
        await self._flight.cancel_all()
        self._kept.clear()
        self._assembler.close()
        self._arena.close()

    async def _make(
        self, key: tuple[int, int], rows: BatchRows, refs: Sequence[ObjectRef], indexes: Sequence[ShardIndex]
    ) -> _Kept:
        if self._counted:
            self._stages.recorder.count(PIPELINE_SHARED, outcome="again" if key <= self._furthest else "made")
        self._furthest = max(key, self._furthest)
        slot = await self._room()
        try:
            ready = await with_pinned(
                self._stages.cache, list(refs), lambda files: self._assembler.fill(rows, indexes, files, slot)
            )
        except BaseException:
            self._free(slot)
            raise
        if ready.oversize is not None:
            self._free(slot)
        kept = self._kept[key] = _Kept(ready, None if ready.oversize is not None else slot)
        return kept

    async def _room(self) -> SlotRef:
        while (slot := self._arena.take()) is None:
            oldest = next((key for key, kept in self._kept.items() if not kept.reader_count), None)
            if oldest is None:
                self._freed.clear()
                await self._freed.wait()  # for a copy, or for another batch in the making: both end
            else:
                self._drop(oldest)
        return slot

    async def _copied(self, kept: _Kept, into: memoryview) -> BatchReady:
        ready = kept.ready
        if kept.slot is None:
            return ready
        source = self._arena.view(kept.slot)[: ready.size_bytes]
        if ready.size_bytes > into.nbytes:  # a slot cut for other shards: it travels by itself
            own = memoryview(bytearray(source))
            return replace(ready, oversize=own)
        if ready.size_bytes <= _INLINE_BYTES:
            into[: ready.size_bytes] = source
            return ready
        stop = threading.Event()
        job = asyncio.get_running_loop().run_in_executor(None, _copy, source, into, stop)
        await to_its_end(job, stop)  # even if cancelled: until then both memories are in use
        return ready

    def _sweep(self) -> None:
        for key in [
            key for key, kept in self._kept.items() if self._members <= kept.taken_by and not kept.reader_count
        ]:
            self._drop(key)
        self._freed.set()

    def _drop(self, key: tuple[int, int]) -> None:
        kept = self._kept.pop(key)
        kept.gone = True
        if kept.slot is not None:
            self._free(kept.slot)

    def _free(self, slot: SlotRef) -> None:
        self._arena.give_back(slot)
        self._freed.set()


class Sharing:
    """The groups of a daemon, by what their members have in common."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, SharedBatches] = {}

    @property
    def group_count(self) -> int:
        """Groups that have members."""
        return len(self._groups)

    async def join(self, key: Hashable, member: object, make: Callable[[], Awaitable[SharedBatches]]) -> SharedBatches:
        """Add a session to the group of that name, making it where it is the first.

        Raises:
            As ``make`` does.
        """
        group = self._groups.get(key)
        if group is None:
            made = await make()
            group = self._groups.setdefault(key, made)  # somebody else may have made one meanwhile
            if group is not made:
                await made.close()
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
