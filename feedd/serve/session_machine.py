"""The session state machine: events in, instructions out. No I/O, no clock, no tasks.

A session outlives its streams. A stream plans steps in order, each only if a credit and a free slot exist. Steps may
finish in any order and are sent in step order. A slot is in exactly one state:

    free → making (a production writes into it) → ready (waits for earlier steps) → sending → leased → free
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import BadRequest, Draining, FeeddError
from feedd.serve.instructions import Finish, Produce, Reclaim, Send, SendEnd, SendError
from feedd.serve.leases import Leases
from feedd.values import BatchReady, Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.protocols import Slots
    from feedd.serve.instructions import Instruction, Outcome
    from feedd.values import SlotRef

CREDITS_MAX = 1 << 20  # far above any slot count, because a client's sum must stay bounded


@dataclass(slots=True)
class _Step:
    """One step of the stream: being made, or made and waiting for its turn."""

    slot: SlotRef | None  # None: the slot is free again
    outcome: Outcome = None


class StreamMachine:
    """One stream: turns credits and releases into productions and sends.

    Attributes:
        leasing: it hands out leases; otherwise it sends inline batches.
    """

    def __init__(self, leases: Leases, start: Cursor, stride: int, *, leasing: bool) -> None:
        """Start without credits.

        Args:
            leases: the session's leases.
            start: first step to produce, with an anchor at or before it.
            stride: distance from one step to the next.
            leasing: the client can be given leases.
        """
        self.leasing = leasing
        self._leases = leases
        self._anchor = start
        self._next_step = start.step
        self._stride = stride
        self._next_seq = 0
        self._credits = 0
        self._line: deque[_Step] = deque()
        self._making: dict[int, _Step] = {}
        self._sending: dict[int, SlotRef] = {}  # by seq
        self._planned_all = False  # no further Produce
        self._ended = False  # SendEnd, SendError or Finish was returned
        self._half_closed = False  # the client sends nothing more
        self._gone = False
        self._samples = 0
        self._bad_samples = 0

    @property
    def epoch(self) -> int:
        """The epoch of the stream."""
        return self._anchor.epoch

    @property
    def making_count(self) -> int:
        """Number of running productions, including abandoned ones."""
        return len(self._making)

    @property
    def taken_count(self) -> int:
        """Number of slots making, ready or sending."""
        return len(self._making) + len(self._sending) + len(self._made())

    @property
    def awaits(self) -> str:
        """What the client's next batch needs: "batch" if it is being made, "space", or "" if none is requested."""
        if self._ended or self._gone:
            return ""
        return "batch" if self._line else "space" if self._credits else ""

    def credits(self, count: int) -> list[Instruction]:
        """Allow the client to hold ``count`` more batches."""
        self._credits = min(self._credits + count, CREDITS_MAX)
        return self._advance()

    def releases(self, slots: Iterable[SlotRef]) -> list[Instruction]:
        """End leases, of this stream or an earlier one."""
        for slot in slots:
            self._leases.release(slot)
        return self._advance()

    def produced(self, slot: SlotRef, outcome: Outcome) -> list[Instruction]:
        """Handle the result of a ``Produce``; None: it was cancelled."""
        step = self._making.pop(slot.index)
        assert step.slot == slot, "a production of another generation"
        if self._ended or self._gone:
            self._leases.free(slot)
            return []
        if not isinstance(outcome, BatchReady):
            self._planned_all = True
            step.slot = None
            self._leases.free(slot)  # earlier steps that wait for a slot may use it
        elif outcome.cursor.anchors is self._anchor.anchors or outcome.cursor.window >= self._anchor.window:
            self._anchor = outcome.cursor
        step.outcome = outcome or FeeddError("the production was cancelled", stage="serve")
        return self._advance()

    def sent(self, seq: int, *, held: bool) -> list[Instruction]:
        """Handle a ``Send``: with ``held`` just before a lease is written, otherwise after an inline batch was written.

        A lease counts as held before its write returns, because the client may release it earlier.
        """
        slot = self._sending.pop(seq)
        if not held:
            self._leases.free(slot)
        elif self._leases.lease(slot) and not self._half_closed:
            return []  # the usual case: nothing became free
        return self._advance()

    def half_closed(self) -> list[Instruction]:
        """Handle the client's half-close: serve its remaining credits as far as its slots go, then finish."""
        if self._half_closed:
            return []
        self._half_closed = True
        return [Finish()] if self._ended else self._advance()

    def fail(self, error: FeeddError) -> list[Instruction]:
        """End the stream with an in-band error."""
        return self._end(SendError(error))

    def gone(self) -> None:
        """End the stream: finished batches that were not handed out are freed now, running ones when they end."""
        self._gone = True
        self._drop_line()
        for slot in self._sending.values():
            self._leases.free(slot)
        self._sending.clear()

    # ------------------------------------------------------------------ inside

    def _drop_line(self) -> None:
        """Free finished batches; running productions are freed when they end."""
        for slot in self._made():
            self._leases.free(slot)
        self._line.clear()

    def _made(self) -> list[SlotRef]:
        """Return the slots of batches that wait for their turn."""
        return [step.slot for step in self._line if step.slot is not None and step.slot.index not in self._making]

    def _end(self, last: SendEnd | SendError) -> list[Instruction]:
        if self._ended or self._gone:
            return []
        self._drop_line()
        self._ended = True
        return [last, Finish()] if self._half_closed else [last]

    def _advance(self) -> list[Instruction]:
        """Send the next finished batches in order, then plan steps as credits and slots allow."""
        out: list[Instruction] = []
        if self._ended or self._gone:
            return out
        line = self._line
        while line and (outcome := line[0].outcome) is not None:
            if isinstance(outcome, EpochEnd):
                return out + self._end(SendEnd(outcome, self._samples, self._bad_samples))
            if isinstance(outcome, FeeddError):
                return out + self._end(SendError(outcome))
            slot = line.popleft().slot
            assert slot is not None, "a batch without a slot"
            out.append(self._send(slot, outcome))
        while self._credits and not self._planned_all and (planned := self._plan()) is not None:
            out.append(planned)
        if self._half_closed and not line and not self._sending:
            self._ended = True
            out.append(Finish())
        return out

    def _send(self, slot: SlotRef, batch: BatchReady) -> Send:
        seq = self._next_seq
        self._next_seq += 1
        self._sending[seq] = slot
        self._samples += batch.samples or batch.rows
        self._bad_samples += batch.bad_samples
        return Send(seq, batch, slot)

    def _plan(self) -> Produce | None:
        """Plan the next step; None if there is no slot for it."""
        anchor = self._anchor
        at = Cursor(anchor.epoch, self._next_step, anchor.anchors)
        slot = self._leases.take(at)
        if slot is None:
            return None
        self._next_step += self._stride
        self._credits -= 1
        step = _Step(slot)
        self._line.append(step)
        self._making[slot.index] = step
        return Produce(at, slot)


