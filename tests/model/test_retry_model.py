"""The retry table against a plain list of rules, and a store in trouble against what one bucket may be asked."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd import errors
from feedd.errors import FeeddError, NotFound, StoreUnavailable, Throttled
from feedd.fetch.retry import QuotaPolicy, RetryLimits, RetryPolicy, RetryQuota, RetryStore
from feedd.observe.recorder import NullRecorder
from tests.budget import budget
from tests.fakes.memory_store import MemoryStore
from tests.fakes.timeless import TimelessClock

if TYPE_CHECKING:
    from feedd.values import ObjectRef

KINDS = sorted(
    (kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, FeeddError)),
    key=lambda kind: kind.__name__,
)
GOOD_FOR_ANOTHER_TRY = {"StoreUnavailable", "Throttled", "BadResponse"}


def expected(
    kind: type[FeeddError], policy: RetryPolicy, attempt: int, asked_s: float | None
) -> tuple[float, float] | None:
    """Return the least and the most a wait may be, or None where there is none, from rules in words."""
    name = kind.__name__
    if name not in GOOD_FOR_ANOTHER_TRY and not kind.retryable:
        return None
    if name == "Throttled":
        most = min(policy.ceiling_s, policy.throttled_base_s * 2 ** min(attempt - 1, 30))
        least = 0.0 if asked_s is None else min(asked_s, policy.ceiling_s)
        return least, max(most, least)
    tries = policy.attempts_max
    if name == "BadResponse":
        tries = min(tries, policy.bad_response_attempts_max)
    if attempt >= tries:
        return None
    return 0.0, min(policy.ceiling_s, policy.base_s * 2 ** min(attempt - 1, 30))


@settings(max_examples=budget(300), deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    tries=st.integers(1, 12),
    bad_tries=st.integers(1, 12),
    attempt=st.integers(1, 40),
    asked_s=st.none() | st.floats(0, 100),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_table(
    kind: type[FeeddError], tries: int, bad_tries: int, attempt: int, asked_s: float | None, chance: float
) -> None:
    """Every error there is: retried or not, and with a wait in the bounds of its row."""
    policy = RetryPolicy(tries, bad_tries, base_s=0.2, throttled_base_s=0.1, ceiling_s=20.0)
    error = Throttled("x", retry_after_s=asked_s) if kind is Throttled else kind("x")
    bounds = expected(kind, policy, attempt, asked_s)
    delay_s = policy.delay_s(error, attempt, chance)
    if bounds is None:
        assert delay_s is None
    else:
        assert delay_s is not None
        assert bounds[0] <= delay_s <= bounds[1]


class _Refusing(MemoryStore):
    """Refuses whatever it is asked for until it has done so often enough."""

    def __init__(self, refusals: int, error: FeeddError) -> None:
        super().__init__()
        self.put("key", b"x")
        self.left, self.error, self.asked_count = refusals, error, 0

    async def head(self, key: str) -> ObjectRef:
        self.asked_count += 1
        await asyncio.sleep(0)
        if self.left:
            self.left -= 1
            raise type(self.error)(self.error.message)
        return await super().head(key)


def _store(inner: MemoryStore, clock: TimelessClock, quota: RetryQuota, deadline_s: float) -> RetryStore:
    limits = RetryLimits(RetryPolicy(), lambda _: deadline_s, quota)
    return RetryStore(inner, limits, clock, NullRecorder(), chance=lambda: 0.5)


@settings(max_examples=budget(30), deadline=None)
@given(callers=st.integers(1, 64), initial=st.integers(0, 20), deadline_s=st.floats(1, 60))
async def test_a_brown_out_is_no_storm(callers: int, initial: int, deadline_s: float) -> None:
    """However many ask a store that refuses everything: what is sent again is the saved-up balance, and probes."""
    clock = TimelessClock()
    policy = QuotaPolicy(initial=initial, balance_max=max(initial, 1), probe_s=0.25, probe_max_s=4.0)
    inner = _Refusing(1 << 30, Throttled("slow down"))
    store = _store(inner, clock, RetryQuota(policy), deadline_s)
    results = await asyncio.gather(*[store.head("key") for _ in range(callers)], return_exceptions=True)
    assert all(isinstance(result, Throttled) for result in results)
    probes = 6 + clock.now_s / policy.probe_max_s  # 0.25, 0.5, 1, 2, 4, 4, ... seconds apart
    assert inner.asked_count <= callers + initial + probes


@pytest.mark.parametrize("error", [Throttled("slow down"), StoreUnavailable("reset")])
async def test_everybody_is_served_when_it_is_over(error: FeeddError) -> None:
    """After a trouble that ends within the deadline nobody is left with an error, whatever the quota was."""
    inner = _Refusing(5, error)
    store = _store(inner, TimelessClock(), RetryQuota(QuotaPolicy(initial=0, balance_max=1)), 600.0)
    found = await asyncio.gather(*[store.head("key") for _ in range(8)])
    assert {ref.key for ref in found} == {"key"}


async def test_what_cannot_be_mended_is_asked_once() -> None:
    """An object that is not there is not asked for again."""
    inner = _Refusing(1 << 30, NotFound("gone"))
    with pytest.raises(NotFound):
        await _store(inner, TimelessClock(), RetryQuota(), 60.0).head("key")
    assert inner.asked_count == 1
