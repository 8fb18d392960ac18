"""The first batches of the next epoch, decoded into slots that nobody needs while the trainer takes the last of this.

They lie in the session's own slots, and a stream that asks for one of them is given the slot it lies in: no memory of
their own, no copy. Whoever needs such a slot for something else gets it at once: the batch is then made when it is
asked for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from feedd.cache.pinned_reads import with_pinned
from feedd.errors import FeeddError
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.sessions.filling import Filling
    from feedd.values import BatchReady, SlotRef

AHEAD_BATCHES = 2
"""While one is taken the next is there; what follows is made as in the middle of an epoch. Where several are made at
once it is as many as that: a trainer takes them faster than a stream begins."""
_log = structlog.get_logger("feedd.sessions")


@dataclass(frozen=True, slots=True)
class AheadParts:
    """What is needed to decode ahead of a session.

    Attributes:
        arena: the session's.
        filling: likewise.
        reader: makes a reader of the session's plan; its own stands in another epoch.
        steps: of the session's consumer, the first ones of an epoch.
        at_once: how many of them are made together.
    """

    arena: Arena
    filling: Filling
    reader: Callable[[], AnyReader]
    steps: tuple[int, ...]
    at_once: int
    tasks: asyncio.TaskGroup


@dataclass(slots=True, eq=False)
class _Early:
    """A batch that is, or is being, made ahead.

    Attributes:
        task: makes it and others; what could not be made is not in its list. Until it is done the slot is written to.
        place: in that list.
        wanted: a stream may still ask for it.
    """

    epoch: int
    step: int
    slot: SlotRef
    task: asyncio.Task[list[BatchReady]]
    place: int
    wanted: bool = True

    @property
    def made(self) -> BatchReady | None:
        """What lies in the slot once the task is done; None: nothing does."""
        if self.task.cancelled() or self.task.exception() is not None:
            return None
        found = self.task.result()
        return found[self.place] if self.place < len(found) else None


class NextEpochPrefetch:
    """One session's slots (seam ``Slots``), the free ones of them put to use between epochs.

    Nothing that fails here is an error: the batch is then made when it is asked for.
    """

    def __init__(self, parts: AheadParts) -> None:
        self._parts = parts
        self._arena = parts.arena
        self._epoch = -1
        self._reader: AnyReader | None = None
        self._left: list[int] = []  # steps not begun
        self._held: list[_Early] = []  # in slots that count as free
        self._handed: dict[SlotRef, _Early] = {}  # in slots that were taken, nobody has produced into them yet

    @property
    def slot_count(self) -> int:
        """How many slots."""
        return self._arena.slot_count

    @property
    def slot_bytes(self) -> int:
        """Size of each."""
        return self._arena.slot_bytes

    def view(self, slot: SlotRef) -> memoryview:
        """Return the slot's bytes.

        Raises:
            Internal: this use of the slot is over.
        """
        return self._arena.view(slot)

    def take(self, at: Cursor | None = None) -> SlotRef | None:
        """Return the slot in which the batch at ``at`` lies, or a free one; None only where all are taken."""
        if at is not None:
            self._turn_to(at)
        early = self._found(at)
        if early is None:
            slot = self._arena.take()
            if slot is not None or not self._held:
                return slot
            early = min(self._held, key=lambda one: (one.wanted, -one.step))
            early.wanted = False
            early.task.cancel()
        self._held.remove(early)
        self._handed[early.slot] = early
        return early.slot

    def give_back(self, slot: SlotRef) -> bool:
        """Free the slot; a batch that was made ahead and that nobody came to produce waits on in it."""
        if any(early.slot == slot for early in self._held):
            return False
        early = self._handed.pop(slot, None)
        if early is None:
            freed = self._arena.give_back(slot)
            self._begin_next()
            return freed
        self._held.append(early)
        if not early.wanted or early.epoch != self._epoch:
            self._drop(early)
        return True

    def begin(self, epoch: int) -> None:
        """Start on an epoch, once: all batches of the one before are made, or being decoded."""
        if epoch != self._epoch:
            self._drop_all()
            self._epoch, self._left, self._reader = epoch, list(self._parts.steps), None
            self._begin_next()

    async def batch(self, slot: SlotRef) -> BatchReady | None:
        """Return the batch made ahead in a slot that was taken for it; None: the slot is to be written to.

        Cancelled, it leaves things as they are: the slot is not free before it is given back.
        """
        early = self._handed.get(slot)
        if early is None:
            return None
        if not early.task.done():
            await asyncio.wait([early.task])
        del self._handed[slot]
        return early.made if early.wanted else None

    def holds(self, slot: SlotRef) -> bool:
        """Whether something was, or is being, made ahead in a slot that is taken."""
        return slot in self._handed

    async def close(self) -> None:
        """End what is under way and give all slots back; idempotent."""
        self._drop_all()
        cancelled: asyncio.CancelledError | None = None
        while tasks := [early.task for early in self._held if not early.task.done()]:
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError as error:  # until they end they use the arena
                cancelled = error
        for early in tuple(self._held):
            self._free(early)
        if cancelled is not None:
            raise cancelled

    # ------------------------------------------------------------------ inside

    def _found(self, at: Cursor | None) -> _Early | None:
        if at is None or at.epoch != self._epoch:
            return None
        return next((early for early in self._held if early.wanted and early.step == at.step), None)

    def _turn_to(self, at: Cursor) -> None:
        """Let go of what a stream that stands at ``at`` will not ask for: its steps ascend."""
        if at.epoch != self._epoch:
            self._drop_all()
            return
        self._left = [step for step in self._left if step > at.step]
        for early in [early for early in self._held if early.step < at.step]:
            self._drop(early)

    def _drop_all(self) -> None:
        self._epoch = -1
        self._left.clear()
        for early in tuple(self._held):
            self._drop(early)

    def _drop(self, early: _Early) -> None:
        early.wanted = False
        if early.task.done():
            self._free(early)
        else:
            early.task.cancel()  # freed when it has ended

    def _free(self, early: _Early) -> None:
        self._held.remove(early)
        self._arena.give_back(early.slot)

    def _begin_next(self) -> None:
        """Make the next batches where there are any, slots are free for them, and none is being made."""
        if not self._left or any(not early.task.done() for early in self._held):
            return
        count = min(self._parts.at_once, len(self._left))
        if self._arena.slot_count - self._arena.taken_count < count:
            return  # asked again when one is given back
        slots = [slot for slot in (self._arena.take() for _ in range(count)) if slot is not None]
        steps, self._left = self._left[: len(slots)], self._left[len(slots) :]
        task = self._parts.tasks.create_task(self._make([Cursor(self._epoch, step) for step in steps], slots))
        begun = [
            _Early(self._epoch, step, slot, task, place)
            for place, (step, slot) in enumerate(zip(steps, slots, strict=True))
        ]
        self._held += begun
        task.add_done_callback(lambda _: self._ended(begun))

    def _ended(self, begun: Sequence[_Early]) -> None:
        for early in begun:
            failed = early.made is None
            if early in self._held and (failed or not early.wanted):
                self._free(early)
            if failed and early.wanted:
                self._left.clear()
        self._begin_next()

    async def _make(self, steps: Sequence[Cursor], slots: Sequence[SlotRef]) -> list[BatchReady]:
        try:
            if len(steps) > 1:
                return await self._make_together(steps, slots)
            return await self._make_one(steps[0], slots[0])
        except FeeddError as error:
            at = steps[0]
            _log.debug("nothing was decoded ahead", epoch=at.epoch, step=at.step, reason=str(error))
            return []

    async def _make_one(self, at: Cursor, slot: SlotRef) -> list[BatchReady]:
        its, reader = self._parts.filling, self._its_reader()
        rows = await its.catalog.rows(its.listing, reader, at)
        if isinstance(rows, EpochEnd):
            return []
        shards = rows.shards.tolist()
        refs = [its.listing.refs[shard] for shard in shards]
        indexes = await its.catalog.indexes(its.listing, shards)
        fill = partial(its.assembler.fill, early=True)
        ready = await with_pinned(its.cache, refs, lambda files: fill(rows, indexes, files, slot))
        return [ready] if ready.oversize is None else []  # it is not in the slot: memory of its own

    async def _make_together(self, steps: Sequence[Cursor], slots: Sequence[SlotRef]) -> list[BatchReady]:
        its, reader = self._parts.filling, self._its_reader()
        batches: list[BatchPlan] = []
        for at in steps:
            drawn = await its.catalog.draw(its.listing, reader, at)
            if isinstance(drawn, EpochEnd) or (batches and drawn.last_window != batches[0].last_window):
                break  # the next window's shards may not be here yet
            batches.append(drawn)
        if not batches:
            return []
        return await its.together(batches, slots, early=True)

    def _its_reader(self) -> AnyReader:
        self._reader = self._reader or self._parts.reader()
        return self._reader
