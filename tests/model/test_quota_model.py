"""The retry quota against plain arithmetic: bounded by what went well, and never stuck."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedd.fetch.retry import QuotaPolicy, RetryQuota
from tests.budget import budget

POLICY = QuotaPolicy(share=0.1, initial=4, balance_max=8, probe_s=1.0, probe_max_s=8.0)

steps = st.lists(
    st.one_of(
        st.just("good"),
        st.tuples(st.just("ask"), st.floats(0, 20, allow_nan=False)),
    ),
    max_size=200,
)
_ROUNDED_UP = [("ask", s) for s in (0.0, 0.0, 0.0, 0.0, 0.0, 17.05, 19.89573594794622, 19.684215475356943, 0.0)]


@settings(max_examples=budget(300))
@given(steps)
@example(_ROUNDED_UP)
def test_never_more_than_earned_and_probed(story: list[str | tuple[str, float]]) -> None:
    """Retries stay within the initial balance, the share of what went well, and one probe per probing time."""
    quota = RetryQuota(POLICY)
    now_s, good_count, sent_count = 0.0, 0, 0
    for step in story:
        if isinstance(step, str):
            quota.succeeded()
            good_count += 1
            continue
        now_s += step[1]
        wait_s = quota.ask(now_s)
        assert 0 <= wait_s <= POLICY.probe_max_s
        sent_count += wait_s == 0
        probes_max = 1 + math.floor(now_s / POLICY.probe_s)
        assert sent_count <= POLICY.initial + POLICY.share * good_count + probes_max
        assert 0 <= quota.balance <= POLICY.balance_max


@settings(max_examples=budget(100))
@given(st.integers(0, 50), st.integers(1, 30))
def test_whoever_waits_as_told_gets_through(good_count: int, retry_count: int) -> None:
    """Asking again after the time told always leads to a retry: nobody waits for ever."""
    quota, now_s = RetryQuota(POLICY), 0.0
    for _ in range(good_count):
        quota.succeeded()
    for _ in range(retry_count):
        while wait_s := quota.ask(now_s):
            now_s += wait_s
    assert now_s <= retry_count * POLICY.probe_max_s


def test_probes_become_rare_and_recover() -> None:
    """While nothing goes well the time between probes doubles up to its bound; one good answer brings it back."""
    quota = RetryQuota(QuotaPolicy(initial=0, balance_max=8, probe_s=1.0, probe_max_s=4.0))
    waits = []
    now_s = 0.0
    for _ in range(5):
        assert quota.ask(now_s) == 0
        wait_s = quota.ask(now_s)
        waits.append(wait_s)
        now_s += wait_s
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]
    quota.succeeded()
    assert quota.ask(now_s) == 0
    assert quota.ask(now_s) == pytest.approx(1.0)


def test_impossible_policies_are_refused() -> None:
    """A share above one, or a probing time of nothing, is an error at once."""
    for wrong in ({"share": 1.5}, {"initial": 100.0}, {"probe_s": 0.0}):
        with pytest.raises(ValueError, match="expected"):
            QuotaPolicy(**wrong)
