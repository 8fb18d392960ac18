"""Faults at random that repeat."""

from __future__ import annotations

import pytest

from tests.fakes.s3.draws import Draws, Odds
from tests.fakes.s3.faults import NO_FAULT

_KEYS = [(f"shard-{index}", f"bytes={start}-") for index in range(100) for start in range(100)]


def test_nothing_is_drawn_where_nothing_is_asked_for() -> None:
    """Without latency and shares every request is answered at once."""
    assert all(Draws(Odds()).draw(*asked) is NO_FAULT for asked in _KEYS[:50])


@pytest.mark.slow
def test_the_same_seed_draws_the_same_in_any_order() -> None:
    """What a range meets follows from seed, range and attempt, not from when it is asked for."""
    odds = Odds(latency_s=0.02, delayed_share=0.02, error_share=0.05, seed=3)
    one, other = Draws(odds), Draws(odds)
    forward = {asked: one.draw(*asked) for asked in _KEYS}
    backward = {asked: other.draw(*asked) for asked in reversed(_KEYS)}
    assert forward == backward
    one.forget()
    assert {asked: one.draw(*asked) for asked in _KEYS} == forward


def test_shares_are_about_what_was_asked_for() -> None:
    """Of ten thousand ranges close to 2 % are delayed fifty times, and close to 5 % of the others refused."""
    draws = Draws(Odds(latency_s=0.02, delayed_share=0.02, delay_factor=50, error_share=0.05))
    met = [draws.draw(*asked) for asked in _KEYS]
    assert 400 < sum(fault.status == 503 for fault in met) < 600
    assert 140 < sum(fault.delay_s == 1.0 for fault in met) < 260
    assert {fault.delay_s for fault in met if not fault.status} == {0.02, 1.0}


def test_a_range_asked_for_again_is_drawn_anew() -> None:
    """What was delayed once is hardly ever delayed at the second attempt: hedging can help."""
    draws = Draws(Odds(latency_s=0.02, delayed_share=0.02))
    late = [asked for asked in _KEYS if draws.draw(*asked).delay_s > 0.02]
    assert late
    again = [asked for asked in late if draws.draw(*asked).delay_s > 0.02]
    assert len(again) < len(late) / 4
