"""Whether the cache's disk can be used. Pure: told of errors, answers and the time, it knows nothing else.

::

    normal --- errors_max errors within error_window_s ---> unstable --- down_after_s ---> down
      ^ |                                                      |                            |
      | +--- no space ---> full --- a pause, then a fill ---+  |                            |
      +-----------------------------------------------------+--+--- clean_ops clean probes -+

Normal: all is used. Full: what is there is read, nothing is written until the pause is over. Unstable: what is there
is read, nothing is written. Down: nothing is touched. An operation that takes longer than ``slow_op_s`` is an error.
"""

from __future__ import annotations

import enum
import errno
from collections import deque
from dataclasses import dataclass

from feedd.cache.os_errors import PlaceFull, is_full

# Ours, not the disk's: nothing is known of the disk from them.
_NOT_THE_DISK = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENAMETOOLONG})


class DiskState(enum.Enum):
    """What can be done with the disk, most first."""

    NORMAL = "normal"
    FULL = "full"
    UNSTABLE = "unstable"
    DOWN = "down"


class Symptom(enum.Enum):
    """What an error says of the disk."""

    SICK = "sick"
    FULL = "full"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """How much is too much.

    Attributes:
        errors_max: so many errors within ``error_window_s`` make the disk unstable.
        slow_op_s: an operation that takes longer is an error.
        clean_ops: so many clean probes in a row make it normal again.
        probe_interval_s: time between probes while it is unstable.
        down_after_s: so long unstable, it is down.
        down_probe_interval_s: time between probes while it is down.
        full_pause_s: time without fills after the disk was full; doubles up to ``full_pause_max_s`` while it stays so.
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
        state: where it is.
    """

    def __init__(self, options: HealthOptions) -> None:
        self.state = DiskState.NORMAL
        self._options = options
        self._errors_s: deque[float] = deque()
        self._since_s = 0.0
        self._clean_count = 0
        self._pause_s = 0.0
        self._full_until_s = 0.0
        self._absent = False

    def absent(self) -> None:
        """Take note that there is no open cache on the disk: whoever opens it says so, probes do not."""
        self.state, self._absent = DiskState.DOWN, True

    def opened(self) -> None:
        """Take note that the cache on the disk is open at last."""
        self.state, self._absent = DiskState.NORMAL, False

    def may_read(self) -> bool:
        """Whether what is on the disk is to be read from there."""
        return self.state is not DiskState.DOWN

    def may_fill(self, now_s: float) -> bool:
        """Whether anything is to be written; after a pause for fullness it is tried again."""
        if self.state is DiskState.FULL:
            return now_s >= self._full_until_s
        return self.state is DiskState.NORMAL

    def probe_interval_s(self) -> float | None:
        """Return the time between probes in this state; None: none are needed."""
        if self._absent:
            return None
        if self.state is DiskState.UNSTABLE:
            return self._options.probe_interval_s
        return self._options.down_probe_interval_s if self.state is DiskState.DOWN else None

    def failed(self, now_s: float) -> None:
        """Take note of an error, or of an operation that took too long."""
        self._clean_count = 0
        self._errors_s.append(now_s)
        while self._errors_s[0] <= now_s - self._options.error_window_s:
            self._errors_s.popleft()
        if self.state in {DiskState.NORMAL, DiskState.FULL} and len(self._errors_s) >= self._options.errors_max:
            self.state = DiskState.UNSTABLE
            self._since_s = now_s
        self._age(now_s)

    def full(self, now_s: float) -> None:
        """Take note that there was no space for a fill."""
        if self.state in {DiskState.NORMAL, DiskState.FULL}:
            options = self._options
            self._pause_s = min(max(2 * self._pause_s, options.full_pause_s), options.full_pause_max_s)
            self._full_until_s = now_s + self._pause_s
            self.state = DiskState.FULL

    def filled(self) -> None:
        """Take note that a fill succeeded: there is space."""
        self._pause_s = 0.0
        if self.state is DiskState.FULL:
            self.state = DiskState.NORMAL

    def probed(self, now_s: float, took_s: float) -> None:
        """Take note of a probe that went well."""
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
    """Tell what an error of the cache says of its disk, by what it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, PlaceFull):
            return Symptom.FULL
        if isinstance(cause, OSError) and cause.errno is not None:
            if is_full(cause):
                return Symptom.FULL
            return Symptom.NONE if cause.errno in _NOT_THE_DISK else Symptom.SICK
        cause = cause.__cause__
    return Symptom.SICK
