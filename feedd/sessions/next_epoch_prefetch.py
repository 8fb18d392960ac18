"""Decodes the first batches of the next epoch into free slots while the trainer takes the last batches of this epoch.

The batches lie in free slots of the session's arena. A request for such a batch gets that slot, so the batch needs no
extra memory and no copy. A request that finds no free slot takes one of these slots. The dropped batch is then decoded
when it is requested.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from feedd.errors import FeeddError
from feedd.flow.runs import first_runs
from feedd.sessions.own_batches import plan_leading
from feedd.values import Cursor, Produced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.sessions.own_batches import BatchDecoder
    from feedd.values import BatchReady, SlotRef

_AHEAD_RUNS = 2
AHEAD_BATCHES = 2
"""Batches decoded in advance: the trainer takes one while the next is ready. If ``fill`` takes several batches at once,
this many are decoded in advance, because a trainer takes them faster than a stream begins."""
_log = structlog.get_logger("feedd.sessions")


@dataclass(frozen=True, slots=True)
class PrefetchParts:
    """The parts that prefetching for a session needs.

    Attributes:
        arena: the session's arena.
        decoder: the session's decoder.
        reader: makes another reader of the session's plan, because the session's reader is in the previous epoch.
        steps: the first steps of an epoch that the session's consumer takes. Not used where slots hold runs.
        tasks: the task group that decodes.
    """

    arena: Arena
    decoder: BatchDecoder
    reader: Callable[[], AnyReader]
    steps: tuple[int, ...]
    tasks: asyncio.TaskGroup


@dataclass(frozen=True, slots=True)
class _Decoded:
    """The result of a decode.

    Attributes:
        batches: the batches; they end before one that could not be decoded.
        alike: batches of a run that follow the first in its slot, and differ from it in their steps only.
    """

    batches: Sequence[BatchReady] = ()
    alike: int = 0


@dataclass(slots=True, eq=False)
class _Early:
    """A batch that is decoded in advance, or a running decode.

    Attributes:
        task: decodes this batch and others, and writes to the slot until it is done.
        index: index of the batch among them.
        count: batches of the slot.
        wanted: a stream may still request the batch.
    """

    epoch: int
    step: int
    slot: SlotRef
    task: asyncio.Task[_Decoded]
    index: int
    count: int = 1
    wanted: bool = True

    @property
    def decoded(self) -> Produced | None:
        """Return the slot with its decoded batches once the task is done, or None if decoding failed."""
        if self.task.cancelled() or self.task.exception() is not None:
            return None
        result = self.task.result()
        if result.alike:
            return Produced(result.batches[0], self.slot, result.alike)
        found = result.batches[self.index : self.index + self.count]
        return Produced(found[0], self.slot, more=tuple(found[1:])) if len(found) == self.count else None


class NextEpochPrefetch:
    """Fills one session's free slots between epochs.

    Failures here raise no error: the batch is then decoded when it is requested.
    """

    def __init__(self, parts: PrefetchParts) -> None:
        self._parts = parts
        self._arena = parts.arena
        self._epoch = -1
        self._reader: AnyReader | None = None
        self._left: list[int] = []  # steps that are not started
        run_batches = parts.decoder.assembler.plain.run_batches
        self._runs = first_runs(run_batches, _AHEAD_RUNS) if run_batches > 1 else {}  # batches, by first step
        self._early_slots: list[_Early] = []  # their slots count as free for requested batches

    def begin(self, epoch: int) -> None:
        """Start to decode an epoch, once. All batches of the previous epoch are made or being decoded."""
        if epoch != self._epoch:
            self._drop_all()
            self._epoch, self._left, self._reader = epoch, list(self._runs or self._parts.steps), None
            self.begin_next()

    def begin_next(self) -> None:
        """Decode the next batches if steps are left, slots are free and no other decode runs."""
        if not self._left or any(not early.task.done() for early in self._early_slots):
            return
        count = 1 if self._runs else min(self._parts.decoder.batches_in_advance, len(self._left))
        if self._arena.slot_count - self._arena.taken_count < count:
            return  # tried again when a slot is given back
        slots = [slot for slot in (self._arena.take() for _ in range(count)) if slot is not None]
        steps, self._left = self._left[: len(slots)], self._left[len(slots) :]
        batches = self._runs.get(steps[0], 1)
        wanted = range(steps[0], steps[0] + batches) if self._runs else steps
        steps_at = [Cursor(self._epoch, step) for step in wanted]
        task = self._parts.tasks.create_task(self._make(steps_at, slots))
        started = [
            _Early(self._epoch, step, slot, task, index, batches)
            for index, (step, slot) in enumerate(zip(steps, slots, strict=True))
        ]
        self._early_slots += started
        task.add_done_callback(lambda _: self._ended(started))

    def split(self, plans: Sequence[BatchPlan]) -> tuple[Sequence[BatchPlan], list[_Early]]:
        """Split requested batches by whether they were decoded in advance.

        Returns:
            The leading plans that were all decoded in advance, or all not, and the decoded batches for ``collect``.
        """
        self._turn_to(plans[0].cursor, plans[-1].cursor)
        if not self._early_slots:  # the usual case
            return plans, []
        found = [self._found(plan.cursor) for plan in plans]
        in_advance = found[0] is not None
        leading = list(itertools.takewhile(lambda early: (early is not None) == in_advance, found))
        claimed = [early for early in leading if early is not None]
        for early in claimed:
            self._early_slots.remove(early)
        return plans[: len(leading)], claimed

    def take_run(self, at: Cursor, count: int) -> list[_Early]:
        """Claim the slot in which a run was decoded in advance, for ``collect``; empty: it was not."""
        self._turn_to(at, at)
        early = self._found(at)
        if early is None or early.count != count:
            return []
        self._early_slots.remove(early)
        return [early]

    async def collect(self, claimed: Sequence[_Early]) -> list[Produced]:
        """Return the leading claimed batches, whose slots now belong to the caller; none if the first batch failed.

        If cancelled, all of them stay available for the next request.
        """
        try:
            if pending := [early.task for early in claimed if not early.task.done()]:
                await asyncio.wait(pending)
        except asyncio.CancelledError:
            self._unclaim(claimed)
            raise
        made: list[Produced] = []
        for early in claimed:
            if (produced := early.decoded) is None:
                break
            made.append(produced)
        self._unclaim(claimed[len(made) :])
        return made

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
            self._unclaim([early])
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

    def _found(self, at: Cursor) -> _Early | None:
        if at.epoch != self._epoch:
            return None
        return next((early for early in self._early_slots if early.wanted and early.step == at.step), None)

    def _turn_to(self, first: Cursor, last: Cursor) -> None:
        """Drop the batches that a stream at these steps skips, because its steps ascend."""
        if first.epoch != self._epoch:
            self._drop_all()
            return
        self._left = [step for step in self._left if step > last.step]
        for early in [early for early in self._early_slots if early.step < first.step]:
            self._drop(early)

    def _unclaim(self, claimed: Iterable[_Early]) -> None:
        """Make claimed batches available again; free the slots of batches that no stream can request."""
        for early in claimed:
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

    def _ended(self, started: Sequence[_Early]) -> None:
        for early in started:
            failed = early.decoded is None
            if early in self._early_slots and (failed or not early.wanted):
                self._free(early)
            if failed and early.wanted:
                self._left.clear()
        self.begin_next()

    async def _make(self, steps: Sequence[Cursor], slots: Sequence[SlotRef]) -> _Decoded:
        decoder = self._parts.decoder
        self._reader = reader = self._reader or self._parts.reader()
        try:
            run = decoder.catalog.draw_run(reader, steps[0], len(steps)) if self._runs else None
            if run is not None and len(run) == len(steps):
                batch = await decoder.decode_run(run, slots[0], self, early=True)
                if batch is not None:
                    return _Decoded((batch,), len(run) - 1)
            catalog = decoder.catalog
            draw = partial(catalog.draw, decoder.view, reader)
            plans, _ = await plan_leading(steps, draw, partial(catalog.waits, reader))
            if self._runs and len(plans) < len(steps):
                return _Decoded()  # the run ends in another window, or with the epoch: it is decoded when requested
            made = await decoder.decode(plans, slots[: len(plans)], self, early=True) if plans else []
        except FeeddError as error:
            at = steps[0]
            _log.debug("no batch was decoded in advance", epoch=at.epoch, step=at.step, reason=str(error))
            return _Decoded()
        return _Decoded(list(itertools.takewhile(lambda batch: batch.oversize is None, made)))  # those lie in no slot
