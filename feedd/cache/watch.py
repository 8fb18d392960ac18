"""Watches the cache's disk: finds hanging operations, probes a sick disk, logs each change of state."""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from feedd.cache.health import DiskHealth, DiskState, HealthOptions, Symptom, symptom
from feedd.errors import CacheUnavailable
from feedd.flow.pools import Pool
from feedd.flow.tasks import within
from feedd.metrics import CACHE_DISK_STATE
from feedd.units import format_duration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from feedd.protocols import Clock, Recorder

PROBE_NAME = "probe"
_PATTERN = bytes(range(256)) * 16
_log = structlog.get_logger(__name__)


def try_directory(directory: Path) -> None:
    """Write a page to a file in ``directory``, sync it to the disk, read it back and remove it. Blocking.

    Raises:
        OSError: the disk failed, or the page came back with other bytes.
    """
    directory.mkdir(mode=0o700, exist_ok=True)  # another process may have removed it
    path = directory / PROBE_NAME
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(fd, _PATTERN, 0)
        os.fsync(fd)
        if os.pread(fd, len(_PATTERN), 0) != _PATTERN:
            raise OSError(f"{path} does not hold the bytes just written to it")
    finally:
        os.close(fd)
    path.unlink(missing_ok=True)


class Prober:
    """Runs one probe at a time; while a probe hangs, further probes fail at once."""

    def __init__(self, probe: Callable[[], None]) -> None:
        self._probe = probe
        self._thread = Pool("cache-probe", 1)
        self._last: asyncio.Future[None] | None = None

    async def run(self, deadline_s: float) -> bool:
        """Return whether a probe succeeded within the deadline."""
        if self._last is not None and not self._last.done():
            return False
        waiting = self._last = self._thread.begin(self._probe)
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(waiting)
        except (OSError, TimeoutError):
            # Retrieves a late exception, so that asyncio does not log it.
            waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
            return False
        return True

    def close(self) -> None:
        """End the thread; a hanging thread is abandoned."""
        self._thread.close(wait=self._last is None or self._last.done())


@dataclass(eq=False, slots=True)
class _Operation:
    scope: asyncio.Timeout
    due_s: float


class DiskWatch:
    """Tracks the health of a disk. The one background task waits for something to probe.

    A slow operation is not the disk's fault while a probe succeeds, because the store may be slow. Only if the probe
    fails or hangs too, the operation is given up and counted as an error.
    """

    def __init__(self, probe: Callable[[], None], options: HealthOptions, recorder: Recorder, clock: Clock) -> None:
        self._options = options
        self._recorder = recorder
        self._clock = clock
        self._prober = Prober(probe)
        self._health = DiskHealth(options)
        self._reported = DiskState.NORMAL
        self._doubt_count = 0
        self._operations: set[_Operation] = set()
        self._wake = asyncio.Event()
        self._idle = True
        self._task: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start watching the disk."""
        self._task = group.create_task(self._watch())
        self._publish()

    def close(self) -> None:
        """Stop watching the disk; harmless if it is not watched."""
        if self._task is None:
            return
        self._task.cancel()
        self._prober.close()
        for state in DiskState:
            self._recorder.gauge(CACHE_DISK_STATE, 0, state=state.value)

    @property
    def state(self) -> DiskState:
        """The disk's current state."""
        return self._health.state

    def may_read(self) -> bool:
        """Whether entries on the disk may be read."""
        return self._health.may_read()

    def may_fill(self) -> bool:
        """Whether new entries may be written to the disk."""
        return self._health.may_fill(self._clock.monotonic_s())

    @asynccontextmanager
    async def operation(self) -> AsyncIterator[None]:
        """Guard an operation on the disk.

        Raises:
            CacheUnavailable: the operation took too long, and the disk does not answer a probe either.
        """
        async with within(None, self._no_answer) as scope:
            operation = _Operation(scope, asyncio.get_running_loop().time() + self._options.slow_op_s)
            self._operations.add(operation)
            if self._idle:
                self._wake.set()
            try:
                yield
            finally:
                self._operations.discard(operation)

    def _no_answer(self) -> CacheUnavailable:
        return CacheUnavailable(
            f"the disk has not answered for {format_duration(self._options.slow_op_s)}",
            hint="see the kernel's log for a failing disk, or pass another --cache-dir",
            stage="cache",
        )

    def failed(self, error: BaseException) -> None:
        """Record the error that an operation raised."""
        now_s = self._clock.monotonic_s()
        match symptom(error):
            case Symptom.FULL:
                self._health.full(now_s)
            case Symptom.SICK:
                self._health.failed(now_s)
        self._changed(error)

    def missing(self, error: CacheUnavailable, retry_s: float) -> None:
        """Record that the cache could not be opened: the disk is down until ``opened`` is called."""
        self._health.missing()
        self._reported = self._health.state
        _log.warning(
            "cache directory cannot be used: shards are kept in memory (cache.bypass) until it can be opened",
            directory=error.object,
            error=error.message,
            hint=error.hint,
            tried_again_every=format_duration(retry_s),
        )

    def opened(self) -> None:
        """Record that the cache is open at last."""
        self._health.opened()
        self._changed(None)

    def doubted(self) -> None:
        """Probe the disk because an entry was corrupt; a probe that fails as well counts as an error."""
        self._doubt_count += 1
        self._wake.set()

    def filled(self) -> None:
        """Record that a fill succeeded."""
        self._health.filled()
        self._changed(None)

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            delay_s = self._delay_s()
            self._idle = delay_s is None
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                await self._probe()

    def _delay_s(self) -> float | None:
        """Return the seconds until the next probe is due, or None if there is nothing to probe."""
        if self._doubt_count:
            return 0.0
        now_s = asyncio.get_running_loop().time()
        interval_s = self._health.probe_interval_s()
        delays_s = [] if interval_s is None else [interval_s]
        watched = [
            operation.due_s for operation in self._operations if operation.due_s < math.inf
        ]  # the other operations have been given up
        delays_s += [max(0.0, due_s - now_s) for due_s in watched]
        return min(delays_s, default=None)

    async def _probe(self) -> None:
        doubt_count, self._doubt_count = self._doubt_count, 0
        started_s = self._clock.monotonic_s()
        clean = await self._prober.run(self._options.slow_op_s)
        now_s = self._clock.monotonic_s()
        if clean:
            self._health.probed(now_s, now_s - started_s)
        else:
            for _ in range(max(1, doubt_count)):
                self._health.failed(now_s)
        loop_s = asyncio.get_running_loop().time()
        for operation in self._operations:
            if operation.due_s <= loop_s and not operation.scope.expired():
                if clean:
                    operation.due_s = loop_s + self._options.slow_op_s
                else:
                    operation.due_s = math.inf
                    operation.scope.reschedule(loop_s)
        self._changed(None)

    def _changed(self, error: BaseException | None) -> None:
        state = self._health.state
        if state is self._reported:
            return
        log = _log.info if state is DiskState.NORMAL else _log.warning
        log("cache disk", state=state.value, before=self._reported.value, error=str(error) if error else None)
        self._reported = state
        self._publish()
        self._wake.set()

    def _publish(self) -> None:
        for state in DiskState:
            self._recorder.gauge(CACHE_DISK_STATE, float(state is self._reported), state=state.value)
