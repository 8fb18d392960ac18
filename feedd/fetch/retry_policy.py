"""Whether to retry, and after how long a wait: a pure decision."""

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
