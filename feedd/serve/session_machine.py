"""The session state machine: events in, instructions out. No I/O, no clock, no tasks.

A session outlives its streams. A stream plans steps in order, each only when a credit and a free slot exist; they may
finish in any order and are sent in step order. Where slots hold runs of batches, one production makes several steps in
one slot, for one credit. The machine counts slots, and the driver picks them: the slot of a batch is known once the
batch is produced. A slot is in exactly one state:

    free → promised (to a production) → ready (waits for earlier steps) → sending → leased → free
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import BadRequest, Draining, FeeddError
from feedd.flow.runs import run_lengths
from feedd.serve.instructions import Finish, Free, Produce, Reclaim, Send, SendEnd, SendError
from feedd.values import Cursor, EpochEnd, Produced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from feedd.serve.instructions import Instruction, Outcome
    from feedd.values import SlotRef

CREDITS_MAX = 1 << 20  # far above any slot count; bounds the sum of a client's credits


class Leases:
    """The session's leases. A lease exists only while the client's lifeline does, because otherwise it might never end.

    Attributes:
        attached: whether the client's lifeline is connected.
        stale_count: releases that were refused because the lease was not held.
        taken_count: slots that are not free: promised to a production, holding a batch, or leased.
    """

    def __init__(self, slot_count: int) -> None:
        self._slot_count = slot_count
        self._leased: dict[int, SlotRef] = {}
        self.attached = False
        self.stale_count = 0
        self.taken_count = 0

    @property
    def leased_count(self) -> int:
        """Number of slots that the client holds."""
        return len(self._leased)

    def promise(self) -> bool:
        """Reserve one slot for a production; False: all are taken."""
        if self.taken_count >= self._slot_count:
            return False
        self.taken_count += 1
        return True

    def unused(self) -> None:
        """Count a promised slot as free, because no batch was made in it."""
        self.taken_count -= 1

    def free(self, slot: SlotRef) -> Free:
        """Count a slot that the client does not hold as free."""
        self.taken_count -= 1
        return Free(slot)

    def lease(self, slot: SlotRef) -> bool:
        """Lease a slot to the client; False: there is no lifeline, and nothing happens."""
        if self.attached:
            self._leased[slot.index] = slot
        return self.attached

    def release(self, slot: SlotRef) -> list[Instruction]:
        """End a lease; if it is not held (any more), only count the release as stale."""
        if self._leased.get(slot.index) != slot:
            self.stale_count += 1
            return []
        del self._leased[slot.index]
        return [self.free(slot)]

    def reclaim(self, keep: Iterable[SlotRef] = ()) -> list[Instruction]:
        """End all leases but those in ``keep``."""
        kept = set(keep)
        ended = tuple(slot for slot in self._leased.values() if slot not in kept)
        for slot in ended:
            del self._leased[slot.index]
        self.taken_count -= len(ended)
        return [Reclaim(ended)] if ended else []


@dataclass(slots=True)
class _Step:
    """One step of the stream: it is being made (no outcome yet), or waits for earlier steps."""

    outcome: Outcome = None


class StreamMachine:
    """One stream: turns credits and releases into productions and sends.

    Attributes:
        leasing: the stream sends leases; otherwise it sends inline batches.
        sent_step: the step behind the last batch that was sent; of a new stream, the first step.
    """

    def __init__(self, leases: Leases, start: Cursor, stride: int, lengths: Iterator[int], *, leasing: bool) -> None:
        """Start without credits.

        Args:
            leases: the session's leases.
            start: first step to produce, with an anchor at or before it.
            stride: distance from one step to the next.
            lengths: steps of each slot.
            leasing: the client can be given leases.
        """
        self.leasing = leasing
        self.sent_step = start.step
        self._leases = leases
        self._anchor = start
        self._next_step = start.step
        self._stride = stride
        self._run_lengths = lengths
        self._next_seq = 0
        self._credits = 0
        self._steps: deque[_Step] = deque()
        self._making: dict[int, _Step] = {}  # by step
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
    def credit_count(self) -> int:
        """Credits for which no batch is being made, because no slot is free or the epoch ends."""
        return 0 if self._ended or self._gone else self._credits

    @property
    def ready_sizes(self) -> list[int]:
        """Bytes of each slot whose batches wait for earlier ones."""
        return [step.outcome.size_bytes for step in self._steps if isinstance(step.outcome, Produced)]

    @property
    def ready_count(self) -> int:
        """Number of slots whose batches wait for earlier steps, or are being sent."""
        return len(self._sending) + sum(step.outcome is not None for step in self._steps)

    @property
    def ended(self) -> bool:
        """Whether the stream is gone and all its productions have ended, so that it holds no slot."""
        return self._gone and not self._making

    @property
    def awaits(self) -> str:
        """What the client's next batch needs: "batch" if it is being made, "space", or "" if none is requested."""
        if self._ended or self._gone:
            return ""
        return "batch" if self._steps else "space" if self._credits else ""

    def credits(self, count: int) -> list[Instruction]:
        """Allow the client to hold ``count`` more batches."""
        self._credits = min(self._credits + count, CREDITS_MAX)
        return self._advance()

    def releases(self, slots: Iterable[SlotRef]) -> list[Instruction]:
        """End leases, of this stream or an earlier one."""
        freed = [item for slot in slots for item in self._leases.release(slot)]
        return freed + self._advance()

    def produced(self, at: Cursor, outcome: Outcome) -> list[Instruction]:
        """Handle the result of a ``Produce``; None if it was cancelled."""
        step = self._making.pop(at.step)
        if not isinstance(outcome, Produced):
            self._leases.unused()  # earlier steps may use the slot
        if self._ended or self._gone:
            return [self._leases.free(outcome.slot)] if isinstance(outcome, Produced) else []
        if not isinstance(outcome, Produced):
            self._planned_all = True
        else:
            cursor = outcome.batch.cursor
            self._planned_all |= outcome.failure is not None
            if cursor.anchors is self._anchor.anchors or cursor.window >= self._anchor.window:
                self._anchor = cursor
        step.outcome = outcome or FeeddError("the production of a batch was cancelled", stage="serve")
        return self._advance()

    def sent(self, seq: int, *, held: bool) -> list[Instruction]:
        """Handle a ``Send``: with ``held`` just before a lease is written, otherwise after an inline batch was written.

        A lease counts as held before its write returns, because the client may release it earlier.
        """
        slot = self._sending.pop(seq)
        leased = held and self._leases.lease(slot)
        if leased and not self._half_closed:
            return []  # the usual case: nothing became free
        freed: list[Instruction] = [] if leased else [self._leases.free(slot)]
        return freed + self._advance()

    def half_closed(self) -> list[Instruction]:
        """Handle the client's half-close: serve its remaining credits as far as its slots go, then finish."""
        if self._half_closed:
            return []
        self._half_closed = True
        return [Finish()] if self._ended else self._advance()

    def fail(self, error: FeeddError) -> list[Instruction]:
        """End the stream with an in-band error, or without one if its last message was sent before."""
        if self._ended and not self._gone:
            return self.half_closed()
        return self._end(SendError(error))

    def gone(self) -> list[Instruction]:
        """Forget the stream: free its unsent batches now, and running productions when they end."""
        self._gone = True
        freed = self._drop_steps() + [self._leases.free(slot) for slot in self._sending.values()]
        self._sending.clear()
        return freed

    # ------------------------------------------------------------------ inside

    def _drop_steps(self) -> list[Instruction]:
        """Free finished batches; running productions are freed when they end."""
        made = [step.outcome for step in self._steps]
        self._steps.clear()
        return [self._leases.free(one.slot) for one in made if isinstance(one, Produced)]

    def _end(self, last: SendEnd | SendError) -> list[Instruction]:
        if self._ended or self._gone:
            return []
        freed = self._drop_steps()
        self._ended = True
        return [*freed, last, Finish()] if self._half_closed else [*freed, last]

    def _advance(self) -> list[Instruction]:
        """Send the next finished batches in order, then plan steps as credits and slots allow."""
        out: list[Instruction] = []
        if self._ended or self._gone:
            return out
        steps = self._steps
        while steps and (outcome := steps[0].outcome) is not None:
            if isinstance(outcome, EpochEnd):
                return out + self._end(SendEnd(outcome, self._samples, self._bad_samples))
            if isinstance(outcome, FeeddError):
                return out + self._end(SendError(outcome))
            steps.popleft()
            out.append(self._send(outcome))
            if outcome.failure is not None:
                return out + self._end(SendError(outcome.failure))
        while self._credits and not self._planned_all and (planned := self._plan()) is not None:
            out.append(planned)
        if self._half_closed and not steps and not self._sending:
            self._ended = True
            out.append(Finish())
        return out

    def _send(self, made: Produced) -> Send:
        seq = self._next_seq
        self._next_seq += 1
        self._sending[seq] = made.slot
        self.sent_step = made.batch.cursor.step + (made.batch_count - 1) + self._stride
        self._samples += made.sample_count
        self._bad_samples += made.bad_sample_count
        return Send(seq, made)

    def _plan(self) -> Produce | None:
        """Plan the next step, or return None if no slot is free."""
        if not self._leases.promise():
            return None
        at, count = Cursor(self._anchor.epoch, self._next_step, self._anchor.anchors), next(self._run_lengths)
        self._next_step += self._stride * count
        self._credits -= 1
        self._making[at.step] = step = _Step()
        self._steps.append(step)
        return Produce(at, count)


