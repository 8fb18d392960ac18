"""A peer may be silent longer while this daemon itself is late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.peers.own_delays import FACTOR, LIMIT_FACTOR, OwnDelays

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_a_quiet_machine_keeps_to_the_timeout() -> None:
    """A delay of a few milliseconds changes nothing."""
    delays = OwnDelays(0.05)
    assert delays.limit_s(100.0) == 0.05
    delays.noted(0.005, 100.0)
    assert delays.limit_s(100.0) == 0.05


def test_delays_extend_the_limit_up_to_a_bound() -> None:
    """The largest recent delay counts, and so does one that has not ended."""
    delays = OwnDelays(0.05)
    delays.noted(0.02, 100.0)
    delays.noted(0.01, 100.1)
    assert delays.limit_s(100.1) == pytest.approx(FACTOR * 0.02)
    assert delays.limit_s(100.1, 0.03) == pytest.approx(FACTOR * 0.03)
    assert delays.limit_s(100.1, 30.0) == delays.longest_s == LIMIT_FACTOR * 0.05


def test_delays_are_forgotten() -> None:
    """A delay counts for one to two seconds."""
    delays = OwnDelays(0.05)
    delays.limit_s(100.0)
    delays.noted(0.1, 100.9)
    assert delays.limit_s(101.1) > 0.05
    assert delays.limit_s(101.9) > 0.05
    assert delays.limit_s(102.2) == 0.05
    delays.noted(0.1, 103.0)
    assert delays.limit_s(200.0) == 0.05


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 10)), max_size=40))
def test_any_history_keeps_the_limit_within_bounds(history: Sequence[tuple[float, float]]) -> None:
    """Never below the timeout, never above its multiple, and never below what a delay of this moment asks for."""
    delays, now_s = OwnDelays(0.05), 0.0
    for passed_s, delay_s in history:
        now_s += passed_s
        delays.noted(delay_s, now_s)
        assert min(FACTOR * delay_s, delays.longest_s) <= delays.limit_s(now_s) <= delays.longest_s
    assert delays.limit_s(now_s + 100) == 0.05
