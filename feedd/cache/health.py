"""Whether the cache's disk can be used. Pure: the state depends only on reported errors, answers and times.

::

    normal --- errors_max errors within error_window_s ---> unstable --- down_after_s ---> down
      ^ |                                                      |                            |
      | +--- no space ---> full --- a pause, then a fill ---+  |                            |
      +-----------------------------------------------------+--+--- clean_ops clean probes -+

Normal: the disk is read and written. Full: entries are read, nothing is written until the pause is over. Unstable:
entries are read, nothing is written. Down: the disk is not used. An operation longer than ``slow_op_s`` is an error.
"""

from __future__ import annotations

import enum
import errno
from collections import deque
from dataclasses import dataclass

from feedd.cache.os_errors import StorageFull, is_full

# This process's own errors; they say nothing about the disk.
_NOT_THE_DISK = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENAMETOOLONG})


class DiskState(enum.Enum):
    """What can be done with the disk, from most to least."""

    NORMAL = "normal"
    FULL = "full"
    UNSTABLE = "unstable"
    DOWN = "down"


class Symptom(enum.Enum):
    """What an error says about the disk."""

    SICK = "sick"
    FULL = "full"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """Thresholds of the disk's state.

    Attributes:
        errors_max: this many errors within ``error_window_s`` make the disk unstable.
        slow_op_s: an operation that takes longer is an error.
        clean_ops: this many clean probes in a row make the disk normal again.
        probe_interval_s: time between probes of an unstable disk.
        down_after_s: time after which an unstable disk is down.
        down_probe_interval_s: time between probes of a disk that is down.
        full_pause_s: time without fills after the disk was full; doubles up to ``full_pause_max_s`` while the disk
            stays full.
    """

    errors_max: int = 3
    error_window_s: float = 60.0
    slow_op_s: float = 30.0
    clean_ops: int = 60
    probe_interval_s: float = 0.5
    down_after_s: float = 1800.0
    down_probe_interval_s: float = 10.0
    full_pause_s: float = 10.0
    full_pause_max_s: float = 300.0


class DiskHealth:
    """The state machine. All times are of one monotonic clock.

    Attributes:
        state: the disk's state.
    """

    def __init__(self, options: HealthOptions) -> None:
        self.state = DiskState.NORMAL
        self._options = options
        self._errors_s: deque[float] = deque()
        self._since_s = 0.0
        self._clean_count = 0
        self._pause_s = 0.0
        self._full_until_s = 0.0
        self._missing = False

    def missing(self) -> None:
        """Record that no cache is open on the disk; only ``opened`` ends this, probes do not."""
        self.state, self._missing = DiskState.DOWN, True

    def opened(self) -> None:
        """Record that the cache on the disk is open at last."""
        self.state, self._missing = DiskState.NORMAL, False

    def may_read(self) -> bool:
        """Whether entries on the disk may be read."""
        return self.state is not DiskState.DOWN

    def may_fill(self, now_s: float) -> bool:
        """Whether new entries may be written; a full disk is tried again after a pause."""
        if self.state is DiskState.FULL:
            return now_s >= self._full_until_s
        return self.state is DiskState.NORMAL

    def probe_interval_s(self) -> float | None:
        """Return the time between probes in this state, or None if none are needed."""
        if self._missing:
            return None
        if self.state is DiskState.UNSTABLE:
            return self._options.probe_interval_s
        return self._options.down_probe_interval_s if self.state is DiskState.DOWN else None

    def failed(self, now_s: float) -> None:
        """Record an error, or an operation that took too long."""
        self._clean_count = 0
        self._errors_s.append(now_s)
        while self._errors_s[0] <= now_s - self._options.error_window_s:
            self._errors_s.popleft()
        if self.state in {DiskState.NORMAL, DiskState.FULL} and len(self._errors_s) >= self._options.errors_max:
            self.state = DiskState.UNSTABLE
            self._since_s = now_s
        self._age(now_s)

    def full(self, now_s: float) -> None:
        """Record that there was no space for a fill."""
        if self.state in {DiskState.NORMAL, DiskState.FULL}:
            options = self._options
            self._pause_s = min(max(2 * self._pause_s, options.full_pause_s), options.full_pause_max_s)
            self._full_until_s = now_s + self._pause_s
            self.state = DiskState.FULL

    def filled(self) -> None:
        """Record that a fill succeeded, so there is space."""
        self._pause_s = 0.0
        if self.state is DiskState.FULL:
            self.state = DiskState.NORMAL

    def probed(self, now_s: float, took_s: float) -> None:
        """Record a probe that succeeded."""
        if took_s > self._options.slow_op_s:
            self.failed(now_s)
            return
        if self.state in {DiskState.UNSTABLE, DiskState.DOWN}:
            self._clean_count += 1
            if self._clean_count >= self._options.clean_ops:
                self.state = DiskState.NORMAL
                self._errors_s.clear()
                self._clean_count = 0
                return
        self._age(now_s)

    def _age(self, now_s: float) -> None:
        if self.state is DiskState.UNSTABLE and now_s - self._since_s >= self._options.down_after_s:
            self.state = DiskState.DOWN


def symptom(error: BaseException) -> Symptom:
    """Return what an error of the cache says about its disk, judged by the error's causes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, StorageFull):
            return Symptom.FULL
        if isinstance(cause, OSError) and cause.errno is not None:
            if is_full(cause):
                return Symptom.FULL
            return Symptom.NONE if cause.errno in _NOT_THE_DISK else Symptom.SICK
        cause = cause.__cause__
    return Symptom.SICK