class SessionMachine:
    """One session: its lifeline, its leases, and the current stream."""

    def __init__(self, slot_count: int, consumer_count: int = 1, consumer_index: int = 0, run_batches: int = 1) -> None:
        """Start without stream and without lifeline.

        Args:
            slot_count: slots of the session. The driver releases a slot only on the machine's instruction.
            consumer_count: DataLoader workers that split the rank's steps.
            consumer_index: the worker that this session feeds; it gets the steps ``s`` with ``s % count == index``.
            run_batches: steps of one slot.
        """
        self._run_batches = run_batches
        self._consumer_count = consumer_count
        self._consumer_index = consumer_index
        self._has_streamed = False
        self.leases = Leases(slot_count)
        self.stream: StreamMachine | None = None
        self._ended_at = Cursor(0)

    @property
    def progress(self) -> Cursor:
        """Where the stream is, or where the last one ended: the step behind the last batch that was sent."""
        stream = self.stream
        return self._ended_at if stream is None else Cursor(stream.epoch, stream.sent_step)

    @property
    def taken_count(self) -> int:
        """Slots in any state but free."""
        return self.leases.taken_count

    def lifeline_came(self) -> None:
        """Handle a new lifeline: the client mapped the arena and can be given leases."""
        self.leases.attached = True

    def lifeline_gone(self) -> list[Instruction]:
        """Handle the end of the lifeline: the client process is gone, and its slots are free."""
        self.leases.attached = False
        out = self.leases.reclaim()
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
        out = [] if held is None else self.leases.reclaim(held)
        step = cursor.step + (self._consumer_index - cursor.step) % self._consumer_count
        first = Cursor(cursor.epoch, step, cursor.anchors)
        leasing = self.leases.attached and not inline_only
        lengths = run_lengths(self._run_batches, later_epoch=self._has_streamed and step == self._consumer_index)
        self._has_streamed = True
        self.stream = StreamMachine(self.leases, first, self._consumer_count, lengths, leasing=leasing)
        return out

    def drain(self) -> list[Instruction]:
        """End the stream with an in-band error, because the daemon is stopping."""
        why = Draining("the daemon is draining", hint="reconnect", stage="serve")
        return [] if self.stream is None else self.stream.fail(why)

    def stream_ended(self) -> None:
        """Drop the stream after ``gone``, once all its productions have ended."""
        assert self.stream is not None, "no stream to end"
        assert self.stream.ended, "the stream's productions have not ended"
        self._ended_at = self.progress
        self.stream = None

    def close(self) -> list[Instruction]:
        """End the session and reclaim all leases; its stream must have ended."""
        assert self.stream is None, "closed with a stream"
        return self.leases.reclaim()
