"""Drives one Stream call: passes events to the state machine and carries out its instructions.

Three kinds of tasks run: one reads requests, one writes messages, and some produce. ``session_machine`` decides what
follows from each event, and ``StreamCall.apply`` carries that out.

Rules, each with the test that holds it:

- Batches come in the order of steps, within credits: ``test_leases_come_in_order_within_credits``. Steps are made at
  the same time: ``test_a_slow_step_holds_back_faster_ones``.
- A batch needs a free slot, whatever the credits: ``test_slots_bound_what_credits_allow``.
- Nothing is leased without a lifeline: ``test_no_lease_without_lifeline``.
- An error follows the batches before it: ``test_a_failing_step_is_said_in_band_after_earlier_ones``. A defect ends one
  stream only, and names no secret: ``test_a_defect_is_said_as_internal``.
- A stream that ends leaves leases with their client: ``test_a_stream_that_goes_leaves_leases_with_their_holder``.
- No departure leaves a slot or a production behind: ``test_clients_that_come_and_go_at_every_moment``.
- A client that waits gets heartbeats: ``test_a_client_that_waits_hears_what_for``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import grpc
import structlog

from feedd.errors import BadRequest, Draining, FeeddError
from feedd.serve.grpc_status import as_feedd_error
from feedd.serve.idle_stream import IdleStream
from feedd.serve.instructions import Finish, Free, Produce, Reclaim, Send, SendEnd, SendError
from feedd.serve.stream_meter import StreamMeter
from feedd.serve.transport import InlineTransport, SlotTransport
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feed_messages import error_message, notice_messages, slots_from

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.serve.instructions import Instruction, Outcome
    from feedd.serve.served_session import ServedSession
    from feedd.serve.server_options import ServeOptions
    from feedd.serve.session_machine import StreamMachine

    Context = grpc.aio.ServicerContext[pb.StreamRequest, bytes]

_LEASES_PER_MESSAGE = 64
_log = structlog.get_logger(__name__)


class _Over(Exception):
    """The stream has ended."""


class StreamCall:
    """One Stream call from its start message to the return of its handler."""

    def __init__(self, hosted: ServedSession, machine: StreamMachine, context: Context, options: ServeOptions) -> None:
        """Store the dependencies; nothing runs before ``run``.

        Args:
            hosted: the session.
            machine: the stream's state machine, already started.
            context: the gRPC call.
            options: lingering time and chunk size.
        """
        self._entry = hosted
        self._machine = machine
        self._context = context
        self._linger_s = options.linger_s
        self._slot_transport = SlotTransport(context.write)
        view, info = hosted.feed.slots.view, hosted.feed.info
        self._inline_transport = InlineTransport(context.write, view, options.chunk_size_bytes, info.batch_bytes)
        self._meter = StreamMeter(hosted.recorder, hosted.clock)
        self._jobs: deque[Produce] = deque()  # that no task has begun, in the order of their steps
        self._outbox: deque[Send | SendEnd | SendError | Finish] = deque()
        self._wake = asyncio.Event()
        self._idle = IdleStream(self._wake.set)
        self._over = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._help_requested = self._stopped = self._steps_said = False
        self._lingering: asyncio.TimerHandle | None = None
        self.ended = asyncio.Event()

    def stop(self) -> None:
        """End the stream now, even with unsent batches; ``ended`` is set once all productions have ended."""
        self._over.set()

    def apply(self, instructions: Iterable[Instruction]) -> None:
        """Carry out instructions, or pass them to the tasks that do."""
        for instruction in instructions:
            if isinstance(instruction, Produce):
                self._jobs.append(instruction)
            elif isinstance(instruction, Free | Reclaim):
                self._entry.free(instruction)
            else:
                self._outbox.append(instruction)
        if self._outbox:
            self._wake.set()
        self._ask_help()
        self._meter.mark(idle=not self._outbox, making=self._machine.making_count > 0)
        self._entry.account()

    async def run(self, first: pb.StreamRequest) -> None:
        """Serve until the end of the epoch, an error, or the client's departure."""
        try:
            async with self._group:
                try:
                    self._group.create_task(self._write())
                    self._take(first)
                    self._idle.start(first.start.heartbeat_ms)
                    self._group.create_task(self._read())
                    await self._over.wait()
                    raise _Over
                finally:
                    self._leave()
        except* _Over:
            pass
        finally:
            self._idle.stop()
            if self._lingering is not None:
                self._lingering.cancel()
            self._entry.machine.stream_ended()
            self._meter.mark(idle=True, making=False)
            self._meter.flush()
            self._entry.account()
            self.ended.set()

    def _leave(self) -> None:
        """Tell the machine before the tasks are cancelled, so that nothing new is planned meanwhile."""
        self._stopped = True
        self.apply(self._machine.gone())
        while self._jobs:
            self.apply(self._machine.produced(self._jobs.popleft().at, None))

    # ------------------------------------------------------------------ events in

    async def _read(self) -> None:
        try:
            await self._read_all()
        except grpc.aio.BaseError:
            self.stop()  # the client is gone

    async def _read_all(self) -> None:
        while True:
            request = await self._context.read()
            if request is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
                if not self._stopped:
                    self.apply(self._machine.half_closed())
                return
            if request.HasField("start"):
                self.apply(self._machine.fail(BadRequest("expected one start per stream, got two", stage="serve")))
            self._take(request)

    def _take(self, request: pb.StreamRequest) -> None:
        if self._stopped:
            return
        self._entry.received(request)
        out: list[Instruction] = []
        if request.releases:
            out += self._machine.releases(slots_from(request.releases))
        if request.credits:
            out += self._machine.credits(request.credits)
        self.apply(out)

    # ------------------------------------------------------------------ productions

    def _ask_help(self) -> None:
        """Schedule a task for jobs that no running task takes; an immediate ``produce`` needs no extra task."""
        if self._jobs and not self._help_requested and not self._stopped:
            self._help_requested = True
            asyncio.get_running_loop().call_soon(self._help)

    def _help(self) -> None:
        self._help_requested = False
        if not self._jobs or self._stopped:
            return
        producing = self._produce_all()
        try:
            self._group.create_task(producing)
        except RuntimeError:
            producing.close()  # another task failed and the group is ending; _leave frees the jobs

    async def _produce_all(self) -> None:
        """Produce the batches of jobs until none is left."""
        while self._jobs:
            job = self._jobs.popleft()
            self._ask_help()
            outcome: Outcome = None
            try:
                outcome = await self._produce(job)
            finally:
                self.apply(self._machine.produced(job.at, outcome))
            await asyncio.sleep(0)  # send the batches before the next plan, which takes milliseconds

    async def _produce(self, job: Produce) -> Outcome:
        """Return the outcome of a job. A defect must not end other sessions, so it is logged."""
        try:
            return await self._entry.feed.produce(job.at, job.count)
        except FeeddError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a defect must not end other sessions
            return as_feedd_error(error, f"producing {job.count} steps from {job.at.step} of {job.at.epoch}")

    # ------------------------------------------------------------------ messages out

    async def _write(self) -> None:
        try:
            await self._write_all()
        except grpc.aio.BaseError:
            self.stop()  # the client is gone; slots it may have received stay leased

    async def _write_all(self) -> None:
        while True:
            await self._say_steps()
            await self._say_notices()
            while not self._outbox:
                self._wake.clear()
                await self._wake.wait()
                if self._idle.due:
                    await self._say_alive()
            item = self._outbox.popleft()
            if isinstance(item, Send):
                await self._send(item)
            elif isinstance(item, Finish):
                self.stop()
                return
            else:
                await self._write_message(_last_message(item, self._entry.id[:8]))
                if isinstance(item, SendError):  # an epoch's end leaves batches to take, until the client's half-close
                    self._lingering = asyncio.get_running_loop().call_later(self._linger_s, self.stop)

    async def _say_steps(self) -> None:
        """Send the number of steps once, as soon as it is known."""
        if self._steps_said or (steps := self._entry.feed.steps(self._machine.epoch)) is None:
            return
        self._steps_said = True
        await self._write_message(pb.StreamResponse(known_steps=steps))

    async def _say_notices(self) -> None:
        """Send the notices again if shards read meanwhile add to them."""
        notices = self._entry.feed.info.notices
        if notices != self._entry.notices:
            self._entry.notices = notices
            await self._write_message(pb.StreamResponse(notices=notice_messages(notices)))

    async def _say_alive(self) -> None:
        """Tell a waiting client what its batch waits for."""
        self._idle.due = False
        self.apply(())  # its wait counts while it lasts, however long
        if stage := self._entry.waits_for:
            await self._write_message(pb.StreamResponse(heartbeat=pb.Heartbeat(waiting_for=stage)))

    async def _write_message(self, message: pb.StreamResponse) -> None:
        await self._context.write(message.SerializeToString())
        self._idle.broken()

    async def _send(self, first: Send) -> None:
        if not self._machine.leasing or first.produced.batch.oversize is not None:
            held = await self._inline_transport.send_run(first)
            self._sent(self._inline_transport.name, [first], held=held)
            return
        run = [first]
        while self._outbox and len(run) < _LEASES_PER_MESSAGE:
            following = self._outbox[0]
            if not isinstance(following, Send) or following.produced.batch.oversize is not None:
                break
            run.append(following)
            self._outbox.popleft()
        self._sent(self._slot_transport.name, run, held=True)  # first, because the client may release during the write
        await self._slot_transport.send_many(run)

    def _sent(self, transport: str, sends: list[Send], *, held: bool) -> None:
        if self._stopped:
            return
        self._idle.broken()
        size_bytes = sum(send.produced.size_bytes for send in sends)
        self._meter.sent(transport, sum(send.produced.batch_count for send in sends), size_bytes)
        self._entry.sent_bytes += size_bytes
        self.apply([follows for send in sends for follows in self._machine.sent(send.seq, held=held)])


def _last_message(item: SendEnd | SendError, session: str) -> pb.StreamResponse:
    if isinstance(item, SendError):
        error = item.error
        log = _log.info if isinstance(error, Draining) else _log.warning
        about = {"message": error.message, "object": error.object, "hint": error.hint}
        log("an epoch ended with an error", session=session, kind=error.kind, **about)
        return pb.StreamResponse(error=error_message(error))
    end = item.end
    return pb.StreamResponse(
        end=pb.EndOfEpoch(epoch=end.epoch, steps=end.steps, samples=item.samples, bad_samples=item.bad_samples)
    )
