"""Connects the schedule with the workers' sockets: sends chunks, times them, and delivers answers to their calls."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from feedd import metrics
from feedd.errors import BadRequest, Draining, FeeddError, Internal, ResourceExhausted
from feedd.workers.autoscaler import Load
from feedd.workers.calls import Work, error_of
from feedd.workers.messages import DESCRIPTORS_MAX, MESSAGE_BYTES_MAX, Failed, ReportStart, encode
from feedd.workers.schedule import DEPTH, Call, Chunk, Schedule, spread

if TYPE_CHECKING:
    from collections.abc import Hashable

    from feedd.protocols import Recorder
    from feedd.workers.messages import Answer, Packet
    from feedd.workers.process import Child
    from feedd.workers.work import DecodeOptions

_log = structlog.get_logger("feedd.workers")

_KILL_WAIT_S: Final = 10.0


class Pending(Call):
    """A call with the future of its caller.

    Attributes:
        done: set when no worker holds any of its chunks and none waits.
        error: the error of the call; answers after it are ignored.
    """

    __slots__ = ("done", "error", "work")

    def __init__(self, work: Work, owner: Hashable = None) -> None:
        super().__init__(work.stream, alone=work.long_s > 0, owner=owner)
        self.work = work
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: FeeddError | None = None


@dataclass(slots=True)
class Meter:
    """Measures how long workers had work, and how long work waited. Pure: callers pass the time.

    Attributes:
        at_s: time of the last note.
    """

    at_s: float
    _busy_count: int = 0
    _queued: bool = False
    _began_s: float = -1.0
    _busy_s: float = 0.0
    _queued_s: float = 0.0

    def __post_init__(self) -> None:
        self._began_s = self.at_s

    def note(self, now_s: float, busy_count: int, *, queued: bool) -> None:
        """Record the state from ``now_s`` on: the number of busy workers, and whether work waits in queues."""
        elapsed_s = now_s - self.at_s
        self._busy_s += elapsed_s * self._busy_count
        if self._queued:
            self._queued_s += elapsed_s
        self.at_s, self._busy_count, self._queued = now_s, busy_count, queued

    def take(self, now_s: float) -> tuple[float, float, float]:
        """Return seconds since the last call, busy worker-seconds and queued seconds in them; start again at zero."""
        self.note(now_s, self._busy_count, queued=self._queued)
        taken = now_s - self._began_s, self._busy_s, self._queued_s
        self._began_s, self._busy_s, self._queued_s = now_s, 0.0, 0.0
        return taken


class Dispatch:
    """Sends chunks of pending calls to workers that have joined, until they leave.

    Attributes:
        owners: who is charged for the calls of a stream, by stream; calls of other streams are free.
    """

    def __init__(self, options: DecodeOptions, recorder: Recorder) -> None:
        self._options = options
        self._recorder = recorder
        self._schedule = Schedule(DEPTH)
        self._children: dict[int, Child] = {}
        self._deadlines: dict[int, asyncio.TimerHandle] = {}
        self._calls: set[Pending] = set()
        self._retiring: set[int] = set()
        self._meter = Meter(time.monotonic())
        self._began_s: dict[int, float] = {}  # when each worker began its running chunk
        self._closing = False
        self.owners: dict[int, Hashable] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the processes that take work now, by worker number."""
        return tuple(self._children[number].pid for number in sorted(self._children.keys() - self._retiring))

    @property
    def worker_count(self) -> int:
        """Number of workers that take work now."""
        return len(self._children) - len(self._retiring)

    def take_load(self, contended: float = 0.0) -> Load:
        """Return the load since the last call; the caller measures how contended the cores are."""
        spent_s, waiting = self._meter.take(time.monotonic()), self._schedule.unassigned_count
        return Load(max(spent_s[0], 1e-9), spent_s[1], spent_s[2], self.worker_count, contended, waiting)

    def spread(self, rows: int, chunk_rows: int, row_bytes: int = 0) -> int:
        """Return how many rows to send per message; see ``schedule.spread``."""
        return spread(self._schedule, self.worker_count, rows, chunk_rows, row_bytes)

    async def do(self, work: Work, chunk_rows: int) -> None:
        """Have all rows of ``work`` done.

        Raises:
            Draining: the pool is closing.
            FeeddError: any error that a worker answers.
        """
        if self._closing:
            raise Draining("expected a running decode pool, got a closing one", stage="decode")
        if not work.rows:
            return
        call = Pending(work, self.owners.get(work.stream))
        self._calls.add(call)
        self._recorder.move(metrics.DECODE_TASKS, 1)
        try:
            self._schedule.submit(call, work.rows, chunk_rows)
            self._pump()
            await asyncio.wait((call.done,))
        except asyncio.CancelledError:
            self._fail(call, Draining("expected to finish, got cancelled", stage="decode"))
            await self._quiesce(call)
            raise
        finally:
            self._recorder.move(metrics.DECODE_TASKS, -1)
        if call.error is not None:
            raise call.error

    def broadcast(self, packet: Packet) -> None:
        """Send a message without an answer to every worker, in order with its chunks."""
        for child in self._children.values():
            try:
                child.send(packet.payload, packet.fds)
            except ResourceExhausted as error:
                child.kill(error.message)  # its successor gets every arena's message

    def join(self, number: int, child: Child) -> None:
        """Send work from now on to a worker that said hello."""
        self._children[number] = child
        self._schedule.join(number)
        self._recorder.move(metrics.DECODE_WORKERS, 1)
        self._pump()

    def retire(self, number: int) -> None:
        """Send a worker no more work, and let it leave once it has done the work that it holds."""
        if number in self._children and number not in self._retiring:
            self._retiring.add(number)
            self._schedule.rest(number)
            self._send_home(number)

    def leave(self, number: int) -> None:
        """Reschedule or give up the chunks of a worker that is gone. Called when it can no longer write."""
        child = self._children.pop(number, None)
        if child is None:
            return
        went_home = number in self._retiring and self._schedule.running(number) is None
        self._retiring.discard(number)
        self._disarm(number)
        began_s = self._began_s.pop(number, None)
        self._recorder.move(metrics.DECODE_WORKERS, -1)
        if began_s is not None and (running := self._schedule.running(number)) is not None:
            self._schedule.charge(running.call, time.monotonic() - began_s)
        given_up, concerned = self._schedule.leave(number, withdrawn={c for c in self._calls if c.error is not None})
        if not self._closing and not went_home:
            self._recorder.count(metrics.DECODE_RESTARTS)
            _log.warning("decode worker died", pid=child.pid, ending=child.ending, calls=len(concerned))
        for chunk in given_up:
            call = _pending(chunk.call)
            try:
                call.work.give_up(chunk.rows, child.ending)
            except FeeddError as error:
                self._fail(call, error)
        for concern in concerned:
            self._settle(_pending(concern))
        self._pump()

    def close(self) -> None:
        """Fail all calls, let idle workers leave, kill busy ones. They are gone within ``close_grace_s``."""
        self._closing = True
        for call in tuple(self._calls):
            self._fail(call, Draining("expected a running decode pool, got a closing one", stage="decode"))
        for number, child in self._children.items():
            if self._schedule.running(number) is None:
                child.retire()
                self._kill_later(number, self._options.close_grace_s, "closing")
            else:
                child.kill("closing")

    async def _quiesce(self, call: Pending) -> None:
        """Wait until no worker holds a chunk of ``call``; further cancellations change nothing.

        Every surrounding task group that ends at the same time cancels again. If each killed the workers, other calls
        would lose their work and wait for new workers.
        """
        deadline_s, killed = time.monotonic() + self._options.cancel_grace_s, False
        while not call.done.done():
            try:
                _, waiting = await asyncio.wait((call.done,), timeout=max(0.0, deadline_s - time.monotonic()))
            except asyncio.CancelledError:
                continue  # the caller raises the first cancellation again
            if waiting and killed:
                return  # the worker is stuck in the kernel with SIGKILL pending: it can write nothing any more
            if waiting:
                for number in self._schedule.holders(call):
                    self._children[number].kill("cancelled")
                deadline_s, killed = time.monotonic() + _KILL_WAIT_S, True

    def _fail(self, call: Pending, error: FeeddError) -> None:
        call.error = call.error or error
        self._schedule.withdraw(call)
        self._settle(call)

    def _settle(self, call: Pending) -> None:
        """Remove a call that is over. Until then it stays known even without a waiter, so its rows are not replayed."""
        if call.over:
            self._calls.discard(call)
            if not call.done.done():
                call.done.set_result(None)

    def _send_home(self, number: int) -> None:
        """Let a retiring worker leave if it has no more work."""
        if number in self._retiring and self._schedule.running(number) is None:
            self._children[number].retire()
            self._kill_later(number, self._options.close_grace_s, "retired")

    # ------------------------------------------------------------------ dispatch

    def _pump(self) -> None:
        """Send chunks while there are chunks, workers with room, and descriptors."""
        while (assigned := self._schedule.assign()) is not None:
            number, chunk = assigned
            packet = self._packet(number, chunk)
            if packet is None:
                continue
            try:
                self._send(number, chunk, packet)
            except ResourceExhausted as error:
                if self._schedule.busy_count > 1 or self._schedule.running(number) is not chunk:
                    self._schedule.put_back(number, chunk)  # until a worker answers, and thus received descriptors
                    break
                self._schedule.take_back(number)
                self._fail(_pending(chunk.call), error)
                continue
            if self._schedule.running(number) is chunk:
                self._arm(number)
        self._meter.note(time.monotonic(), self._schedule.busy_count, queued=self._schedule.queued)

    def _send(self, number: int, chunk: Chunk, packet: Packet) -> None:
        if chunk.suspect:
            self._children[number].send(encode(ReportStart(chunk.id)))
        self._children[number].send(packet.payload, packet.fds)

    def _packet(self, number: int, chunk: Chunk) -> Packet | None:
        """Return the request, or None if the chunk had to be taken back."""
        call = _pending(chunk.call)
        try:
            packet = call.work.packet(chunk.rows, chunk.id)
        except FeeddError as error:
            self._schedule.take_back(number)
            self._fail(call, error)
            return None
        except Exception as error:  # noqa: BLE001 - the caller must see every error
            self._schedule.take_back(number)
            self._fail(call, Internal(f"{type(error).__name__}: {error}", stage="decode"))
            return None
        if len(packet.payload) <= MESSAGE_BYTES_MAX and len(packet.fds) <= DESCRIPTORS_MAX:
            return packet
        self._schedule.take_back(number)
        if len(chunk.rows) > 1:
            self._schedule.divide(chunk)
        else:
            message = f"expected one row's request within {MESSAGE_BYTES_MAX} bytes, got {len(packet.payload)}"
            self._fail(call, BadRequest(message, hint="request fewer fields", stage="decode"))
        return None

    def _arm(self, number: int) -> None:
        """Start the deadline of the chunk that worker ``number`` is running, if any."""
        self._disarm(number)
        running = self._schedule.running(number)
        self._began_s[number] = time.monotonic()
        if running is not None:
            deadline_s = self._options.task_deadline_s + _pending(running.call).work.long_s
            self._kill_later(number, deadline_s, f"ran past {deadline_s:g} s")

    def _disarm(self, number: int) -> None:
        timer = self._deadlines.pop(number, None)
        if timer is not None:
            timer.cancel()

    def _kill_later(self, number: int, delay_s: float, reason: str) -> None:
        self._disarm(number)
        loop = asyncio.get_running_loop()
        self._deadlines[number] = loop.call_later(delay_s, self._children[number].kill, reason)

    def started(self, number: int, chunk_id: int) -> None:
        """Record that a worker begins a suspect chunk, unless the request could not be sent."""
        running = self._schedule.running(number)
        if running is not None and running.id == chunk_id:
            running.started = True

    def answer(self, number: int, answer: Answer, fds: list[int]) -> None:
        """Process an answer; descriptors stay the caller's.

        Raises:
            Internal: the answer is not one to the running chunk, so the worker can no longer be trusted.
        """
        running = self._schedule.running(number)
        if running is None or running.id != answer.id:
            raise Internal(f"expected the answer to {running}, got {answer.id}", stage="decode")
        chunk = self._schedule.finish(number, answer.busy_s)
        self._arm(number)
        self._send_home(number)
        call = _pending(chunk.call)
        self._recorder.count(metrics.DECODE_BUSY, answer.busy_s)
        try:
            _take(call, chunk, answer, fds)
        except FeeddError as error:
            self._fail(call, error)
            if isinstance(error, Internal) and not isinstance(answer, Failed):
                raise
        finally:
            self._settle(call)
            self._pump()


def _take(call: Pending, chunk: Chunk, answer: Answer, fds: list[int]) -> None:
    """Hand an answer to its call.

    Raises:
        FeeddError: the error that the worker answered, or that the call has with the answer.
        Internal: the answer is of another kind or shape than asked for.
    """
    if isinstance(answer, Failed):
        raise error_of(answer)
    if call.error is not None:
        return
    try:
        call.work.accept(chunk.rows, answer, fds)
    except FeeddError:
        raise
    except Exception as error:
        raise Internal(f"expected an answer to the request, got one that raised {error!r}", stage="decode") from error


def _pending(call: Call) -> Pending:
    assert isinstance(call, Pending)
    return call
