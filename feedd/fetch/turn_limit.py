"""How many small requests may be in flight, so that one turn of the event loop stays short."""

from __future__ import annotations

from typing import Final

_LOOKS: Final = 8  # measurements per period; a single late one (garbage collection) decides nothing
_LONG_S: Final = 0.003
_SHORT_S: Final = 0.0015
# Two such measurements end a period, because a whole period of long turns would take most of a second.
_TOO_LONG_S: Final = 0.012
_RISE: Final = 8  # the limit rises by an eighth per period
_FALL_MIN: Final = 0.5


class TurnLimit:
    """The number of small requests in flight, set by how late the loop's own work makes its timers. Has no clock.

    A loop that is never idle handles in one turn all answers that arrived during the turn before. More requests in
    flight then only make turns longer, and everything else on the loop waits for the end of a turn.

    Args:
        limit_max: upper bound.
        least: lower bound, unless ``limit_max`` is smaller.
        first: initial limit, doubled until a turn was long; 0: start at ``limit_max``.
    """

    def __init__(self, limit_max: int, least: int = 16, first: int = 0) -> None:
        if limit_max < 1:
            raise ValueError(f"expected room for 1 or more requests, got {limit_max}")
        self._limit_max = limit_max
        self._least = min(least, limit_max)
        self._limit = min(first or limit_max, limit_max)
        self._doubles = bool(first)
        self._lates_s: list[float] = []
        self._full = False

    def __repr__(self) -> str:
        return f"TurnLimit({self._limit} of {self._limit_max})"

    @property
    def limit(self) -> int:
        """Small requests that may be in flight."""
        return self._limit

    def woke(self, late_s: float, in_flight_count: int) -> None:
        """Record a timer that ran.

        Args:
            late_s: delay caused by the loop's own work.
            in_flight_count: small requests in flight at that time.
        """
        self._lates_s.append(late_s)
        self._full |= in_flight_count >= self._limit
        turn_s = sorted(self._lates_s)[-2] if len(self._lates_s) > 1 else 0.0
        if len(self._lates_s) < _LOOKS and turn_s <= _TOO_LONG_S:
            return
        if turn_s > _LONG_S:
            # Fall from the number in flight, which made the turn long, and not from a limit far above that number.
            made_by = min(self._limit, max(in_flight_count, self._least))
            self._limit = max(self._least, int(made_by * max(_FALL_MIN, _LONG_S / turn_s)))
            self._doubles = False
        elif turn_s < _SHORT_S and self._full:
            rise = self._limit if self._doubles else max(1, self._limit // _RISE)
            self._limit = min(self._limit_max, self._limit + rise)
        self._lates_s.clear()
        self._full = False
