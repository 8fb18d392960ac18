"""Periodic tasks: one measures how late the loop wakes, both report to the watchdogs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from feedd import metrics
from feedd.daemon.watchdog import FETCHING_LOOP

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
    while True:
        due_s = clock.monotonic_s() + period_s
        await clock.sleep_s(period_s)
        late_s = max(0.0, clock.monotonic_s() - due_s)
        recorder.gauge(metrics.DAEMON_LOOP_LAG, late_s)
        if late_s > LATE_S:
            log.warning("the event loop was blocked", late_s=round(late_s, 3))
        watchdog.alive()
        if notifier.watchdog_s is not None:
            notifier.send("WATCHDOG=1")


async def beat_of_fetches(work_loop: WorkLoop, clock: Clock, watchdog: Watchdog) -> None:
    """Report that the loop of fetches answers; run until cancelled."""
    try:
        while True:
            await work_loop.run(_answer)
            watchdog.alive(FETCHING_LOOP)
            await clock.sleep_s(watchdog.tick_s / 2)
    finally:
        watchdog.forget(FETCHING_LOOP)


async def _answer() -> None:
    """Do nothing."""
