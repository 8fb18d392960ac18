"""One open session in the server: the backend's session, its state machine, its stream, its lifelines."""

from __future__ import annotations

import asyncio
import math
import secrets
from typing import TYPE_CHECKING, Final, Protocol

from feedd import metrics
from feedd.serve.instructions import Free
from feedd.serve.session_machine import SessionMachine

if TYPE_CHECKING:
    from feedd.open_spec import OpenSpec
    from feedd.protocols import Clock, FeedSession, Recorder
    from feedd.serve.instructions import Instruction, Reclaim
    from feedd.serve.stream import StreamCall
    from feedd.wire import feedd_pb2 as pb

_DEVICE_CHARS_MAX: Final = 32
_LOCAL_RANK_MAX: Final = 63  # higher ranks count as this one: clients must not make series without bound


class Lifeline(Protocol):
    """A client's connection that stays open while the client maps the arena.

    Attributes:
        pid: the process at its other end.
    """

    pid: int

    def say_closed(self) -> None:
        """Tell the client that the session has ended; idempotent. Only the client ends the connection."""


class ServedSession:
    """State of one session between Open and its end.

    Attributes:
        id: 128 random bits in hex; a client that knows it may stream.
        token: 128 random bits; a client that knows it may map the arena.
        spec: the Open request, with its owner.
        feed: the backend's session.
        opened_s: when it was opened, on the clock's monotonic time.
        heard_s: when its client sent the last message.
        sent_bytes: bytes of the batches that its client was given.
        times: what the trainer's loop did with its time, as its client last told.
        times_at_s: when it did.
        notices: notices that were sent to the client.
        machine: the state machine.
        call: the running Stream call.
        lifelines: connections of processes that map the arena.
        had_lifeline: whether there ever was a lifeline.
        closing: no new stream or lifeline is accepted.
        closed: set once the session has ended.
        grace: timer that closes an unused session.
    """

    def __init__(self, feed: FeedSession, spec: OpenSpec, recorder: Recorder, clock: Clock) -> None:
        """Host a session that was just opened.

        Args:
            feed: the backend's session.
            spec: the Open request.
            recorder: receives its measurements.
            clock: measures how long streams wait.
        """
        self.id = secrets.token_hex(16)
        self.token = secrets.token_bytes(16)
        self.spec = spec
        self.feed = feed
        self.notices = feed.info.notices
        self.recorder = recorder
        self.clock = clock
        self.opened_s = self.heard_s = clock.monotonic_s()
        self.sent_bytes = 0
        self.times: pb.TrainerTimes | None = None
        self.times_at_s = self.opened_s
        consumer = spec.session.consumer_count, spec.session.consumer_index
        self.machine = SessionMachine(feed.slots.slot_count, *consumer, feed.info.run_batches)
        self.call: StreamCall | None = None
        self.lifelines: set[Lifeline] = set()
        self.had_lifeline = False
        self.closing = False
        self.closed = asyncio.Event()
        self.grace: asyncio.TimerHandle | None = None
        self._counted_leases = 0
        self._counted_stale = 0

    @property
    def reads_on(self) -> bool:
        """Whether the client may be reading a batch in an arena that other sessions write to."""
        held = self.call is not None or self.machine.leases.leased_count > 0
        return held and bool(self.lifelines) and self.feed.info.shared_slot_count > 0

    def carry_out(self, instructions: list[Instruction]) -> None:
        """Pass the machine's instructions to the stream; without a stream there are only reclaimed slots."""
        if self.call is not None:
            self.call.apply(instructions)
            return
        for instruction in instructions:
            self.free(instruction)  # type: ignore[arg-type]  # without a stream there is no other kind
        self.account()

    @property
    def waits_for(self) -> str:
        """The stage that delays the client's next batch, as a heartbeat names it; empty: none is requested."""
        stream = self.machine.stream
        awaits = "" if stream is None else stream.awaits
        return self.feed.stage if awaits == "batch" else awaits

    def received(self, request: pb.StreamRequest) -> None:
        """Note when the client sent a message, and keep the trainer's times if it has some that can be true."""
        self.heard_s = self.clock.monotonic_s()
        if not request.HasField("times"):
            return
        times = request.times
        numbers = (times.wall_s, times.wait_s, times.pause_s)
        if all(math.isfinite(one) and one >= 0 for one in numbers) and len(times.device) <= _DEVICE_CHARS_MAX:
            self._count_times(times)
            self.times, self.times_at_s = times, self.heard_s

    def _count_times(self, times: pb.TrainerTimes) -> None:
        """Count the loop's time since the last report, or since the pass began; no more than has passed meanwhile."""
        before = self.times
        wall_s, wait_s = times.wall_s, times.wait_s
        if before is not None and before.wall_s <= wall_s and before.wait_s <= wait_s:
            wall_s, wait_s = wall_s - before.wall_s, wait_s - before.wait_s
        wall_s = min(wall_s, self.heard_s - self.times_at_s)
        local_rank = min(self.spec.order.topology.local_rank, _LOCAL_RANK_MAX)
        self.recorder.count(metrics.TRAINER_SECONDS, wall_s, local_rank=str(local_rank))
        self.recorder.count(metrics.TRAINER_WAIT, min(wait_s, wall_s), local_rank=str(local_rank))

    def free(self, instruction: Free | Reclaim) -> None:
        """Release slots; count those taken back from a vanished client."""
        if isinstance(instruction, Free):
            self.feed.release(instruction.slot)
            return
        for slot in instruction.slots:
            self.feed.release(slot)
        self.recorder.count(metrics.SERVE_RECLAIMED, len(instruction.slots))

    def account(self) -> None:
        """Update gauge and counter of the leases."""
        taken = self.machine.taken_count
        if taken != self._counted_leases:
            self.recorder.move(metrics.SERVE_LEASES, taken - self._counted_leases)
            self._counted_leases = taken
        stale = self.machine.leases.stale_count
        if stale != self._counted_stale:
            self.recorder.count(metrics.SERVE_STALE, stale - self._counted_stale)
            self._counted_stale = stale

    def cancel_grace(self) -> None:
        """Cancel the timer, because the session is used again or ends."""
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None
