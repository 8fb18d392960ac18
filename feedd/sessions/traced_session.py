"""A session that notes the way of its batches for traces; used only while tracing is on."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from feedd.flow.trace_log import BatchTrace, distinct
from feedd.sessions.session import Session
from feedd.values import EpochEnd, Produced

if TYPE_CHECKING:
    from feedd.catalog.stages import Stages
    from feedd.errors import FeeddError
    from feedd.flow.trace_log import TraceLog
    from feedd.ordering.batch_plan import RunPlan
    from feedd.sessions.session import SessionParts
    from feedd.values import Cursor, SlotRef


@dataclass(slots=True)
class _Marks:
    """Times of one call of ``produce``, and the shards of its steps."""

    began_s: float = field(default_factory=time.monotonic)
    planned_s: float = 0.0
    decoding_s: float = 0.0
    shards: dict[int, list[int]] = field(default_factory=dict)  # by step


_marks: ContextVar[_Marks | None] = ContextVar("batch_marks", default=None)


class TracedSession(Session):
    """Notes each batch that is chosen, and exports it when its slot is free again.

    Args:
        parts: see ``Session``.
        stages: see ``Session``.
        traces: chooses the batches.
        rank: rank of the trainer.
    """

    def __init__(self, parts: SessionParts, stages: Stages, traces: TraceLog, rank: int) -> None:
        super().__init__(parts, stages)
        self._traces = traces
        self._rank = rank
        self._noted: dict[SlotRef, BatchTrace] = {}

    async def produce(self, at: Cursor, count: int = 1) -> Produced | EpochEnd:
        """Make the batches of steps; see ``Session.produce``."""
        marks = _Marks()
        token = _marks.set(marks)
        try:
            made = await super().produce(at, count)
        finally:
            _marks.reset(token)
        self._note(made, marks)
        return made

    def release(self, slot: SlotRef) -> None:
        """Free the slot of a batch, and export the batch if it is noted."""
        super().release(slot)
        batch = self._noted.pop(slot, None)
        if batch is not None:
            self._traces.export(replace(batch, released_s=time.monotonic()))

    async def _draw(self, call: object, at: Cursor, count: int) -> tuple[list[RunPlan], EpochEnd | FeeddError | None]:
        plans, end = await super()._draw(call, at, count)
        marks = _marks.get()
        if marks is not None:
            marks.planned_s = time.monotonic()
            for plan in plans:
                marks.shards[plan.cursor.step] = plan.shards
        return plans, end

    def _decoding(self, call: object, *, whole: bool = False) -> None:
        super()._decoding(call, whole=whole)
        marks = _marks.get()
        if marks is not None and not marks.decoding_s:
            marks.decoding_s = time.monotonic()

    def _note(self, made: Produced | EpochEnd, marks: _Marks) -> None:
        if isinstance(made, EpochEnd):
            return
        at = made.batch.cursor
        last = at.step + made.batch_count
        if not any(self._traces.wants(at.epoch, step) for step in range(at.step, last)):
            return
        shards = [shard for step, found in marks.shards.items() if at.step <= step < last for shard in found]
        self._noted[made.slot] = BatchTrace(
            at.epoch,
            at.step,
            self._rank,
            distinct(self._parts.view.refs[shard].url for shard in shards),
            marks.began_s,
            marks.planned_s or marks.began_s,
            marks.decoding_s or marks.planned_s or marks.began_s,
            time.monotonic(),
            made.batch_count,
            made.sample_count,
            made.size_bytes,
        )