class SessionMachine:
    """One session: its lifeline, its leases, and the current stream."""

    def __init__(self, slots: Slots, consumer_count: int = 1, consumer_index: int = 0) -> None:
        """Start without stream and without lifeline.

        Args:
            slots: the session's arena; only the machine takes slots and gives them back.
            consumer_count: DataLoader workers that split the rank's steps.
            consumer_index: the worker that this session feeds; it gets the steps ``s`` with ``s % count == index``.
        """
        self._consumer_count = consumer_count
        self._consumer_index = consumer_index
        self.leases = Leases(slots)
        self.stream: StreamMachine | None = None

    @property
    def taken_count(self) -> int:
        """Number of slots in any state but free."""
        return self.leases.held_count + (0 if self.stream is None else self.stream.taken_count)

    def lifeline_came(self) -> None:
        """Handle a new lifeline: the client mapped the arena and can be given leases."""
        self.leases.attached = True

    def lifeline_gone(self) -> list[Instruction]:
        """Handle the end of the lifeline: the client process is gone, and its slots are free."""
        self.leases.attached = False
        out = self._reclaim()
        if self.stream is not None and self.stream.leasing:
            why = "the arena's connection ended while leases are streamed"
            out += self.stream.fail(BadRequest(why, stage="serve"))
        return out

    def start(
        self, cursor: Cursor, *, inline_only: bool = False, held: Iterable[SlotRef] | None = None
    ) -> list[Instruction]:
        """Start a stream at the first step of this consumer at or after ``cursor.step``.

        Args:
            cursor: first requested step, with an anchor at or before it.
            inline_only: send payloads instead of leases; also the case while there is no lifeline.
            held: leases that the client knows it holds; if given, all others are freed.
        """
        assert self.stream is None, "the former stream has not been ended"
        out = [] if held is None else self._reclaim(held)
        step = cursor.step + (self._consumer_index - cursor.step) % self._consumer_count
        first = Cursor(cursor.epoch, step, cursor.anchors)
        leasing = self.leases.attached and not inline_only
        self.stream = StreamMachine(self.leases, first, self._consumer_count, leasing=leasing)
        return out

    def drain(self) -> list[Instruction]:
        """End the stream with an in-band error, because the daemon is stopping."""
        why = Draining("the daemon is draining", hint="reconnect", stage="serve")
        return [] if self.stream is None else self.stream.fail(why)

    def stream_ended(self) -> None:
        """Drop the stream after ``gone``, once all its productions have ended."""
        assert self.stream is not None, "no stream to end"
        assert not self.stream.taken_count, "the stream's productions have not ended"
        self.stream = None

    def close(self) -> list[Instruction]:
        """End the session and reclaim all leases; its stream has ended before."""
        assert self.stream is None, "closed with a stream"
        return self._reclaim()

    def _reclaim(self, keep: Iterable[SlotRef] = ()) -> list[Instruction]:
        slots = self.leases.reclaim(keep)
        return [Reclaim(slots)] if slots else []
