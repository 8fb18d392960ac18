"""The pace against simulated stores: it finds the knee, never leaves its bounds, and does not answer storms twice."""

from __future__ import annotations

import itertools
import math
import random
import statistics

from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.fetch.limits import ConcurrencyLimit
from tests.budget import budget

PART_BYTES = 8_000_000


def run(concurrency: ConcurrencyLimit, knee: int, part_count: int) -> None:
    """End parts at a store whose rate grows with the requests up to ``knee`` of them, all places always taken."""
    for _ in range(part_count):
        limit = concurrency.limit
        concurrency.ended(PART_BYTES, 0.1 * max(1.0, limit / knee), limit)


@settings(max_examples=budget(50), deadline=None)
@given(knee=st.integers(17, 200), limit_max=st.integers(16, 128))
def test_finds_the_knee(knee: int, limit_max: int) -> None:
    """It rises to where more requests bring no more, or to its bound, and stays within a step of it."""
    concurrency = ConcurrencyLimit(limit_max)
    run(concurrency, knee, 20_000)
    top = min(knee, limit_max)
    assert top * 0.75 <= concurrency.limit <= min(limit_max, max(16, top * 1.6))


@settings(max_examples=budget(50), deadline=None)
@given(
    limit_max=st.integers(1, 100),
    events=st.lists(st.tuples(st.booleans(), st.floats(0, 10), st.integers(1, 100)), max_size=300),
)
def test_never_leaves_its_bounds(limit_max: int, events: list[tuple[bool, float, int]]) -> None:
    """Whatever it is told, the limit lies between the least and the most."""
    concurrency = ConcurrencyLimit(limit_max)
    for throttled, elapsed_s, in_flight in events:
        concurrency.throttled() if throttled else concurrency.ended(PART_BYTES, elapsed_s, in_flight)
        assert min(2, limit_max) <= concurrency.limit <= limit_max


@settings(max_examples=budget(50), deadline=None)
@given(limit_max=st.integers(2, 100))
def test_a_volley_slows_it_down_once(limit_max: int) -> None:
    """All requests in flight are told to slow down: one step back for all of them; the next volley is another."""
    concurrency = ConcurrencyLimit(limit_max)
    seen = [concurrency.limit]
    for _ in range(20):
        for _ in range(concurrency.limit):
            concurrency.throttled()
        seen.append(concurrency.limit)
    assert seen[1] == max(2, int(seen[0] * 0.7))
    assert all(after >= int(before * 0.7) for before, after in itertools.pairwise(seen))
    assert seen[-1] == 2  # a store that always says so gets the least


@settings(max_examples=budget(50), deadline=None)
@given(seed=st.integers(0, 2**32), limit_max=st.integers(16, 64))
def test_a_store_that_refuses_rarely_is_not_slowed_down_to(seed: int, limit_max: int) -> None:
    """One refusal in twenty leaves nearly all places, on average over its answers; one in three takes most of them."""
    for share, least, most in ((0.05, 0.85, math.inf), (1 / 3, 0.0, 0.6)):
        draw = random.Random(seed)
        concurrency = ConcurrencyLimit(limit_max)
        places = []
        for _ in range(500):
            concurrency.throttled() if draw.random() < share else concurrency.ended(PART_BYTES, 0.1, concurrency.limit)
            places.append(concurrency.limit / 16)
        assert least <= statistics.fmean(places) <= most


@settings(max_examples=budget(25), deadline=None)
@given(knee=st.integers(20, 100))
def test_comes_back_after_throttling(knee: int) -> None:
    """When the store is well again, the pace is, too."""
    concurrency = ConcurrencyLimit(128)
    run(concurrency, knee, 20_000)
    before = concurrency.limit
    for _ in range(500):
        concurrency.throttled()
    assert concurrency.limit == 2
    run(concurrency, knee, 40_000)
    assert concurrency.limit >= 0.7 * min(before, knee)


@settings(max_examples=budget(50), deadline=None)
@given(knee=st.integers(4, 200), limit_max=st.integers(16, 128))
def test_it_comes_to_rest(knee: int, limit_max: int) -> None:
    """After 100 periods at one store it is where it stays, but for a trial every 64 periods or less often."""
    told: list[tuple[int, int, str]] = []
    concurrency = ConcurrencyLimit(limit_max, on_change=lambda *change: told.append(change))
    periods, since, limits = 0, 0, []
    while periods < 600:
        limit = concurrency.limit
        concurrency.ended(PART_BYTES, 0.1 * max(1.0, limit / knee), limit)
        since += 1
        if since == 3 * limit:  # a period, and the parts of another limit before it
            periods, since = periods + 1, 0
            limits.append(limit)
        if periods == 100:
            told.clear()
    assert not told, "a trial that brings nothing is no decision"
    rest = statistics.mode(limits[100:])
    assert sum(limit != rest for limit in limits[100:]) <= 500 / 32 + 2
    assert max(limits[100:]) <= rest + max(1, rest // 4)


def test_every_decision_has_a_reason() -> None:
    """A rise tells what it brought, a fall what the store said, and trials tell nothing."""
    told: list[tuple[int, int, str]] = []
    concurrency = ConcurrencyLimit(64, on_change=lambda *change: told.append(change))
    run(concurrency, 64, 2_000)
    assert told[0] == (16, 20, "25% more throughput")
    assert told[-1][1] == concurrency.limit
    assert [now for _, now, _ in told[:-1]] == [before for before, _, _ in told[1:]]
    rises = len(told)
    for _ in range(100):
        concurrency.throttled()
    assert told[rises][:2] == (told[rises - 1][1], int(told[rises - 1][1] * 0.7))
    assert "the store refuses" in told[rises][2]
    falls = len(told)
    run(concurrency, 64, 5_000)
    assert told[falls][2] == "the store refuses few requests again"


def test_a_pinned_limit_yields_to_the_store_only() -> None:
    """It begins at its bound, stays there however little that brings, and comes back after throttling."""
    concurrency = ConcurrencyLimit(64, pinned=True)
    run(concurrency, 4, 2_000)
    assert concurrency.limit == 64
    for _ in range(100):
        concurrency.throttled()
    assert concurrency.limit < 64
    run(concurrency, 64, 5_000)
    assert concurrency.limit == 64
