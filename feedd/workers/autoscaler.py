"""Checks the workers once a second: adapts their number to demand, and replaces a worker that has grown too large."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from feedd import metrics
from feedd.units import format_size
from feedd.workers.process import BackOff, anonymous_bytes, run_and_wait_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import Recorder
    from feedd.workers.dispatch import Dispatch
    from feedd.workers.supervisor import WorkerSlot, WorkerSupervisor
    from feedd.workers.work import DecodeOptions


_log = structlog.get_logger("feedd.workers")

PERIOD_S: Final = 1.0
_LOOKED_AT_MAX: Final = 16
"""Workers checked per turn, at about 40 us each, so that the event loop stays free."""


class Autoscaler:
    """Adapts the number of workers, and replaces large ones.

    Args:
        options: the pool's options.
        dispatch: measures the load.
        supervisor: starts and stops workers; started before this object, stopped after it.
        recorder: counts resizes and replaced workers, and shows the wanted number.
    """

    def __init__(
        self, options: DecodeOptions, dispatch: Dispatch, supervisor: WorkerSupervisor, recorder: Recorder
    ) -> None:
        self._growth_bytes = options.recycle_growth_bytes
        self._autotune = Autotune(options.workers, options.workers_max)
        self._dispatch = dispatch
        self._supervisor = supervisor
        self._recorder = recorder
        self._successor: WorkerSlot | None = None  # replaces a worker that has grown too large
        self._back_off = BackOff(2 * PERIOD_S)  # after a successor that did not start
        self._renew_after_s = 0.0
        self._looked_at = 0
        self._spent: dict[int, tuple[float, float]] = {}  # pid -> seconds run, seconds waited for a core
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check the workers once a second from now on."""
        self._dispatch.take_load()
        self._recorder.gauge(metrics.DECODE_WANTED, self._autotune.wanted)
        self._later()

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
        self._recorder.gauge(metrics.DECODE_WANTED, 0)
        self._recorder.gauge(metrics.DECODE_DEMAND, 0)
        self._recorder.gauge(metrics.QUEUE_ITEMS, 0, queue="tasks")

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._adjust)

    def _adjust(self) -> None:
        self._later()
        seen = self._next_slots()
        self.resize(self._dispatch.take_load(self._contended(seen)))
        self.renew(seen)

    def resize(self, load: Load) -> None:
        """Start or dismiss workers until there are as many as ``load`` needs."""
        before = self._autotune.wanted
        wanted = self._autotune.observe(load)
        self._recorder.gauge(metrics.DECODE_DEMAND, load.demand)
        self._recorder.gauge(metrics.DECODE_WANTED, wanted)
        self._recorder.gauge(metrics.QUEUE_ITEMS, load.waiting_count, queue="tasks")
        self._recorder.count(metrics.QUEUE_NONEMPTY, load.queued_s, queue="tasks")
        if wanted != before:
            self._recorder.count(metrics.DECODE_RESIZES, direction="up" if wanted > before else "down")
            _log.info("number of workers changed", before=before, now=wanted, reason=self._autotune.reason)
        worker_slots = [place for place in self._supervisor.worker_slots if place is not self._successor]
        for place in worker_slots[wanted:]:
            self._supervisor.dismiss(place)
        for _ in range(wanted - len(worker_slots)):
            self._supervisor.start_worker().joined.add_done_callback(self._hired)

    def renew(self, seen: list[WorkerSlot]) -> None:
        """Start a successor for the first of ``seen`` that has grown too large; once it has joined, dismiss the old."""
        if not self._growth_bytes or self._successor is not None or time.monotonic() < self._renew_after_s:
            return
        for place in seen:
            if place.child is None or place.dismissed:
                continue
            grown_bytes = anonymous_bytes(place.child.pid) - place.start_bytes
            if grown_bytes > self._growth_bytes:
                _log.info("decode worker is replaced", pid=place.child.pid, grown=format_size(grown_bytes))
                self._successor = self._supervisor.start_worker()
                self._successor.joined.add_done_callback(self._succeed(place))
                return

    def _succeed(self, place: WorkerSlot) -> Callable[[asyncio.Future[None]], None]:
        def joined(future: asyncio.Future[None]) -> None:
            self._successor = None
            if not self._hired(future):
                self._renew_after_s = time.monotonic() + self._back_off.failed()
                return
            self._back_off.worked()
            if not place.dismissed:
                self._recorder.count(metrics.DECODE_RECYCLED)
                self._supervisor.dismiss(place)

        return joined

    def _hired(self, future: asyncio.Future[None]) -> bool:
        """Return whether a worker was started. If not, the daemon continues with the workers it has."""
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._autotune.refused(self._dispatch.worker_count)
            self._recorder.gauge(metrics.DECODE_WANTED, self._autotune.wanted)
            _log.warning("decode worker cannot be started", error=str(error))
        return error is None and not future.cancelled()

    def _next_slots(self) -> list[WorkerSlot]:
        """Return the workers to check in this turn."""
        worker_slots = self._supervisor.worker_slots
        if len(worker_slots) <= _LOOKED_AT_MAX:
            return worker_slots
        at = self._looked_at % len(worker_slots)
        self._looked_at = at + _LOOKED_AT_MAX
        return (worker_slots + worker_slots)[at : at + _LOOKED_AT_MAX]

    def _contended(self, seen: list[WorkerSlot]) -> float:
        """Return the share of time that workers were ready to run but had no core, since their last check."""
        pids = {place.child.pid for place in self._supervisor.worker_slots if place.child is not None}
        self._spent = {pid: spent for pid, spent in self._spent.items() if pid in pids}
        ran_s = waited_s = 0.0
        for place in seen:
            if place.child is None:
                continue
            pid, now = place.child.pid, run_and_wait_s(place.child.pid)
            before = self._spent.get(pid, now)
            ran_s += now[0] - before[0]
            waited_s += now[1] - before[1]
            self._spent[pid] = now
        return waited_s / (ran_s + waited_s) if waited_s > 0 else 0.0


