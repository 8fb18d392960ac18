"""Finds the useful number of concurrent requests to a store by trial, and lowers it when the store throttles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_START: Final = 16
_GAIN: Final = 1.05  # a rise must bring this factor in throughput, or it is not worth its memory
_BACK_OFF: Final = 0.7
_HOLD_PERIODS: Final = 8
_HOLD_PERIODS_MAX: Final = 64  # after vain rises in a row, each of which doubles the pause before the next one
# Rare refusals are no sign of overload: a store that refuses one request in twenty serves nineteen.
_REFUSED_MAX: Final = 0.2
_KEPT: Final = 31 / 32  # share of the remembered counts that each answer keeps


class ConcurrencyLimit:
    """The number of parts of one bucket in flight, set by the results of its parts. Has no clock.

    Throughput of a period is computed from the parts that ended while all places were taken: places times bytes per
    second of each. If a period brings ``_GAIN`` more than the period before the last rise, another rise follows.
    Otherwise the rise is taken back, and some periods pass before the next one: 8, then 16, 32 and 64 while rises stay
    vain.

    A throttling answer lowers the limit at once. This happens only once for all requests that were in flight together,
    and only if a good share of the last requests was refused. When refusals are rare again, the limit climbs back by a
    quarter per round of parts, up to its former value.

    Args:
        limit_max: upper bound.
        limit_min: lower bound, unless ``limit_max`` is smaller.
        pinned: stay at ``limit_max``, unless the store throttles.
        on_change: called with the limit before and now, and the reason; not for trials.
    """

    def __init__(
        self,
        limit_max: int,
        limit_min: int = 2,
        *,
        pinned: bool = False,
        on_change: Callable[[int, int, str], object] | None = None,
    ) -> None:
        if limit_max < 1:
            raise ValueError(f"expected room for 1 or more parts, got {limit_max}")
        self._limit_max = limit_max
        self._limit_min = min(limit_min, limit_max)
        self._limit = limit_max if pinned else min(_START, limit_max)
        self._on_change = on_change
        self._hold_periods = _HOLD_PERIODS  # after the next vain rise
        self._hold_left = 1  # periods
        self._before: tuple[int, float] | None = None  # limit and throughput before the rise that is being tried
        self._deaf_count = 0  # requests in flight at the last slow-down that have not ended yet
        self._limit_before = 0  # the limit at which too many were refused; 0: none, or that limit is reached again
        self._answered = self._refused = 0.0  # decaying counts of recent answers and refusals
        self._begin_period()

    def __repr__(self) -> str:
        return f"ConcurrencyLimit({self._limit} of {self._limit_max})"

    @property
    def limit(self) -> int:
        """Parts that may be in flight."""
        return self._limit

    def ended(self, size_bytes: int, elapsed_s: float, in_flight_count: int) -> None:
        """Record a part that arrived whole.

        Args:
            size_bytes: size of the part.
            elapsed_s: time from its request to its end.
            in_flight_count: parts of the bucket in flight when it ended, this part included.
        """
        self._deaf_count = max(0, self._deaf_count - 1)
        self._answered, self._refused = self._answered * _KEPT + 1, self._refused * _KEPT
        if in_flight_count < self._limit:
            return  # too few parts in flight to say anything about a higher limit
        if self._settling_count:
            self._settling_count -= 1  # the part began under another limit
            return
        if self._limit < self._limit_before:
            if self._refused < _REFUSED_MAX / 2 * self._answered:
                before = self._limit
                self._set(min(self._limit_before, self._risen))
                self._tell(before, "the store refuses few requests again")
            return
        self._limit_before = 0
        self._bytes += size_bytes
        self._busy_s += elapsed_s
        self._ended_count += 1
        if self._ended_count >= 2 * self._limit and self._busy_s > 0:
            self._judge(self._limit * self._bytes / self._busy_s)

    def throttled(self) -> None:
        """Record that the store asked to slow down."""
        self._answered, self._refused = self._answered * _KEPT + 1, self._refused * _KEPT + 1
        if self._deaf_count:
            self._deaf_count -= 1
            return
        # parts in flight count as served, because refusals come at once and parts later
        if self._refused < _REFUSED_MAX * max(self._answered, self._limit):
            return
        self._deaf_count = self._limit - 1
        self._before = None
        self._limit_before = max(self._limit, self._limit_before)
        self._hold_left = self._hold_periods = _HOLD_PERIODS
        before = self._limit
        self._set(max(self._limit_min, int(before * _BACK_OFF)))
        self._tell(before, f"the store refuses {self._refused / self._answered:.0%} of the requests")

    @property
    def _risen(self) -> int:
        return self._limit + max(1, self._limit // 4)

    def _judge(self, rate: float) -> None:
        if self._before is not None:
            limit, rate_before = self._before
            self._before = None
            if rate < rate_before * _GAIN:
                self._hold_left = self._hold_periods
                self._hold_periods = min(2 * self._hold_periods, _HOLD_PERIODS_MAX)
                self._set(limit)
                return
            self._hold_left, self._hold_periods = 0, _HOLD_PERIODS
            self._tell(limit, f"{rate / rate_before - 1:.0%} more throughput")
        self._hold_left = max(0, self._hold_left - 1)
        if not self._hold_left and self._limit < self._limit_max:
            self._before = (self._limit, rate)
            self._set(min(self._limit_max, self._risen))
        else:
            self._begin_period()

    def _tell(self, before: int, reason: str) -> None:
        if self._on_change is not None and before != self._limit:
            self._on_change(before, self._limit, reason)

    def _set(self, limit: int) -> None:
        self._limit = limit
        self._begin_period()
        self._settling_count = limit

    def _begin_period(self) -> None:
        self._bytes = 0
        self._busy_s = 0.0
        self._ended_count = 0
        self._settling_count = 0
