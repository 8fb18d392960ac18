"""When to try again, and how long to wait first: a pure decision."""

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
    ``Throttled``       always: being told to slow down is no failure. The wait grows from a base of its own, is
                        never less than the server said, and only the request's deadline ends it
    other retryable     up to ``attempts_max``
    ==================  =====================================================================

    Attributes:
        attempts_max: attempts in all, the first one included.
        bad_response_attempts_max: the same for answers that are not what was asked for.
        base_s: upper bound of the first wait; doubles with each attempt.
        throttled_base_s: the same after being asked to slow down. No larger than a part takes: a store that refuses
            one request in twenty would lose more by the waits than by the refusals; one that goes on refusing is
            met by the doubling, the pace and the quota.
        ceiling_s: upper bound of any wait, also of one the server suggests.
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
        """Return how long to wait before attempt ``attempt + 1``, or None to give up.

        Args:
            error: what attempt ``attempt`` (counted from 1) ended with.
            attempt: attempts made so far, as far as they count.
            chance: uniform in [0, 1): full jitter, so that a thousand clients told off together
                do not come back together.
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
        # the exponent is capped for the float's sake: 2.0**30 s is beyond any ceiling
        delay_s = chance * min(self.ceiling_s, base_s * 2.0 ** min(attempt - 1, 30))
        suggested_s = error.retry_after_s if isinstance(error, Throttled) else None
        if suggested_s is not None:
            delay_s = max(delay_s, min(suggested_s, self.ceiling_s))
        return delay_s
