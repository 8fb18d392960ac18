"""How long to wait before a worker that does not start is started again. Pure: no clock."""

from __future__ import annotations

from typing import Final

LONGEST_S: Final = 30.0
"""Between two attempts at most: what was in the way (no more processes, no memory) goes unannounced."""


class BackOff:
    """Waits that double with each failure, up to ``LONGEST_S``.

    Args:
        first_s: the wait after the first failure.

    Attributes:
        news: whether the last wait was longer than the one before it: worth a line in the log.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._last_s = 0.0
        self.news = False

    def failed(self) -> float:
        """Take note of a failure; return how many seconds to wait."""
        wait_s = min(LONGEST_S, 2.0 * self._last_s or self._first_s)
        self.news = wait_s > self._last_s
        self._last_s = wait_s
        return wait_s

    def worked(self) -> None:
        """Take note of a success: the next failure is a first one again."""
        self._last_s = 0.0
