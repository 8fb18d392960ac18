"""The retry decision table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.errors import BadResponse, NotFound, StoreUnavailable, Throttled
from feedd.fetch.retry import RetryPolicy

POLICY = RetryPolicy(attempts_max=5, bad_response_attempts_max=3, base_s=1.0, throttled_base_s=4.0, ceiling_s=10.0)


@pytest.mark.parametrize(
    ("error", "attempt", "chance", "expected"),
    [
        (NotFound("x"), 1, 0.5, None),
        (ValueError("x"), 1, 0.5, None),
        (StoreUnavailable("x"), 1, 0.5, 0.5),
        (StoreUnavailable("x"), 2, 0.5, 1.0),
        (StoreUnavailable("x"), 4, 1.0, 8.0),
        (StoreUnavailable("x"), 5, 0.5, None),
        (BadResponse("x"), 2, 0.5, 1.0),
        (BadResponse("x"), 3, 0.5, None),
        (Throttled("x"), 1, 0.5, 2.0),
        (Throttled("x"), 3, 1.0, 10.0),
        (Throttled("x"), 500, 1.0, 10.0),
        (Throttled("x", retry_after_s=6.0), 1, 0.5, 6.0),
        (Throttled("x", retry_after_s=0.1), 1, 0.5, 2.0),
        (Throttled("x", retry_after_s=3600.0), 1, 0.5, 10.0),
    ],
)
def test_decision_table(error: Exception, attempt: int, chance: float, expected: float | None) -> None:
    """Each row of the table decides as documented."""
    assert POLICY.delay_s(error, attempt, chance) == expected


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_wait_is_bounded(attempt: int, chance: float) -> None:
    """However many attempts were made, a wait is between zero and the ceiling."""
    delay_s = RetryPolicy(attempts_max=20_000).delay_s(StoreUnavailable("x"), attempt, chance)
    assert delay_s is not None
    assert 0 <= delay_s <= 20.0


def test_policy_needs_an_attempt() -> None:
    """A policy without attempts is refused."""
    with pytest.raises(ValueError, match="at least one"):
        RetryPolicy(attempts_max=0)
