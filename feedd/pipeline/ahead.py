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

from feedd.errors import FeeddError
from feedd.pipeline.pinned import with_pinned
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.flow.arena import Arena
    from feedd.pipeline.batches.assemble import Assembler
    from feedd.pipeline.dataset.shelf import Shelf
    from feedd.pipeline.planning import AnyReader
    from feedd.plan.listing import Listing
    from feedd.protocols import ShardCache
    from feedd.values import BatchReady, SlotRef

AHEAD_BATCHES = 2  # while one is taken the next is there; what follows is made as in the middle of an epoch
_log = structlog.get_logger("feedd.pipeline")


@dataclass(frozen=True, slots=True)
class AheadParts:
    """What is needed to decode ahead of a session.

    Attributes:
        arena: the session's.
        assembler: likewise.
        reader: makes a reader of the session's plan; its own stands in another epoch.
        steps: of the session's consumer, the first ones of an epoch.
    """

    arena: Arena
    assembler: Assembler
    reader: Callable[[], AnyReader]
    steps: tuple[int, ...]
    listing: Listing
    shelf: Shelf
    cache: ShardCache
    tasks: asyncio.TaskGroup


@dataclass(slots=True, eq=False)
class _Early:
    """A batch that is, or is being, made ahead.

    Attributes:
        task: makes it; None: it could not be. Until it is done the slot is written to.
        wanted: a stream may still ask for it.
    """

    epoch: int
    step: int
    slot: SlotRef
    task: asyncio.Task[BatchReady | None]
    wanted: bool = True


class Ahead:
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
        return None if not early.wanted or early.task.cancelled() else early.task.result()

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
        """Make the next batch where there is one, a slot is free for it, and none is being made."""
        if not self._left or any(not early.task.done() for early in self._held):
            return
        slot = self._arena.take()
        if slot is None:
            return  # asked again when one is given back
        step = self._left.pop(0)
        task = self._parts.tasks.create_task(self._make(Cursor(self._epoch, step), slot))
        early = _Early(self._epoch, step, slot, task)
        self._held.append(early)
        task.add_done_callback(partial(self._ended, early))

    def _ended(self, early: _Early, task: asyncio.Task[BatchReady | None]) -> None:
        failed = task.cancelled() or task.exception() is not None or task.result() is None
        if early in self._held and (failed or not early.wanted):
            self._free(early)
        if failed and early.wanted:
            self._left.clear()
        self._begin_next()

    async def _make(self, at: Cursor, slot: SlotRef) -> BatchReady | None:
        parts = self._parts
        self._reader = self._reader or parts.reader()
        try:
            rows = await parts.shelf.rows(parts.listing, self._reader, at)
            if isinstance(rows, EpochEnd):
                return None
            shards = rows.shards.tolist()
            refs = [parts.listing.refs[shard] for shard in shards]
            indexes = await parts.shelf.indexes(parts.listing, shards)
            fill = partial(parts.assembler.fill, early=True)
            ready = await with_pinned(parts.cache, refs, lambda files: fill(rows, indexes, files, slot))
        except FeeddError as error:
            _log.debug("nothing was decoded ahead", epoch=at.epoch, step=at.step, reason=str(error))
            return None
        return ready if ready.oversize is None else None  # it is not in the slot: memory of its own
