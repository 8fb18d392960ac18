"""Measures how long workers had work, and how long work waited. Pure: callers pass the time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Meter:
    """Sums up states over their duration.

    Attributes:
        at_s: time of the last note.
    """

    at_s: float
    _busy_count: int = 0
    _queued: bool = False
    _began_s: float = -1.0
    _busy_s: float = 0.0
    _queued_s: float = 0.0

    def __post_init__(self) -> None:
        self._began_s = self.at_s

    def note(self, now_s: float, busy_count: int, *, queued: bool) -> None:
        """Record the state from ``now_s`` on: the number of busy workers, and whether work waits in queues."""
        elapsed_s = now_s - self.at_s
        self._busy_s += elapsed_s * self._busy_count
        if self._queued:
            self._queued_s += elapsed_s
        self.at_s, self._busy_count, self._queued = now_s, busy_count, queued

    def take(self, now_s: float) -> tuple[float, float, float]:
        """Return seconds since the last call, busy worker-seconds and queued seconds in them; start again at zero."""
        self.note(now_s, self._busy_count, queued=self._queued)
        taken = now_s - self._began_s, self._busy_s, self._queued_s
        self._began_s, self._busy_s, self._queued_s = now_s, 0.0, 0.0
        return taken
