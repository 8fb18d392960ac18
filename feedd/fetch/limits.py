"""Limits that follow recent requests: how many are useful, how large parts are, how many keep turns short."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from feedd.units import MIB

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
_START_BYTES: Final = 8 * MIB
_FEW_PARTS: Final = 16  # with more parts in flight than this, parts get no smaller than ``_START_BYTES``
_LEAST_BYTES: Final = 1 * MIB  # a block of the cache
_MOST_BYTES: Final = 16 * MIB  # measured: parts twice as large cost no less
_SAMPLES: Final = 32
_SAMPLES_MIN: Final = 8
_PART_S: Final = 0.0006  # event loop time per part, measured
_OVERHEAD: Final = 0.05  # largest share of a part's time spent waiting, and of the loop's time spent on parts
_STEADY: Final = 1.5  # smaller changes are not worth making
_LOOKS: Final = 8  # measurements per period; a single late one (garbage collection) decides nothing
_LONG_S: Final = 0.003
_SHORT_S: Final = 0.0015
# Two such measurements end a period, because a whole period of long turns would take most of a second.
_TOO_LONG_S: Final = 0.012
_RISE: Final = 8  # the limit rises by an eighth per period
_FALL_MIN: Final = 0.5
_LOOK_S: Final = 0.01  # time between two measurements of the loop's turns


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


class PartSize:
    """The size of the next objects' parts, for one bucket. Has no clock.

    A part is large enough that the wait for its first byte is a small share of its time. It is also large enough that
    all parts together need a small share of the event loop. It is no larger, because a part is the unit of retries,
    hedges and bytes in flight. So a far or fast store gets large parts, a slow store small ones. If the budget has no
    room for that many parts of 8 MiB, fewer are in flight. Smaller parts would cost the event loop more than they
    bring.

    Args:
        fixed_bytes: fixed part size; 0: as measured.
        parts_in_flight: concurrent parts of all objects together.
        budget_bytes: bytes of all parts in flight together.
    """

    def __init__(self, fixed_bytes: int, parts_in_flight: int, budget_bytes: int) -> None:
        self._fixed_bytes = fixed_bytes
        self._parts_in_flight = parts_in_flight
        memory_bytes = budget_bytes // parts_in_flight // MIB * MIB
        floor_bytes = min(_START_BYTES, budget_bytes // min(parts_in_flight, _FEW_PARTS) // MIB * MIB)
        self._most_bytes = max(min(_MOST_BYTES, memory_bytes), floor_bytes, min(_LEAST_BYTES, budget_bytes))
        self._aim_bytes = min(_START_BYTES, self._most_bytes)
        self._waits_s: deque[float] = deque(maxlen=_SAMPLES)
        self._rates: deque[float] = deque(maxlen=_SAMPLES)

    def __repr__(self) -> str:
        return f"PartSize({self.aim_bytes} bytes)"

    @property
    def aim_bytes(self) -> int:
        """Part size for large objects."""
        return self._fixed_bytes or self._aim_bytes

    def of(self, size_bytes: int) -> int:
        """Return the part size of one object: close to the aim, and such that all its parts are about equal."""
        if self._fixed_bytes:
            return self._fixed_bytes
        if self._aim_bytes < MIB:  # the budget has no room for more
            return self._aim_bytes
        count = max(1, round(size_bytes / self._aim_bytes))
        return max(-(-size_bytes // count // MIB) * MIB, MIB)

    def note(self, size_bytes: int, first_byte_s: float, whole_s: float) -> None:
        """Record a part that arrived whole.

        Args:
            size_bytes: size of the part.
            first_byte_s: time from its request to its first byte.
            whole_s: time from its request to its end.
        """
        if self._fixed_bytes or size_bytes < _LEAST_BYTES:
            return
        self._waits_s.append(first_byte_s)
        self._rates.append(size_bytes / max(whole_s - first_byte_s, 1e-6))
        if len(self._rates) < _SAMPLES_MIN:
            return
        rate, wait_s = statistics.median(self._rates), statistics.median(self._waits_s)
        waiting_bytes = rate * wait_s * (1 - _OVERHEAD) / _OVERHEAD
        loop_bytes = rate * self._parts_in_flight * _PART_S / _OVERHEAD
        wanted = max(waiting_bytes, loop_bytes, _LEAST_BYTES)
        aim_bytes = min(round(wanted / MIB) * MIB, self._most_bytes)
        if not 1 / _STEADY < aim_bytes / self._aim_bytes < _STEADY or aim_bytes == self._most_bytes:
            self._aim_bytes = aim_bytes


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


class TurnWatch:
    """Reports the length of the loop's turns to a ``TurnLimit`` while requests are in flight.

    It measures CPU time, because waiting for a core that decode workers use is not a long turn. Counting that wait
    lowered the limit and made epochs on two cores 5 to 18 % longer.

    Args:
        limit: gets the measurements.
        in_flight: returns the number of requests in flight; at zero, measuring pauses until the next ``begin``.
        looked: called after each measurement.
    """

    def __init__(self, limit: TurnLimit, in_flight: Callable[[], int], looked: Callable[[], object]) -> None:
        self._limit = limit
        self._in_flight = in_flight
        self._looked = looked
        self._watching = False

    def begin(self) -> None:
        """Start measuring. Idempotent; call it on the loop's thread."""
        if not self._watching:
            self._watching = True
            self._look_later(asyncio.get_running_loop())

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(_LOOK_S, self._look, loop, time.thread_time())

    def _look(self, loop: asyncio.AbstractEventLoop, used_s: float) -> None:
        count = self._in_flight()
        self._limit.woke(max(0.0, time.thread_time() - used_s - _LOOK_S), count)
        if count:
            self._look_later(loop)
            self._looked()
        else:
            self._watching = False


class TurnGate:
    """A context manager that waits for a place; first come, first served.

    Args:
        places_max: upper bound of places.
        first: places at the beginning; doubled while turns are short, until the first long turn.
        least: lower bound of places.
    """

    def __init__(self, places_max: int, first: int = 8, least: int = 2) -> None:
        self._limit = TurnLimit(places_max, least=least, first=first)
        self._watch = TurnWatch(self._limit, lambda: self._count, self._admit)
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"TurnGate({self._count} in, {len(self._waiting)} waiting, {self._limit!r})"

    async def __aenter__(self) -> None:
        if self._waiting or self._count >= self._limit.limit:
            mine = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if not mine.cancelled():  # the place was granted together with the cancellation
                    self._leave()
                raise
        else:
            self._count += 1
        self._watch.begin()

    async def __aexit__(self, *exc: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._count -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._count < self._limit.limit:
            first = self._waiting.popleft()
            if not first.done():  # else it was cancelled and has not run since
                self._count += 1
                first.set_result(None)
