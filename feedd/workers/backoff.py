"""Waiting times before a worker that does not start is started again. Pure: no clock."""

from __future__ import annotations

from typing import Final

LONGEST_S: Final = 30.0
"""Maximum wait between two attempts, because nothing announces that processes or memory are available again."""


class BackOff:
    """Waits that double with each failure, up to ``LONGEST_S``.

    Args:
        first_s: the wait after the first failure, in seconds.

    Attributes:
        news: whether the last wait was longer than the one before, and so is worth a log line.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._last_s = 0.0
        self.news = False

    def failed(self) -> float:
        """Record a failure; return the seconds to wait."""
        wait_s = min(LONGEST_S, 2.0 * self._last_s or self._first_s)
        self.news = wait_s > self._last_s
        self._last_s = wait_s
        return wait_s

    def worked(self) -> None:
        """Record a success: the next failure starts with the first wait again."""
        self._last_s = 0.0
