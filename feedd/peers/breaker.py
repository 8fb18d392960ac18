"""Leaves a failing peer alone for a growing time. Pure."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_LEAST_S: Final = 1.0
PAUSE_MOST_S: Final = 60.0
_CALM_S: Final = 10.0
"""A failure so long after the last one is a new one."""
_JITTER: Final = 0.5
"""A pause is shorter by up to this share, so that the members of a cluster do not probe a peer at the same time."""


class Breaker:
    """The circuit breaker of one peer.

    A failure or a silence opens it. While it is open, nothing is read from the peer: when a pause is over, a probe
    decides. After a first silence the probe is due at once, because a peer may be late only once. Each failed probe
    doubles the pause. A peer that fails again soon after a good probe gets the longer pause too, so that a peer that
    answers probes only does not cost a timeout every second.

    Args:
        random_share: returns a number from 0 to 1.

    Attributes:
        is_open: whether the peer is left alone. Any thread may read it.
        probe_at_s: when the next probe is due; used while the breaker is open.
    """

    def __init__(self, random_share: Callable[[], float] = random.random) -> None:
        self._random_share = random_share
        self._pause_s = 0.0
        self._closed_at_s = -math.inf
        self.is_open = False
        self.probe_at_s = 0.0

    def __repr__(self) -> str:
        return f"Breaker({'open' if self.is_open else 'closed'}, pause {self._pause_s} s)"

    def silent(self, now_s: float) -> bool:
        """Record that no answer came in time; return whether this opened the breaker."""
        return self._opens(now_s, probe_now=True)

    def failed(self, now_s: float) -> bool:
        """Record a failure; return whether it opened the breaker. Requests that began before that change nothing."""
        return self._opens(now_s, probe_now=False)

    def probe_failed(self, now_s: float) -> None:
        """Record a failed probe."""
        self._wait(now_s)

    def probe_succeeded(self, now_s: float) -> None:
        """Record a good probe: the peer is used again."""
        self.is_open = False
        self._closed_at_s = now_s

    def _opens(self, now_s: float, *, probe_now: bool) -> bool:
        if self.is_open:
            return False
        self.is_open = True
        is_new = now_s - self._closed_at_s > max(_CALM_S, 2 * self._pause_s)
        if is_new:
            self._pause_s = 0.0
        if is_new and probe_now:
            self.probe_at_s = now_s
        else:
            self._wait(now_s)
        return True

    def _wait(self, now_s: float) -> None:
        self._pause_s = min(max(PAUSE_LEAST_S, 2 * self._pause_s), PAUSE_MOST_S)
        self.probe_at_s = now_s + self._pause_s * (1 - _JITTER * self._random_share())
