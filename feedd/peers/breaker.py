"""Leaves a failing peer alone for a growing time. Pure."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_LEAST_S: Final = 1.0
PAUSE_MOST_S: Final = 60.0
LATE_MAX: Final = 3
"""So many late answers in a row open the breaker: a busy machine may be late once."""
_JITTER: Final = 0.5
"""A pause is shorter by up to this share, so that the members of a cluster do not probe a peer at the same time."""


class Breaker:
    """The circuit breaker of one peer.

    A failure opens it, and so do late answers in a row. While it is open, nothing is read from the peer: when a pause
    is over, a probe decides. Each failed probe doubles the pause. A peer that fails again soon after a good probe gets
    the longer pause too, so that a peer that answers probes only does not cost a timeout every second.

    Args:
        random_share: returns a number from 0 to 1.

    Attributes:
        is_open: whether the peer is left alone. Any thread may read it.
        probe_at_s: when the next probe is due; used while the breaker is open.
    """

    def __init__(self, random_share: Callable[[], float] = random.random) -> None:
        self._random_share = random_share
        self._pause_s = 0.0
        self._closed_at_s = 0.0
        self._late_count = 0
        self.is_open = False
        self.probe_at_s = 0.0

    def __repr__(self) -> str:
        return f"Breaker({'open' if self.is_open else 'closed'}, pause {self._pause_s} s)"

    def answered(self) -> None:
        """Record an answer in time."""
        self._late_count = 0

    def late(self, now_s: float) -> bool:
        """Record an answer that did not come in time; return whether this opened the breaker."""
        self._late_count += 1
        return self._late_count >= LATE_MAX and self.failed(now_s)

    def failed(self, now_s: float) -> bool:
        """Record a failure; return whether it opened the breaker. Requests that began before that change nothing."""
        if self.is_open:
            return False
        if now_s - self._closed_at_s > 2 * self._pause_s:
            self._pause_s = 0.0
        self.is_open = True
        self._wait(now_s)
        return True

    def probe_failed(self, now_s: float) -> None:
        """Record a failed probe."""
        self._wait(now_s)

    def probe_succeeded(self, now_s: float) -> None:
        """Record a good probe: the peer is used again."""
        self.is_open = False
        self._late_count = 0
        self._closed_at_s = now_s

    def _wait(self, now_s: float) -> None:
        self._pause_s = min(max(PAUSE_LEAST_S, 2 * self._pause_s), PAUSE_MOST_S)
        self.probe_at_s = now_s + self._pause_s * (1 - _JITTER * self._random_share())
