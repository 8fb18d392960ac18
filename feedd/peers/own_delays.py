"""How long a peer may be silent: the timeout, or longer while this machine is too busy to tell. Pure."""

from __future__ import annotations

from typing import Final

FACTOR: Final = 8
"""An answer passes about this many threads that must be scheduled, here and at the peer, as measured."""
LIMIT_FACTOR: Final = 40
"""Bounds the silence, as a multiple of the timeout."""
_PERIOD_S: Final = 1.0
"""Delays count in this period and in the next."""


class OwnDelays:
    """The longest silence of a peer, by the recent delays of this daemon's own timers and threads.

    A daemon whose own threads wait for a processor cannot tell a late peer from a dead one. On a quiet machine the
    delays are too short to matter, and the limit is the timeout.

    Args:
        timeout_s: the limit on a quiet machine.

    Attributes:
        timeout_s: as given.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._began_s = 0.0
        self._largest_s = 0.0
        self._before_s = 0.0

    def __repr__(self) -> str:
        return f"OwnDelays({max(self._largest_s, self._before_s):.4f} s late)"

    @property
    def longest_s(self) -> float:
        """Upper bound of all limits."""
        return LIMIT_FACTOR * self.timeout_s

    def noted(self, delay_s: float, now_s: float) -> None:
        """Record how much later than expected a timer fired, or how long another thread took to answer."""
        self._advance(now_s)
        self._largest_s = max(self._largest_s, delay_s)

    def limit_s(self, now_s: float, delay_s: float = 0.0) -> float:
        """Return the longest silence now; ``delay_s``: a delay that has not ended."""
        self._advance(now_s)
        late_s = max(self._largest_s, self._before_s, delay_s)
        return min(max(self.timeout_s, FACTOR * late_s), self.longest_s)

    def _advance(self, now_s: float) -> None:
        passed_s = now_s - self._began_s
        if passed_s >= _PERIOD_S:
            self._before_s = self._largest_s if passed_s < 2 * _PERIOD_S else 0.0
            self._began_s, self._largest_s = now_s, 0.0
