"""Whether to retry, after how long a wait, and how many requests in all: pure decisions.

A store in trouble answers every retry with another error. Clients that each try eight times then send it up to eight
times its load; with a quota they send a tenth more. If every request fails, single probes find out when the store is
back.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedd.errors import BadResponse, FeeddError, Throttled


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The decision table.

    ==================  =====================================================================
    error               decision
    ==================  =====================================================================
    not retryable       give up at once
    ``BadResponse``     up to ``bad_response_attempts_max`` attempts: a store that keeps sending
                        the wrong bytes will not stop
    ``Throttled``       always, until the request's deadline. The wait grows from a separate base
                        and is never shorter than the server said
    other retryable     up to ``attempts_max``
    ==================  =====================================================================

    Attributes:
        attempts_max: attempts in total, the first included.
        bad_response_attempts_max: the same for wrong answers.
        base_s: upper bound of the first wait; doubles with each attempt.
        throttled_base_s: the same after throttling. No larger than a part's time: with a store that refuses one
            request in twenty, longer waits would cost more than the refusals. Doubling, the concurrency limit and
            the quota handle a store that keeps refusing.
        ceiling_s: upper bound of any wait, also of a wait that the server suggests.
    """

    attempts_max: int = 8
    bad_response_attempts_max: int = 3
    base_s: float = 0.2
    throttled_base_s: float = 0.1
    ceiling_s: float = 20.0

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.bad_response_attempts_max < 1:
            raise ValueError("expected at least one attempt")

    def delay_s(self, error: BaseException, attempt: int, chance: float) -> float | None:
        """Return the wait in seconds before attempt ``attempt + 1``, or None to give up.

        Args:
            error: the error of attempt ``attempt`` (counted from 1).
            attempt: attempts made so far that count.
            chance: uniform in [0, 1): full jitter, so that a thousand throttled clients do not return together.
        """
        if not isinstance(error, FeeddError) or not error.retryable:
            return None
        limit = self.attempts_max
        if isinstance(error, BadResponse):
            limit = min(limit, self.bad_response_attempts_max)
        throttled = isinstance(error, Throttled)
        if attempt >= limit and not throttled:
            return None
        base_s = self.throttled_base_s if throttled else self.base_s
        # the exponent is capped to keep the float finite: 2.0**30 s is beyond any ceiling
        delay_s = chance * min(self.ceiling_s, base_s * 2.0 ** min(attempt - 1, 30))
        suggested_s = error.retry_after_s if isinstance(error, Throttled) else None
        if suggested_s is not None:
            delay_s = max(delay_s, min(suggested_s, self.ceiling_s))
        return delay_s


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    """Bounds of a ``RetryQuota``.

    Attributes:
        share: retries earned by each successful request.
        initial: retries at the start.
        balance_max: retries that can be saved up.
        probe_s: time between unpaid retries, doubled after each until a request succeeds.
        probe_max_s: upper bound of that time.
    """

    share: float = 0.1
    initial: float = 16.0
    balance_max: float = 64.0
    probe_s: float = 0.25
    probe_max_s: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.initial < 0 or self.balance_max < self.initial:
            raise ValueError(f"expected a share from 0 to 1 and 0 <= initial <= balance_max, got {self}")
        if not 0 < self.probe_s <= self.probe_max_s:
            raise ValueError(f"expected 0 < probe_s <= probe_max_s, got {self}")


class RetryQuota:
    """How many requests to one bucket may be retried: a share of the successful ones.

    Call ``ask`` before each retry, ``succeeded`` after each successful request.
    """

    def __init__(self, policy: QuotaPolicy | None = None) -> None:
        self._policy = policy or QuotaPolicy()
        self._balance = self._policy.initial
        self._probe_every_s = self._policy.probe_s
        self._probe_at_s = float("-inf")

    def __repr__(self) -> str:
        return f"RetryQuota({self._balance:.1f} left)"

    @property
    def balance(self) -> float:
        """Retries that are paid for."""
        return self._balance

    def succeeded(self) -> None:
        """Earn a share of a retry, and reset the probe interval."""
        self._balance = min(self._policy.balance_max, self._balance + self._policy.share)
        self._probe_every_s = self._policy.probe_s

    def ask(self, now_s: float) -> float:
        """Take one retry. Returns 0.0 if it may be sent now, else the seconds after which to ask again."""
        if self._balance >= 1:
            self._balance -= 1
            return 0.0
        if now_s < self._probe_at_s:
            # The sum above was rounded, possibly upwards.
            return min(self._probe_at_s - now_s, self._policy.probe_max_s)
        self._probe_at_s = now_s + self._probe_every_s
        self._probe_every_s = min(2 * self._probe_every_s, self._policy.probe_max_s)
        return 0.0
