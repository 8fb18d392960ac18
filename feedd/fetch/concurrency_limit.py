"""How many requests at a time a store is worth: found by trying, given up when it asks to."""

from __future__ import annotations

from typing import Final

_START: Final = 16
_GAIN: Final = 1.05  # more requests must bring so much more, or they are not worth their memory
_BACK_OFF: Final = 0.7
_HOLD_PERIODS: Final = 8
_REFUSED_MAX: Final = 0.2  # being refused rarely is not being too fast: a store that refuses one in twenty serves 19
_KEPT: Final = 31 / 32  # of what is remembered, with each answer


class ConcurrencyLimit:
    """The number of parts of one bucket in flight, led by what its parts tell. Has no clock.

    The rate of a period follows from the parts that ended while all places were taken: places times bytes per second
    of each. A period that brings ``_GAIN`` more than the one before the last rise earns another rise; otherwise the
    rise is taken back and nothing tried for some periods. Being told to slow down takes places away at once, but once
    only for all the requests that were in flight together, and not before it happened to a good part of the last ones.
    When refusals have become rare again the places come back, a quarter with each round of parts, up to where it was.

    Args:
        limit_max: never more.
        limit_min: never fewer, unless ``limit_max`` is.
    """

    def __init__(self, limit_max: int, limit_min: int = 2) -> None:
        if limit_max < 1:
            raise ValueError(f"expected room for 1 or more parts, got {limit_max}")
        self._limit_max = limit_max
        self._limit_min = min(limit_min, limit_max)
        self._limit = min(_START, limit_max)
        self._hold_left = 1  # periods
        self._before: tuple[int, float] | None = None  # limit and rate before the rise that is being tried
        self._deaf_count = 0  # requests that were under way when we last slowed down, and are not heard of yet
        self._limit_before = 0  # it was refused too much; 0: or it is back there
        self._answered = self._refused = 0.0  # the last of them, the older the less they count
        self._begin_period()

    def __repr__(self) -> str:
        return f"ConcurrencyLimit({self._limit} of {self._limit_max})"

    @property
    def limit(self) -> int:
        """Parts that may be in flight."""
        return self._limit

    def ended(self, size_bytes: int, elapsed_s: float, in_flight_count: int) -> None:
        """Take note of a part that came whole.

        Args:
            size_bytes: of the part.
            elapsed_s: from its request to its end.
            in_flight_count: parts of the bucket in flight when it ended, itself included.
        """
        self._deaf_count = max(0, self._deaf_count - 1)
        self._answered, self._refused = self._answered * _KEPT + 1, self._refused * _KEPT
        if in_flight_count < self._limit:
            return  # too little to do: says nothing of more places
        if self._settling_count:
            self._settling_count -= 1  # began under another limit
            return
        if self._limit < self._limit_before:
            if self._refused < _REFUSED_MAX / 2 * self._answered:
                self._set(min(self._limit_before, self._risen))
            return
        self._limit_before = 0
        self._bytes += size_bytes
        self._busy_s += elapsed_s
        self._ended_count += 1
        if self._ended_count >= 2 * self._limit and self._busy_s > 0:
            self._judge(self._limit * self._bytes / self._busy_s)

    def throttled(self) -> None:
        """Take note that the store asked to slow down."""
        self._answered, self._refused = self._answered * _KEPT + 1, self._refused * _KEPT + 1
        if self._deaf_count:
            self._deaf_count -= 1
            return
        # those in flight count as served: refusals come at once, parts later
        if self._refused < _REFUSED_MAX * max(self._answered, self._limit):
            return
        self._deaf_count = self._limit - 1
        self._before = None
        self._limit_before = max(self._limit, self._limit_before)
        self._hold_left = _HOLD_PERIODS
        self._set(max(self._limit_min, int(self._limit * _BACK_OFF)))

    @property
    def _risen(self) -> int:
        return self._limit + max(1, self._limit // 4)

    def _judge(self, rate: float) -> None:
        if self._before is not None:
            limit, rate_before = self._before
            self._before = None
            if rate < rate_before * _GAIN:
                self._hold_left = _HOLD_PERIODS
                self._set(limit)
                return
            self._hold_left = 0
        self._hold_left = max(0, self._hold_left - 1)
        if not self._hold_left and self._limit < self._limit_max:
            self._before = (self._limit, rate)
            self._set(min(self._limit_max, self._risen))
        else:
            self._begin_period()

    def _set(self, limit: int) -> None:
        self._limit = limit
        self._begin_period()
        self._settling_count = limit

    def _begin_period(self) -> None:
        self._bytes = 0
        self._busy_s = 0.0
        self._ended_count = 0
        self._settling_count = 0
