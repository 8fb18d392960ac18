"""Autotune against simulated loads: within bounds, enough for the load, at rest under a steady one, slow to shrink."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.workers.autoscaler import COMFORTABLE, SATURATED, SHRINK_AFTER_S, Autotune, Load
from tests.budget import budget

HOUR_S = 3600


def step(tune: Autotune, demand: float, workers: int, noise: float = 0.0) -> int:
    """Let a second pass in which ``demand`` workers' worth of work came for ``workers`` of them."""
    busy_s = min(float(workers), max(0.0, demand + noise))
    return tune.observe(Load(1.0, busy_s, 1.0 if demand + noise > workers else 0.0, workers))


def settle(tune: Autotune, demand: float, seconds: int = HOUR_S) -> list[int]:
    """Keep one demand for so long, workers coming at once; return what was wanted each second."""
    return [step(tune, demand, tune.wanted) for _ in range(seconds)]


bounds = st.tuples(st.integers(1, 40), st.integers(0, 160)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(max_examples=budget(50), deadline=None)
@given(bounds=bounds, demands=st.lists(st.floats(0, 250), min_size=1, max_size=4))
def test_a_steady_load_is_met_and_then_left_alone(bounds: tuple[int, int], demands: list[float]) -> None:
    """After an hour of one load it is met or the bound reached, not much is idle, and nothing changes any more."""
    least, most = bounds
    tune = Autotune(least, most)
    for demand in demands:
        wanted = settle(tune, demand)
        assert all(least <= one <= most for one in wanted)
        assert len(set(wanted[-1200:])) == 1
        assert wanted[-1] >= min(most, demand)
        assert wanted[-1] <= max(least, math.ceil(demand / COMFORTABLE) * 1.5 + 1)


@settings(max_examples=budget(50), deadline=None)
@given(
    bounds=bounds,
    demand=st.floats(0.5, 150),
    share=st.floats(0, 0.1),
    seed=st.integers(0, 2**32),
)
@pytest.mark.slow
def test_a_load_that_trembles_does_not_make_the_crew_swing(
    bounds: tuple[int, int], demand: float, share: float, seed: int
) -> None:
    """Noise of a tenth of the load, second by second, changes direction at most twice in an hour after the first."""
    tune = Autotune(*bounds)
    rng = random.Random(seed)
    wanted = [step(tune, demand, tune.wanted, rng.uniform(-1, 1) * share * demand) for _ in range(2 * HOUR_S)]
    moves = [after > before for before, after in pairwise(wanted[HOUR_S:]) if after != before]
    turns = sum(one != other for one, other in pairwise(moves))
    assert turns <= 2


@settings(max_examples=budget(50), deadline=None)
@given(bounds=bounds, peak=st.floats(1, 250), pause_s=st.integers(1, int(SHRINK_AFTER_S) - 1))
@pytest.mark.slow
def test_a_pause_shorter_than_a_minute_costs_no_worker(bounds: tuple[int, int], peak: float, pause_s: int) -> None:
    """Between epochs, or while a checkpoint is written, there is nothing to do for a while: the crew stays for it."""
    tune = Autotune(*bounds)
    before = settle(tune, peak)[-1]
    assert settle(tune, 0.0, pause_s)[-1] == before


@settings(max_examples=budget(50), deadline=None)
@given(
    bounds=bounds,
    loads=st.lists(
        st.tuples(st.floats(0.001, 30), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.booleans()), max_size=300
    ),
)
def test_no_load_leads_out_of_bounds(
    bounds: tuple[int, int], loads: list[tuple[float, float, float, float, bool]]
) -> None:
    """Whatever is measured, whether workers come or cannot be started: bounds hold, and it never leaps or crashes."""
    least, most = bounds
    tune = Autotune(least, most)
    here = least
    for elapsed_s, busy, queued, contended, comes in loads:
        before = tune.wanted
        wanted = tune.observe(Load(elapsed_s, busy * here * elapsed_s, queued * elapsed_s, here, contended))
        assert least <= wanted <= most
        assert before - max(1, before // 8) <= wanted <= before + max(1, before // 2)
        if comes:
            here = wanted
        elif wanted > here:
            tune.refused(here)
            assert tune.wanted <= max(least, here)


@settings(max_examples=budget(50), deadline=None)
@given(bounds=bounds, demand=st.floats(1, 250))
def test_growth_takes_seconds(bounds: tuple[int, int], demand: float) -> None:
    """From a crew at rest to one that meets any load: 2 s per growth by half, so half a minute for a hundredfold."""
    tune = Autotune(*bounds)
    growths = math.ceil(math.log(max(1.0, bounds[1] / bounds[0])) / math.log(4 / 3)) + 3
    assert settle(tune, demand, 2 * growths)[-1] >= min(bounds[1], demand)


def test_it_does_not_grow_where_cores_are_what_lacks() -> None:
    """Workers that wait for a core would only have to share it with more of them."""
    tune = Autotune(2, 16)
    for _ in range(600):
        tune.observe(Load(1.0, float(tune.wanted), 1.0, tune.wanted, contended=0.5))
    assert tune.wanted == 2


def test_it_waits_for_the_workers_it_asked_for() -> None:
    """While those asked for have not come, no more are."""
    tune = Autotune(4, 64)
    for _ in range(600):
        tune.observe(Load(1.0, 4.0, 1.0, 4))
    assert tune.wanted == 6


def test_a_refused_worker_is_asked_for_again_a_minute_later() -> None:
    """Where a process could not be started, the crew stays as it is for a minute, then tries again."""
    tune = Autotune(4, 64)
    settle(tune, 100.0, 2)
    assert tune.wanted == 6
    tune.refused(4)
    assert settle(tune, 100.0, 59)[-1] == 4
    assert settle(tune, 100.0, 1)[-1] == 6


def test_work_that_does_not_queue_asks_for_nobody() -> None:
    """One worker always busy with one thing after the other, nothing behind it: a second would have nothing to do."""
    tune = Autotune(1, 8)
    for _ in range(600):
        tune.observe(Load(1.0, 1.0, 0.0, 1))
    assert tune.wanted == 1
    assert SATURATED < 1.0
