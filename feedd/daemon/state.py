"""The daemon's state, reported to log, metrics and service manager at each change."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING

import structlog

from feedd import __version__, metrics
from feedd.values import Lifecycle

if TYPE_CHECKING:
    from feedd.daemon.notify import Notifier
    from feedd.protocols import Recorder

_ORDER = tuple(Lifecycle)


class State:
    """The daemon's state; moves forward only.

    Attributes:
        started_s: ``time.monotonic()`` at the start.
    """

    def __init__(self, recorder: Recorder, notifier: Notifier) -> None:
        self._recorder = recorder
        self._notifier = notifier
        self._now = Lifecycle.STARTING
        self.started_s = time.monotonic()
        recorder.gauge(metrics.BUILD_INFO, 1.0, version=__version__, python=platform.python_version())
        self._log_now()

    @property
    def now(self) -> Lifecycle:
        """The present state."""
        return self._now

    def uptime_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    def move(self, to: Lifecycle, **facts: object) -> None:
        """Enter ``to``; ``facts`` are logged."""
        assert _ORDER.index(to) > _ORDER.index(self._now), f"expected a state after {self._now}, got {to}"
        self._now = to
        structlog.get_logger().info(to.value, **facts)
        self._log_now()

    def _log_now(self) -> None:
        for state in Lifecycle:
            self._recorder.gauge(metrics.DAEMON_STATE, float(state is self._now), state=state.value)
        fields = {
            Lifecycle.STANDBY: ("READY=1",),  # the supervisor may end the running daemon now
            Lifecycle.READY: ("READY=1",),
            Lifecycle.DRAINING: ("STOPPING=1",),
            Lifecycle.STOPPED: ("STOPPING=1",),
        }.get(self._now, ())
        self._notifier.send(*fields, f"STATUS={self._now.value}")
