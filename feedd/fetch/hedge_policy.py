"""When a request is slow enough to send it a second time: a pure decision from recent requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from feedd.units import MIB

_WINDOW_COUNT = 256
_SORT_EVERY = 64  # order statistics change slowly, so sorting at each sample would not pay off
_LEAST_GAIN, _LEAST_ROOM = 1 / 8, 1 / 4  # after hedges that lost; the room still holds the largest part
_FIRST_GAIN, _TRUSTED_GAIN = 1 / 4, 1 / 2  # hedges are trials until one has won
_TRIAL_PATIENCE = 3.0


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """Which requests count as slow, and how many bytes may be requested twice.

    A first byte is late after ``late_factor`` times the recent p95, or ``median_factor`` times the median if that is
    less. The median limit is needed because a few outliers among the first samples decide the p95. A first byte is
    never late before ``part_share`` of a part's usual time, or before ``floor_s``: a short part is not worth a second
    request. Bodies are checked half as often, because they arrive in bursts and the receiver may pause too.

    Attributes:
        samples_min: parts needed before any request is judged.
        late_factor: see above.
        median_factor: see above.
        part_share: share of the median part's time.
        floor_s: shortest time that counts as late.
        lag_max_s: a check that ran later than this proves nothing.
        slow_factor: a body this many times slower than the recent median is slow.
        first_look_s: time between checks while there are too few samples.
        share: share of the bytes read that may be requested again.
        saved_bytes: the most bytes for second requests that can be saved up; a quarter of them is there at the start.
        quiet_s: time without hedges after the store asked to slow down, and after a trial that has not won.
    """

    samples_min: int = 8
    late_factor: float = 2.0
    median_factor: float = 4.0
    part_share: float = 0.25
    floor_s: float = 0.05
    lag_max_s: float = 0.02
    slow_factor: float = 4.0
    first_look_s: float = 0.1
    share: float = 0.05
    saved_bytes: int = 64 * MIB
    quiet_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Sight:
    """The progress of one request at one moment.

    Attributes:
        at_s: time since the request was sent.
        filled_bytes: bytes received by then.
        first_byte_s: time from sending the request to the first byte; None: no byte has come.
        lag_s: how much later than planned the check ran.
    """

    at_s: float
    filled_bytes: int = 0
    first_byte_s: float | None = None
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hedge:
    """Request the missing bytes again; they are charged to the account."""


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Check again in ``after_s`` seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Leave:
    """Stop checking this request."""


@dataclass(frozen=True, slots=True)
class _Usual:
    """Recent medians and p95: seconds to the first byte, bytes per second of a body."""

    first_p50_s: float
    first_p95_s: float
    rate_p50: float


class Hedger:
    """Judges the requests to one bucket. Time comes in from outside; nothing is random.

    Hedges are paid from an account that gains a share of the bytes read. So a store that is slow as a whole does not
    get every request twice.

    Where many bodies share a saturated link or processor, some are late and come all the same before their hedges. So
    each hedge that loses halves what the account gains and holds, and each that wins doubles it. An eighth of the gain
    and a quarter of the room stay. A hedger begins with a quarter of both. Below half of the gain hedges are trials:
    requests have three times the time, and the next hedge waits until the trial has won, or for ``quiet_s``.
    """

    def __init__(self, policy: HedgePolicy | None = None) -> None:
        self._policy = policy or HedgePolicy()
        self._first_s: deque[float] = deque(maxlen=_WINDOW_COUNT)
        self._rates: deque[float] = deque(maxlen=_WINDOW_COUNT)
        self._gain = _FIRST_GAIN  # share of the policy's share, by the outcomes of recent hedges
        self._account_bytes = self._room_bytes
        self._quiet_until_s = self._trial_until_s = float("-inf")
        self._usual: _Usual | None = None
        self._unsorted_count = 0

    def __repr__(self) -> str:
        return f"Hedger({len(self._first_s)} samples, {int(self._account_bytes)} bytes to spend)"

    @property
    def account_bytes(self) -> float:
        """Bytes that may be requested a second time now."""
        return self._account_bytes

    def look_after_s(self, size_bytes: int) -> float | None:
        """Return the time from sending a request to its first check, or None for never."""
        if not size_bytes or not self._policy.share:
            return None
        if self._usual is None:
            return self._policy.first_look_s
        return self._late_s(self._usual, size_bytes)

    def judge(self, size_bytes: int, sight: Sight, before: Sight | None, now_s: float) -> Hedge | LookAgain | Leave:
        """Decide about a request for ``size_bytes``; for ``Hedge``, the missing bytes are charged.

        Args:
            size_bytes: size of the whole request.
            sight: progress of the request now.
            before: progress at the previous check.
            now_s: time on the clock that ``throttled`` uses.
        """
        rest_bytes = size_bytes - sight.filled_bytes
        if rest_bytes <= 0:
            return Leave()
        usual = self._usual
        if usual is None:
            return LookAgain(self._policy.first_look_s)
        pause_s = 2 * max(self._policy.floor_s, self._policy.part_share * _part_s(usual, size_bytes))
        step_s = self._patience * pause_s
        wait_s = (
            self._late_s(usual, size_bytes) - sight.at_s
            if sight.first_byte_s is None
            else self._body_wait_s(usual, sight, before, rest_bytes, step_s)
        )
        if sight.lag_s > self._policy.lag_max_s:
            wait_s = step_s  # a check that is late itself cannot tell whether the request is late
        if wait_s > 0:
            return LookAgain(max(wait_s, 1e-3))
        if now_s < max(self._quiet_until_s, self._trial_until_s) or rest_bytes > self._account_bytes:
            return LookAgain(pause_s)
        self._account_bytes -= rest_bytes
        if self._gain < _TRUSTED_GAIN:
            self._trial_until_s = now_s + self._policy.quiet_s
        return Hedge()

    def note(self, size_bytes: int, first_byte_s: float, whole_s: float) -> None:
        """Record a request that was answered in full.

        Args:
            size_bytes: bytes received.
            first_byte_s: time from sending it to its first byte.
            whole_s: time from sending it to its last byte.
        """
        policy = self._policy
        self._account_bytes = min(self._account_bytes + self._gain * policy.share * size_bytes, self._room_bytes)
        self._rates.append(size_bytes / max(whole_s - first_byte_s, 1e-6))
        self._note_first(first_byte_s)

    def note_slow(self, waited_s: float) -> None:
        """Record a request that was given up without a byte after ``waited_s``.

        Without these, slow requests would seem ever rarer, and ever fewer would count as slow.
        """
        self._note_first(waited_s)

    def hedged(self, *, won: bool) -> None:
        """Record whether a hedge was complete before its first request, or after."""
        self._gain = min(2 * self._gain, 1.0) if won else max(self._gain / 2, _LEAST_GAIN)
        self._account_bytes = min(self._account_bytes, self._room_bytes)
        if won:
            self._trial_until_s = float("-inf")

    def throttled(self, now_s: float) -> None:
        """Record that the store asked to slow down."""
        self._quiet_until_s = now_s + self._policy.quiet_s

    @property
    def _patience(self) -> float:
        return 1.0 if self._gain >= _TRUSTED_GAIN else _TRIAL_PATIENCE

    @property
    def _room_bytes(self) -> float:
        return max(self._gain, _LEAST_ROOM) * self._policy.saved_bytes

    def _note_first(self, first_byte_s: float) -> None:
        self._first_s.append(first_byte_s)
        self._unsorted_count += 1
        if len(self._rates) < self._policy.samples_min:
            return
        if self._usual is None or self._unsorted_count >= min(_SORT_EVERY, len(self._first_s) // 4):
            self._unsorted_count = 0
            first_s, rates = sorted(self._first_s), sorted(self._rates)
            p95_s = first_s[int(0.95 * (len(first_s) - 1))]
            self._usual = _Usual(first_s[len(first_s) // 2], p95_s, rates[len(rates) // 2])

    def _late_s(self, usual: _Usual, size_bytes: int) -> float:
        policy = self._policy
        late_s = min(policy.late_factor * usual.first_p95_s, policy.median_factor * usual.first_p50_s)
        return self._patience * max(late_s, policy.part_share * _part_s(usual, size_bytes), policy.floor_s)

    def _body_wait_s(self, usual: _Usual, sight: Sight, before: Sight | None, rest_bytes: int, step_s: float) -> float:
        """Return when to check a body again; 0: the body has stalled or is slow."""
        assert sight.first_byte_s is not None
        if before is None or before.first_byte_s is None:
            before = Sight(sight.first_byte_s)
        for_s = sight.at_s - before.at_s
        if for_s < step_s / 2:  # too short to tell a pause from a stall
            return step_s
        rate = (sight.filled_bytes - before.filled_bytes) / for_s
        if rate * self._patience * self._policy.slow_factor >= usual.rate_p50:
            return step_s
        # near its end a body is not worth a hedge, because a second request takes time too
        return 0.0 if rest_bytes > 2 * rate * (usual.first_p50_s + rest_bytes / usual.rate_p50) else step_s


def _part_s(usual: _Usual, size_bytes: int) -> float:
    return usual.first_p50_s + size_bytes / usual.rate_p50