SATURATED: Final = 0.9
"""Share of busy workers that counts as all of them."""
COMFORTABLE: Final = 0.7
"""Maximum share of busy workers after shrinking."""
GROW_AFTER_S: Final = 2.0
"""Seconds of saturation before growing: filling the slots of a new job is no lasting demand."""
SHRINK_AFTER_S: Final = 60.0
"""Seconds whose highest demand fewer workers must be able to meet; an evaluation between epochs is shorter."""
SHRINK_EVERY_S: Final = 10.0
REFUSED_S: Final = 60.0
"""Seconds without growth after a worker could not be started."""
CONTENDED: Final = 0.25
"""Share of time that workers wait for a core above which more workers would only take it from each other."""


@dataclass(frozen=True, slots=True)
class Load:
    """Measurements since the last time.

    Attributes:
        elapsed_s: seconds since then, > 0.
        busy_s: seconds that workers had work, summed over workers.
        queued_s: seconds in which work waited behind other work.
        workers: number of workers that take work now.
        contended: share of time that workers were ready to run but had no core.
        waiting_count: pieces of work that no worker holds now.
    """

    elapsed_s: float
    busy_s: float
    queued_s: float
    workers: int
    contended: float = 0.0
    waiting_count: int = 0

    @property
    def demand(self) -> float:
        """Average number of busy workers."""
        return self.busy_s / self.elapsed_s

    @property
    def saturated(self) -> bool:
        """Whether more workers would have had work."""
        return self.demand >= SATURATED * self.workers and self.queued_s >= self.elapsed_s / 2


class Autotune:
    """Computes the wanted number of workers from a series of ``Load`` values.

    Attributes:
        reason: why the number is what it is since its last change.

    Args:
        least: minimum and first value.
        most: maximum.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = max(least, most)
        self._wanted = least
        self._recent: deque[tuple[float, float]] = deque()  # (elapsed_s, demand) of the last SHRINK_AFTER_S
        self._recent_s = 0.0
        self._saturated_s = 0.0
        self._unchanged_s = 0.0
        self._refused_s = 0.0
        self.reason = ""

    @property
    def wanted(self) -> int:
        """Number of workers wanted now."""
        return self._wanted

    def observe(self, load: Load) -> int:
        """Add a measurement; return the wanted number of workers."""
        self._unchanged_s += load.elapsed_s
        self._refused_s = max(0.0, self._refused_s - load.elapsed_s)
        self._remember(load)
        settled = load.workers >= self._wanted  # all requested workers have joined
        self._saturated_s = self._saturated_s + load.elapsed_s if settled and load.saturated else 0.0
        if self._saturated_s >= GROW_AFTER_S:
            if not self._refused_s and load.contended < CONTENDED:
                reason = f"all were busy for {self._saturated_s:.0f} s, and work waited"
                self._change(min(self._most, self._wanted + max(1, self._wanted // 2)), reason)
        elif self._recent_s >= SHRINK_AFTER_S and self._unchanged_s >= SHRINK_EVERY_S:
            peak = max(demand for _, demand in self._recent)
            enough = math.ceil(peak / COMFORTABLE)
            step = max(1, self._wanted // 8)
            reason = f"at most {peak:.1f} were busy in {self._recent_s:.0f} s"
            self._change(max(self._least, min(self._wanted, max(enough, self._wanted - step))), reason)
        return self._wanted

    def refused(self, workers: int) -> None:
        """Record that a worker could not be started: ``workers`` are running, and growth pauses."""
        self._refused_s = REFUSED_S
        self._change(max(self._least, min(self._wanted, workers)), "a worker could not be started")

    def _remember(self, load: Load) -> None:
        self._recent.append((load.elapsed_s, load.demand))
        self._recent_s += load.elapsed_s
        while self._recent_s - self._recent[0][0] >= SHRINK_AFTER_S:
            self._recent_s -= self._recent.popleft()[0]

    def _change(self, wanted: int, reason: str) -> None:
        if wanted > self._wanted:  # demand measured with too few workers does not tell how many are enough
            self._recent.clear()
            self._recent_s = 0.0
        if wanted != self._wanted:
            self.reason = reason
            self._unchanged_s = self._saturated_s = 0.0
        self._wanted = wanted
