"""Between the schedule and the workers' sockets: sends chunks, times them, hands answers to whoever awaits them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from feedd import metrics
from feedd.errors import BadRequest, Draining, FeeddError, Internal, ResourceExhausted
from feedd.workers.calls import Work, error_of
from feedd.workers.load_meter import Meter
from feedd.workers.messages import MESSAGE_BYTES_MAX, Failed, ReportStart, encode
from feedd.workers.schedule import Call, Chunk, Schedule
from feedd.workers.worker_count import Load

if TYPE_CHECKING:
    from feedd.protocols import Recorder
    from feedd.workers.messages import Answer
    from feedd.workers.work import DecodeOptions
    from feedd.workers.worker_process import Child

_log = structlog.get_logger("feedd.workers")

_KILL_WAIT_S: Final = 10.0

_SPREAD_ROWS_LEAST: Final = 8  # fewer are not worth a message
_DEPTH: Final = 4
"""Chunks a worker holds: 45 to 125 ms each for photographs: a busy event loop (p99 of 100 ms) starves nobody."""


class Pending(Call):
    """A call with whoever awaits it.

    Attributes:
        done: set when no worker holds anything of it and nothing waits.
        error: what it failed with; from then on its answers do not matter.
    """

    __slots__ = ("done", "error", "work")

    def __init__(self, work: Work) -> None:
        super().__init__(work.stream, alone=work.long_s > 0)
        self.work = work
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: FeeddError | None = None


class Packet(NamedTuple):
    """A message that has no answer, with the descriptors that go along (they stay the caller's)."""

    payload: bytes
    fds: tuple[int, ...] = ()


class Dispatch:
    """Feeds workers that have joined with the chunks of pending calls, until they leave."""

    def __init__(self, options: DecodeOptions, recorder: Recorder) -> None:
        self._options = options
        self._recorder = recorder
        self._schedule = Schedule(_DEPTH)
        self._children: dict[int, Child] = {}
        self._deadlines: dict[int, asyncio.TimerHandle] = {}
        self._calls: set[Pending] = set()
        self._retiring: set[int] = set()
        self._meter = Meter(time.monotonic())
        self._closing = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes that take work now, by worker number."""
        return tuple(self._children[number].pid for number in sorted(self._children.keys() - self._retiring))

    @property
    def worker_count(self) -> int:
        """How many take work now."""
        return len(self._children) - len(self._retiring)

    def take_load(self, contended: float = 0.0) -> Load:
        """Return what was measured since the last call; how contended the cores are, others measure."""
        elapsed_s, busy_s, queued_s = self._meter.take(time.monotonic())
        return Load(max(elapsed_s, 1e-9), busy_s, queued_s, self.worker_count, contended)

    def spread(self, rows: int, chunk_rows: int) -> int:
        """Return how many rows to send at once, fewer than ``chunk_rows`` where workers had nothing to do else."""
        idle = 0 if self._schedule.queued else self.worker_count - self._schedule.busy_count
        return max(-(-rows // idle), min(_SPREAD_ROWS_LEAST, chunk_rows)) if idle * chunk_rows > rows else chunk_rows

    async def do(self, work: Work, chunk_rows: int) -> None:
        """Have all rows of ``work`` done.

        Raises:
            Draining: the pool is closing.
            Whatever the workers answer.
        """
        if self._closing:
            raise Draining("expected a running decode pool, got one that is closing", stage="decode")
        if not work.rows:
            return
        call = Pending(work)
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

    def tell(self, packet: Packet) -> None:
        """Send a message without an answer to every worker, in order with its chunks."""
        for child in self._children.values():
            try:
                child.send(*packet)
            except ResourceExhausted as error:
                child.kill(error.message)  # who comes after it is told of every arena anew

    def join(self, number: int, child: Child) -> None:
        """Give a worker that said hello work from now on."""
        self._children[number] = child
        self._schedule.join(number)
        self._recorder.move(metrics.DECODE_WORKERS, 1)
        self._pump()

    def retire(self, number: int) -> None:
        """Give a worker no more work, and send it home once it has done what it holds."""
        if number in self._children and number not in self._retiring:
            self._retiring.add(number)
            self._schedule.rest(number)
            self._send_home(number)

    def leave(self, number: int) -> None:
        """Say what becomes of what a worker held that is gone. Called once it cannot write any more."""
        child = self._children.pop(number, None)
        if child is None:
            return
        went_home = number in self._retiring and self._schedule.running(number) is None
        self._retiring.discard(number)
        self._disarm(number)
        self._recorder.move(metrics.DECODE_WORKERS, -1)
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
        """Fail what is under way, send idle workers home, kill busy ones. They are gone within ``close_grace_s``."""
        self._closing = True
        for call in tuple(self._calls):
            self._fail(call, Draining("expected a running decode pool, got one that is closing", stage="decode"))
        for number, child in self._children.items():
            if self._schedule.running(number) is None:
                child.retire()
                self._kill_later(number, self._options.close_grace_s, "closing")
            else:
                child.kill("closing")

    async def _quiesce(self, call: Pending) -> None:
        """Wait until no worker holds anything of ``call``; other cancellations meanwhile change nothing.

        They come from every task group around us that ends at the same time: a worker killed for them would cost
        whoever is left a start, and what it held for others its work.
        """
        deadline_s, killed = time.monotonic() + self._options.cancel_grace_s, False
        while not call.done.done():
            try:
                _, waiting = await asyncio.wait((call.done,), timeout=max(0.0, deadline_s - time.monotonic()))
            except asyncio.CancelledError:
                continue  # the caller re-raises the first one
            if waiting and killed:
                return  # stuck in the kernel with SIGKILL pending: it can write nothing any more
            if waiting:
                for number in self._schedule.holders(call):
                    self._children[number].kill("cancelled")
                deadline_s, killed = time.monotonic() + _KILL_WAIT_S, True

    def _fail(self, call: Pending, error: FeeddError) -> None:
        call.error = call.error or error
        self._schedule.withdraw(call)
        self._settle(call)

    def _settle(self, call: Pending) -> None:
        """End a call that is over. Until then it is known, even if nobody awaits it: its rows must not be replayed."""
        if call.over:
            self._calls.discard(call)
            if not call.done.done():
                call.done.set_result(None)

    def _send_home(self, number: int) -> None:
        """Let a worker that retires leave, if it has nothing more to do."""
        if number in self._retiring and self._schedule.running(number) is None:
            self._children[number].retire()
            self._kill_later(number, self._options.close_grace_s, "retired")

    # ------------------------------------------------------------------ dispatch

    def _pump(self) -> None:
        """Send chunks for as long as there are any and workers with room."""
        while (assigned := self._schedule.assign()) is not None:
            number, chunk = assigned
            packet = self._packet(number, chunk)
            if packet and self._sent(number, chunk, packet) and self._schedule.running(number) is chunk:
                self._arm(number)
        self._meter.note(time.monotonic(), self._schedule.busy_count, queued=self._schedule.queued)

    def _sent(self, number: int, chunk: Chunk, packet: bytes) -> bool:
        """Send a request; where its descriptors cannot go along, its call fails and others go on."""
        call = _pending(chunk.call)
        try:
            if chunk.suspect:
                self._children[number].send(encode(ReportStart(chunk.id)))
            self._children[number].send(packet, call.work.fds)
        except ResourceExhausted as error:
            self._schedule.take_back(number)
            self._fail(call, error)
            return False
        return True

    def _packet(self, number: int, chunk: Chunk) -> bytes:
        """Return the request, or nothing where the chunk had to be taken back."""
        call = _pending(chunk.call)
        try:
            packet = call.work.packet(chunk.rows, chunk.id)
        except Exception as error:  # noqa: BLE001 - whoever called must hear of it, whatever it is
            self._schedule.take_back(number)
            self._fail(call, Internal(f"{type(error).__name__}: {error}", stage="decode"))
            return b""
        if len(packet) <= MESSAGE_BYTES_MAX:
            return packet
        self._schedule.take_back(number)
        if len(chunk.rows) > 1:
            self._schedule.divide(chunk)
        else:
            message = f"expected one row's request within {MESSAGE_BYTES_MAX} bytes, got {len(packet)}"
            self._fail(call, BadRequest(message, hint="ask for fewer fields", stage="decode"))
        return b""

    def _arm(self, number: int) -> None:
        """Start the clock for what worker ``number`` is doing now, if anything."""
        self._disarm(number)
        running = self._schedule.running(number)
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

    def begun(self, number: int, chunk_id: int) -> None:
        """Take note that a worker begins what it was to mind, unless that could not be sent."""
        running = self._schedule.running(number)
        if running is not None and running.id == chunk_id:
            running.begun = True

    def answer(self, number: int, answer: Answer, fds: list[int]) -> None:
        """Take an answer; descriptors stay the caller's.

        Raises:
            Internal: it is not the one due: the worker cannot be trusted any more.
        """
        running = self._schedule.running(number)
        if running is None or running.id != answer.id:
            raise Internal(f"expected the answer to {running}, got {answer.id}", stage="decode")
        chunk = self._schedule.finish(number)
        self._arm(number)
        self._send_home(number)
        call = _pending(chunk.call)
        self._recorder.count(metrics.DECODE_BUSY, answer.busy_s)
        try:
            if isinstance(answer, Failed):
                raise error_of(answer)
            if call.error is None:
                call.work.accept(chunk.rows, answer, fds)
        except FeeddError as error:
            self._fail(call, error)
        self._settle(call)
        self._pump()


def _pending(call: Call) -> Pending:
    assert isinstance(call, Pending)
    return call
