"""Periodic tasks: they measure how late and how busy the event loops are, and report to the watchdogs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from feedd import metrics
from feedd.daemon.watchdog import FETCHING_LOOP
from feedd.observe.logs import count_dropped

if TYPE_CHECKING:
    from feedd.daemon.notify import Notifier
    from feedd.daemon.watchdog import Watchdog
    from feedd.flow.loop_thread import WorkLoop
    from feedd.protocols import Clock, Recorder

PERIOD_S = 0.5
LATE_S = 1.0  # a longer delay is logged


async def beat(recorder: Recorder, clock: Clock, notifier: Notifier, watchdog: Watchdog) -> None:
    """Run until cancelled. A blocked loop sends no sign of life, which lets the watchdogs notice it."""
    log = structlog.get_logger()
    periods_s = [PERIOD_S, watchdog.tick_s / 2]
    if notifier.watchdog_s is not None:
        periods_s.append(notifier.watchdog_s / 3)
    period_s = min(periods_s)
    meter = _LoopMeter(recorder, "serving")
    while True:
        due_s = clock.monotonic_s() + period_s
        await clock.sleep_s(period_s)
        late_s = max(0.0, clock.monotonic_s() - due_s)
        recorder.gauge(metrics.DAEMON_LOOP_LAG, late_s)
        meter.woke(late_s, time.thread_time())
        if late_s > LATE_S:
            log.warning("the event loop was blocked", late_s=round(late_s, 3))
        count_dropped(recorder)
        watchdog.alive()
        if notifier.watchdog_s is not None:
            notifier.send("WATCHDOG=1")


async def beat_of_fetches(recorder: Recorder, work_loop: WorkLoop, clock: Clock, watchdog: Watchdog) -> None:
    """Report that the loop of fetches answers; run until cancelled."""
    meter = _LoopMeter(recorder, "fetching")

    async def answer() -> tuple[float, float]:
        return clock.monotonic_s(), time.thread_time()

    try:
        while True:
            asked_s = clock.monotonic_s()
            at_s, busy_s = await work_loop.run(answer)
            meter.woke(at_s - asked_s, busy_s)
            watchdog.alive(FETCHING_LOOP)
            await clock.sleep_s(watchdog.tick_s / 2)
    finally:
        watchdog.forget(FETCHING_LOOP)


class _LoopMeter:
    """Records the delays of one event loop, and the processor time of its thread."""

    def __init__(self, recorder: Recorder, loop: str) -> None:
        self._recorder = recorder
        self._loop = loop
        self._busy_s = 0.0

    def woke(self, late_s: float, busy_s: float) -> None:
        """Record one wake-up.

        Args:
            late_s: its delay.
            busy_s: processor time of the loop's thread since its start.
        """
        self._recorder.observe(metrics.DAEMON_LOOP_DELAY, late_s, loop=self._loop)
        self._recorder.count(metrics.DAEMON_LOOP_BUSY, max(0.0, busy_s - self._busy_s), loop=self._loop)
        self._busy_s = busy_s
