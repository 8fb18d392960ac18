"""Decodes the first batches of the next epoch into free slots while the trainer takes the last batches of this epoch.

The batches lie in free slots of the session's arena. A request for such a batch gets that slot, so the batch needs no
extra memory and no copy. A request that finds no free slot takes one of these slots. The dropped batch is then decoded
when it is requested.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from feedd.errors import FeeddError
from feedd.flow.runs import MadeRun, first_runs
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.flow.arena import Arena
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.sessions.own_batches import BatchDecoder
    from feedd.values import Produced, SlotRef

AHEAD_RUNS = 2
"""Runs decoded in advance: the trainer takes one while the next is ready."""
_log = structlog.get_logger("feedd.sessions")


@dataclass(slots=True, eq=False)
class _Early:
    """A run that is decoded in advance, or is being decoded.

    Attributes:
        step: the first step.
        slot: its slot.
        task: decodes the run, and writes to the slot until it is done.
        count: batches of the run.
        wanted: a stream may still request the run.
    """

    epoch: int
    step: int
    slot: SlotRef
    task: asyncio.Task[Produced | None]
    count: int
    wanted: bool = True

    @property
    def decoded(self) -> Produced | None:
        """Return the slot with its decoded batches once the task is done, or None if decoding failed."""
        if self.task.cancelled() or self.task.exception() is not None:
            return None
        return self.task.result()


class NextEpochPrefetch:
    """Fills one session's free slots between epochs.

    Failures here raise no error: the batch is then decoded when it is requested.
    """

    def __init__(
        self,
        arena: Arena,
        decoder: BatchDecoder,
        reader: Callable[[], AnyReader],
        tasks: asyncio.TaskGroup,
        *,
        first: int = 0,
        stride: int = 1,
    ) -> None:
        """Bind.

        Args:
            arena: the session's arena.
            decoder: the session's decoder.
            reader: makes another reader of the session's plan, because the session's reader is in the previous epoch.
            tasks: the task group that decodes.
            first: the first step of an epoch that the session's consumer takes.
            stride: steps from one batch to the next.
        """
        self._arena = arena
        self._decoder = decoder
        self._new_reader = reader
        self._tasks = tasks
        self._first = first
        self._stride = stride
        self._epoch = -1
        self._reader: AnyReader | None = None
        self._left: list[tuple[int, int]] = []  # runs that are not started: the first step, and the batches
        self._early_slots: list[_Early] = []  # their slots count as free for requested batches

    def begin(self, epoch: int) -> None:
        """Start to decode an epoch, once. All batches of the previous epoch are made or being decoded."""
        if epoch != self._epoch:
            runs = first_runs(self._decoder.assembler.run_batches, AHEAD_RUNS)
            self._drop_all()
            self._epoch, self._reader = epoch, None
            self._left = [(self._first + before * self._stride, count) for before, count in runs]
            self.begin_next()

    def begin_next(self) -> None:
        """Decode the next run if one is left, a slot is free and no other decode runs."""
        if not self._left or any(not early.task.done() for early in self._early_slots):
            return
        slot = self._arena.take()
        if slot is None:
            return  # tried again when a slot is given back
        step, count = self._left.pop(0)
        task = self._tasks.create_task(self._make(Cursor(self._epoch, step), count, slot))
        early = _Early(self._epoch, step, slot, task, count)
        self._early_slots.append(early)
        task.add_done_callback(lambda _: self._ended(early))

    async def take_run(self, at: Cursor, count: int) -> Produced | None:
        """Return the run of ``count`` batches from ``at`` on, whose slot then belongs to the caller.

        If cancelled, the run stays available for the next request.

        Returns:
            None: no such run was decoded in advance.
        """
        self._turn_to(at)
        early = next((one for one in self._early_slots if one.wanted and one.step == at.step), None)
        if early is None or early.epoch != at.epoch or early.count != count:
            return None
        self._early_slots.remove(early)
        try:
            if not early.task.done():
                await asyncio.wait([early.task])
        except asyncio.CancelledError:
            self._put_back(early)
            raise
        if early.decoded is None:
            self._put_back(early)
        return early.decoded

    async def take(self) -> SlotRef:
        """Take a free slot, or the slot of a batch decoded in advance after its decode has ended."""
        slot = self._arena.take()
        if slot is not None:
            return slot
        assert self._early_slots, "more batches are made than there are slots"
        early = min(self._early_slots, key=lambda one: (one.wanted, -one.step))
        self._early_slots.remove(early)
        early.wanted = False
        early.task.cancel()
        try:
            if not early.task.done():
                await asyncio.wait([early.task])
        except asyncio.CancelledError:
            self._put_back(early)
            raise
        return early.slot

    async def close(self) -> None:
        """Cancel running decodes and give all slots back; idempotent."""
        self._drop_all()
        cancelled: asyncio.CancelledError | None = None
        while tasks := [early.task for early in self._early_slots if not early.task.done()]:
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError as error:  # the tasks use the arena until they end
                cancelled = error
        for early in tuple(self._early_slots):
            self._free(early)
        if cancelled is not None:
            raise cancelled

    # ------------------------------------------------------------------ inside

    def _turn_to(self, at: Cursor) -> None:
        """Drop the runs that a stream at this step skips, because its steps ascend."""
        if at.epoch != self._epoch:
            self._drop_all()
            return
        self._left = [run for run in self._left if run[0] > at.step]
        for early in [early for early in self._early_slots if early.step < at.step]:
            self._drop(early)

    def _put_back(self, early: _Early) -> None:
        """Make a run that was taken available again; free its slot if no stream can request the run."""
        self._early_slots.append(early)
        failed = early.task.done() and early.decoded is None
        if failed or not early.wanted or early.epoch != self._epoch:
            self._drop(early)

    def _drop_all(self) -> None:
        self._epoch = -1
        self._left.clear()
        for early in tuple(self._early_slots):
            self._drop(early)

    def _drop(self, early: _Early) -> None:
        early.wanted = False
        if early.task.done():
            self._free(early)
        else:
            early.task.cancel()  # the slot is freed when the task has ended

    def _free(self, early: _Early) -> None:
        self._early_slots.remove(early)
        self._arena.give_back(early.slot)

    def _ended(self, early: _Early) -> None:
        failed = early.decoded is None
        if early in self._early_slots and (failed or not early.wanted):
            self._free(early)
        if failed and early.wanted:
            self._left.clear()
        self.begin_next()

    async def _make(self, at: Cursor, count: int, slot: SlotRef) -> Produced | None:
        """Decode a run; None: it fails, ends early, or does not fit into the slot, so it is decoded when requested."""
        decoder = self._decoder
        self._reader = reader = self._reader or self._new_reader()
        try:
            plan = await decoder.catalog.draw(decoder.view, reader, at, count, self._stride)
            if isinstance(plan, EpochEnd) or len(plan) < count:
                return None  # the run ends in another window, or with the epoch
            made = await decoder.decode(plan, slot, self, early=True)
        except FeeddError as error:
            _log.debug("no batch was decoded in advance", epoch=at.epoch, step=at.step, reason=str(error))
            return None
        run = MadeRun(slot, self._stride)
        for batch, alike in made:
            run.add(batch, alike)
        return None if made[0][0].oversize is not None else run.produced()
