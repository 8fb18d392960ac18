"""Starts, greets, replaces and ends the worker processes behind the pool."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from feedd import metrics
from feedd.errors import Internal, ResourceExhausted, WorkerLost
from feedd.workers.build import build_digest
from feedd.workers.messages import PROTOCOL, Hello, Started, close_all, reply_decoder
from feedd.workers.process import BackOff, Child, anonymous_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import Recorder
    from feedd.workers.dispatch import Dispatch
    from feedd.workers.messages import Packet
    from feedd.workers.work import DecodeOptions

_log = structlog.get_logger("feedd.workers")

FIRST_WAIT_S: Final = 0.2
"""Seconds to wait after the first worker that could not be started; ``BackOff`` gives the later waits."""


@dataclass(eq=False, slots=True)
class WorkerSlot:
    """The place of a worker; if its worker dies, another is started in the same slot.

    Attributes:
        number: number of its worker.
        joined: done when the slot's first worker takes work; fails with ``WorkerLost`` if none can be started.
        child: its worker, once that takes work.
        start_bytes: the worker's own memory when it joined.
        dismissed: its worker is let go, and no other is started.
        over: set when no worker is to be started in the slot any more.
    """

    number: int
    joined: asyncio.Future[None]
    child: Child | None = None
    start_bytes: int = 0
    dismissed: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)


class WorkerSupervisor:
    """Keeps as many processes working for ``dispatch`` as requested, ``options.workers`` at first.

    If a worker dies and cannot be started again, starting is retried at growing intervals. The missing processes,
    memory or open files may become available again. Until then calls wait, or other workers do the work.

    Args:
        options: the pool's options.
        dispatch: gets workers that join and leave.
        recorder: counts workers that could not be started.
        first_packets: returns the messages that a worker needs before its first chunk.
    """

    def __init__(
        self,
        options: DecodeOptions,
        dispatch: Dispatch,
        recorder: Recorder,
        first_packets: Callable[[], list[Packet]],
    ) -> None:
        self._options = options
        self._recorder = recorder
        self._dispatch = dispatch
        self._first_packets = first_packets
        self._worker_slots: dict[int, WorkerSlot] = {}
        self._numbers: dict[Child, int] = {}
        self._hellos: dict[Child, asyncio.Future[None]] = {}
        self._last_number = -1
        self._group = asyncio.TaskGroup()
        self._closing = False
        self._outdated = False

    async def start(self) -> None:
        """Start all workers and wait for their hellos.

        Raises:
            WorkerLost: a worker did not start; the others are ended again.
        """
        build_digest()  # computed now, before any upgrade on disk
        self._recorder.gauge(metrics.DECODE_OUTDATED, 0)
        await self._group.__aenter__()
        started = [self.start_worker().joined for _ in range(self._options.workers)]
        try:
            await asyncio.wait(started, return_when=asyncio.FIRST_EXCEPTION)
            for future in started:
                if future.done():
                    future.result()
        except BaseException:
            for future in started:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # retrieved, because one report is enough
            await self.stop()
            raise

    async def stop(self) -> None:
        """End and reap all workers; bounded by ``close_grace_s`` and the time of a kill."""
        self._closing = True
        self._dispatch.close()
        for place in self._worker_slots.values():
            place.over.set()
        for child in self._hellos:
            child.kill("closing")
        # The keeper tasks end by themselves; the group cancels them only if this task is cancelled meanwhile.
        await self._group.__aexit__(None, None, None)

    @property
    def worker_slots(self) -> list[WorkerSlot]:
        """Slots whose workers take work or soon will, oldest first."""
        return [place for place in self._worker_slots.values() if not place.dismissed]

    def start_worker(self) -> WorkerSlot:
        """Start one more worker; the caller must check ``joined`` for an error."""
        self._last_number += 1
        place = WorkerSlot(self._last_number, asyncio.get_running_loop().create_future())
        self._worker_slots[place.number] = place
        self._group.create_task(self._keep(place), name=f"decode-worker-{place.number}")
        return place

    def dismiss(self, place: WorkerSlot) -> None:
        """Let a worker leave once it has done the work that it holds; without a hello yet, end it at once."""
        place.dismissed = True
        place.over.set()
        self._dispatch.retire(place.number)
        for child in self._hellos:
            if self._numbers[child] == place.number:
                child.kill("not needed any more")

    async def _keep(self, place: WorkerSlot) -> None:
        """Keep a worker running in ``place`` until the slot is dismissed or the supervisor stops."""
        back_off = BackOff(FIRST_WAIT_S)
        try:
            while not self._closing and not place.dismissed:
                failure = await self._employ(place)
                if not failure or self._closing or place.dismissed:
                    back_off.worked()
                    continue
                self._recorder.count(metrics.DECODE_START_FAILURES)
                message = f"expected decode worker {place.number} to start, got {failure}"
                if not place.joined.done():
                    place.joined.set_exception(WorkerLost(message, stage="decode"))
                    return
                await self._wait(place, message, back_off)
        finally:
            del self._worker_slots[place.number]

    async def _wait(self, place: WorkerSlot, message: str, back_off: BackOff) -> None:
        """Wait until it is time to retry, or the slot is over.

        Raises:
            Internal: the daemon was upgraded while it ran, and no worker is left: only a restarted daemon can continue.
        """
        left = self._dispatch.worker_count
        if self._outdated and not left:
            raise Internal(message, hint="restart the daemon", stage="decode")
        wait_s = back_off.failed()
        if back_off.news:
            _log.warning("decode worker cannot be started", error=message, workers=left, again_in_s=wait_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await place.over.wait()

    async def _employ(self, place: WorkerSlot) -> str:
        """Run one worker to its end; return the reason if it never said hello, else an empty text."""
        try:
            child = Child(self._options, self._on_message)
        except OSError as error:
            return str(error)
        self._numbers[child] = place.number
        try:
            greeted = await self._greet(child) and not place.dismissed and self._greeted(child)
            if greeted:
                place.child, place.start_bytes = child, anonymous_bytes(child.pid)
                self._dispatch.join(place.number, child)
                if not place.joined.done():
                    place.joined.set_result(None)
                await asyncio.wait((child.gone,))
        finally:
            place.child = None
            await child.reap()
            self._dispatch.leave(place.number)
            del self._numbers[child]
        return "" if greeted else child.ending

    async def _greet(self, child: Child) -> bool:
        hello = self._hellos[child] = asyncio.get_running_loop().create_future()
        try:
            start_s = self._options.start_deadline_s
            await asyncio.wait((hello, child.gone), timeout=start_s, return_when=asyncio.FIRST_COMPLETED)
            if not hello.done() and not child.gone.done():
                child.kill(f"no hello within {start_s:g} s")
            return hello.done() and not child.gone.done()
        finally:
            del self._hellos[child]

    def _greeted(self, child: Child) -> bool:
        """Send a worker its first messages; kill it if they cannot be sent."""
        try:
            for packet in self._first_packets():
                child.send(packet.payload, packet.fds)
        except ResourceExhausted as error:
            child.kill(error.message)
            return False
        return True

    def _refuse(self, child: Child, hello: Hello) -> None:
        """Refuse a worker that decodes with other code, because an epoch must not mix samples of two builds."""
        if hello.protocol != PROTOCOL:
            reason = f"protocol {hello.protocol} and not {PROTOCOL}"
        else:
            reason = f"build {hello.build[:8] or 'unknown'} and not {build_digest()[:8]}"
        self._outdated = True
        self._recorder.gauge(metrics.DECODE_OUTDATED, 1)
        _log.error("decode worker is refused: feedd or a library was upgraded while the daemon ran", reason=reason)
        child.kill(f"{reason}: upgraded while the daemon ran")

    def _on_message(self, child: Child, data: bytes, fds: list[int]) -> None:
        try:
            reply = reply_decoder.decode(data)
            if isinstance(reply, Started):
                self._dispatch.started(self._numbers[child], reply.id)
            elif not isinstance(reply, Hello):
                self._dispatch.answer(self._numbers[child], reply, fds)
            elif (reply.protocol, reply.build) != (PROTOCOL, build_digest()):
                self._refuse(child, reply)
            elif child in self._hellos and not self._hellos[child].done():
                self._hellos[child].set_result(None)
        except (Internal, msgspec.DecodeError) as error:
            _log.error("decode worker broke the protocol", pid=child.pid, error=str(error))
            child.kill("broke the protocol")
        finally:
            close_all(fds)
