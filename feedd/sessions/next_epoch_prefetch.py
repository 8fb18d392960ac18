"""The first batches of the next epoch, decoded into slots that nobody needs while the trainer takes the last of this.

They lie in free slots of the session's arena, and whoever asks for such a batch gets the slot it lies in: no memory of
its own, no copy. A production that finds no other slot takes one of these: that batch is decoded when it is asked for.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from feedd.errors import FeeddError
from feedd.protocols import Produced
from feedd.sessions.own_batches import plan_leading
from feedd.values import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.sessions.own_batches import BatchDecoder
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
        decoder: likewise.
        reader: makes a reader of the session's plan; its own stands in another epoch.
        steps: of the session's consumer, the first ones of an epoch.
        tasks: where decoding runs.
    """

    arena: Arena
    decoder: BatchDecoder
    reader: Callable[[], AnyReader]
    steps: tuple[int, ...]
    tasks: asyncio.TaskGroup


@dataclass(slots=True, eq=False)
class _Early:
    """A batch that is, or is being, decoded in advance.

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
    """Puts one session's free slots to use between epochs.

    Nothing that fails here is an error: the batch is then made when it is asked for.
    """

    def __init__(self, parts: AheadParts) -> None:
        self._parts = parts
        self._arena = parts.arena
        self._epoch = -1
        self._reader: AnyReader | None = None
        self._left: list[int] = []  # steps not begun
        self._held: list[_Early] = []  # their slots count as free for whoever makes batches

    def begin(self, epoch: int) -> None:
        """Start on an epoch, once: all batches of the one before are made, or being decoded."""
        if epoch != self._epoch:
            self._drop_all()
            self._epoch, self._left, self._reader = epoch, list(self._parts.steps), None
            self.begin_next()

    def begin_next(self) -> None:
        """Make the next batches where there are any, slots are free for them, and none is being made."""
        if not self._left or any(not early.task.done() for early in self._held):
            return
        count = min(self._parts.decoder.assembler.at_once, len(self._left))
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

    def claim(self, plans: Sequence[BatchPlan]) -> tuple[Sequence[BatchPlan], list[_Early]]:
        """Divide batches that somebody asks for.

        Returns:
            The leading ones, all of which are decoded in advance, or none; and what is decoded, to be collected.
        """
        self._turn_to(plans[0].cursor, plans[-1].cursor)
        if not self._held:  # nearly always
            return plans, []
        found = [self._found(plan.cursor) for plan in plans]
        in_advance = found[0] is not None
        leading = list(itertools.takewhile(lambda early: (early is not None) == in_advance, found))
        claimed = [early for early in leading if early is not None]
        for early in claimed:
            self._held.remove(early)
        return plans[: len(leading)], claimed

    async def collect(self, claimed: Sequence[_Early]) -> list[Produced]:
        """Return the leading ones of claimed batches, whose slots are then the caller's. None: the first has failed.

        Cancelled, it leaves all of them for whoever asks next.
        """
        try:
            if pending := [early.task for early in claimed if not early.task.done()]:
                await asyncio.wait(pending)
        except asyncio.CancelledError:
            self._unclaim(claimed)
            raise
        made: list[Produced] = []
        for early in claimed:
            if (batch := early.made) is None:
                break
            made.append(Produced(batch, early.slot))
        self._unclaim(claimed[len(made) :])
        return made

    async def take(self) -> SlotRef:
        """Take a free slot, or else one of a batch decoded in advance, once nothing is written to it any more."""
        slot = self._arena.take()
        if slot is not None:
            return slot
        assert self._held, "more batches are made than there are slots"
        early = min(self._held, key=lambda one: (one.wanted, -one.step))
        self._held.remove(early)
        early.wanted = False
        early.task.cancel()
        try:
            if not early.task.done():
                await asyncio.wait([early.task])
        except asyncio.CancelledError:
            self._unclaim([early])
            raise
        return early.slot

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

    def _found(self, at: Cursor) -> _Early | None:
        if at.epoch != self._epoch:
            return None
        return next((early for early in self._held if early.wanted and early.step == at.step), None)

    def _turn_to(self, first: Cursor, last: Cursor) -> None:
        """Let go of what a stream that asks for these steps will not ask for: its steps ascend."""
        if first.epoch != self._epoch:
            self._drop_all()
            return
        self._left = [step for step in self._left if step > last.step]
        for early in [early for early in self._held if early.step < first.step]:
            self._drop(early)

    def _unclaim(self, claimed: Iterable[_Early]) -> None:
        """Keep batches for whoever asks for them next; free the slots of those that nobody can get."""
        for early in claimed:
            self._held.append(early)
            failed = early.task.done() and early.made is None
            if failed or not early.wanted or early.epoch != self._epoch:
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

    def _ended(self, begun: Sequence[_Early]) -> None:
        for early in begun:
            failed = early.made is None
            if early in self._held and (failed or not early.wanted):
                self._free(early)
            if failed and early.wanted:
                self._left.clear()
        self.begin_next()

    async def _make(self, steps: Sequence[Cursor], slots: Sequence[SlotRef]) -> list[BatchReady]:
        decoder = self._parts.decoder
        self._reader = reader = self._reader or self._parts.reader()
        try:
            plans, _ = await plan_leading(steps, partial(decoder.draw, reader))
            made = await decoder.decode(plans, slots[: len(plans)], self, early=True) if plans else []
        except FeeddError as error:
            at = steps[0]
            _log.debug("nothing was decoded ahead", epoch=at.epoch, step=at.step, reason=str(error))
            return []
        return list(itertools.takewhile(lambda batch: batch.oversize is None, made))  # those lie in no slot
