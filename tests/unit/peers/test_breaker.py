"""A failing peer is left alone for a growing time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from feedd.peers.breaker import PAUSE_LEAST_S, PAUSE_MOST_S, Breaker

if TYPE_CHECKING:
    from collections.abc import Sequence


def _no_jitter() -> Breaker:
    return Breaker(lambda: 0.0)


def test_the_first_failure_opens_it_and_later_ones_change_nothing() -> None:
    """Sixteen requests that fail together cost one pause."""
    breaker = _no_jitter()
    assert breaker.failed(100.0)
    assert breaker.is_open
    assert not breaker.failed(100.9)
    assert breaker.probe_at_s == 100.0 + PAUSE_LEAST_S


def test_a_first_silence_is_probed_at_once() -> None:
    """A peer that was late once is back as soon as it answers."""
    breaker = _no_jitter()
    assert breaker.silent(100.0)
    assert not breaker.silent(100.0)
    assert breaker.probe_at_s == 100.0
    breaker.probe_failed(102.0)
    assert breaker.probe_at_s == 102.0 + PAUSE_LEAST_S


def test_later_silences_get_pauses() -> None:
    """Else a peer that answers probes only would cost a timeout again and again."""
    breaker = _no_jitter()
    breaker.silent(100.0)
    breaker.probe_succeeded(100.1)
    assert breaker.silent(101.0)
    assert breaker.probe_at_s == 101.0 + PAUSE_LEAST_S
    breaker.probe_succeeded(102.0)
    assert breaker.silent(120.0)
    assert breaker.probe_at_s == 120.0, "an old silence is forgotten"


def test_failed_probes_double_the_pause_up_to_a_bound() -> None:
    """A peer that stays away is asked less and less often."""
    breaker, now_s, pauses = _no_jitter(), 0.0, []
    breaker.failed(now_s)
    for _ in range(9):
        pauses.append(breaker.probe_at_s - now_s)
        now_s = breaker.probe_at_s
        breaker.probe_failed(now_s)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_peer_that_answers_probes_only_gets_longer_pauses() -> None:
    """Else each second would cost a timeout."""
    breaker = _no_jitter()
    breaker.failed(0.0)
    breaker.probe_succeeded(1.0)
    assert not breaker.is_open
    breaker.failed(1.1)
    assert breaker.probe_at_s == 1.1 + 2 * PAUSE_LEAST_S
    breaker.probe_succeeded(3.1)
    breaker.failed(100.0)
    assert breaker.probe_at_s == 100.0 + PAUSE_LEAST_S, "an old failure is forgotten"


@given(st.lists(st.tuples(st.sampled_from("fspg"), st.floats(0, 30), st.floats(0, 1)), max_size=60))
def test_any_history_keeps_pauses_within_bounds(history: Sequence[tuple[str, float, float]]) -> None:
    """Whatever happens, a pause is between half of the shortest and the longest."""
    now_s, share = 0.0, 0.0
    breaker = Breaker(lambda: share)
    for kind, passed_s, share in history:  # noqa: B007 - the breaker draws it
        now_s += passed_s
        if kind in "fs" and (breaker.failed if kind == "f" else breaker.silent)(now_s):
            least_s = PAUSE_LEAST_S / 2 if kind == "f" else 0.0
            assert least_s <= breaker.probe_at_s - now_s <= PAUSE_MOST_S
        elif kind in "pg" and breaker.is_open and now_s >= breaker.probe_at_s:
            (breaker.probe_failed if kind == "p" else breaker.probe_succeeded)(now_s)
            assert breaker.is_open == (kind == "p")
            assert not breaker.is_open or now_s < breaker.probe_at_s <= now_s + PAUSE_MOST_S
