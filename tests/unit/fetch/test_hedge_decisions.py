"""When a second request is worth it."""

from __future__ import annotations

import pytest

from feedd.fetch.hedge import Hedge, HedgePolicy, Hedger, Leave, LookAgain, Sight
from feedd.units import MIB

PART = 8 * MIB
FIRST_S, BODY_S = 0.02, 0.2


def seasoned(policy: HedgePolicy | None = None, *, count: int = 32, slow_count: int = 0, won_count: int = 3) -> Hedger:
    """Return a hedger that saw parts of 0.22 s, and then ``slow_count`` whose first byte took a second.

    ``won_count`` of its hedges have won; they are no trials after the first one.
    """
    hedger = Hedger(policy)
    for _ in range(won_count):
        hedger.hedged(won=True)
    for index in range(count):
        first_s = 1.0 if index >= count - slow_count else FIRST_S
        hedger.note(PART, first_s, first_s + BODY_S)
    return hedger


def test_nothing_is_judged_before_there_are_samples() -> None:
    """With too few samples a request is looked at, since others may end meanwhile, and left alone."""
    hedger = seasoned(count=7)
    assert hedger.look_after_s(PART) == HedgePolicy().first_look_s
    assert hedger.judge(PART, Sight(100.0), None, 0.0) == LookAgain(HedgePolicy().first_look_s)
    hedger.note(PART, FIRST_S, FIRST_S + BODY_S)
    assert hedger.judge(PART, Sight(100.0), None, 0.0) == Hedge()


def test_late_first_byte() -> None:
    """A first byte is awaited for a quarter of a part's time where that is longer than what is usual, and no longer."""
    hedger = seasoned()
    late_s = (FIRST_S + BODY_S) / 4
    assert hedger.look_after_s(PART) == pytest.approx(late_s)
    early = hedger.judge(PART, Sight(late_s - 0.01), None, 0.0)
    assert isinstance(early, LookAgain)
    assert early.after_s == pytest.approx(0.01)
    assert hedger.judge(PART, Sight(late_s + 0.001), None, 0.0) == Hedge()


def test_slow_stores_get_their_time() -> None:
    """Where first bytes usually take long, as long as twice the p95 is not late."""
    hedger = seasoned(count=0)
    for index in range(100):
        hedger.note(PART, 0.5 + index / 200, 1.2)
    look_s = hedger.look_after_s(PART)
    assert look_s is not None
    assert look_s == pytest.approx(2 * 0.97, rel=0.1)


def test_outliers_among_the_first_samples() -> None:
    """A few slow ones among few samples, which are all of the p95, do not put off what is late."""
    look_s = seasoned(count=20, slow_count=6).look_after_s(PART)
    assert look_s == pytest.approx(4 * FIRST_S)


def test_stall_and_drip() -> None:
    """A body without a byte since the last look stalls, one at a small part of the usual rate drips."""
    begun, second = Sight(0.1, 3 * MIB, FIRST_S), 0.22
    assert seasoned().judge(PART, Sight(second, 3 * MIB, FIRST_S), begun, 0.0) == Hedge()
    assert seasoned().judge(PART, Sight(second, 3 * MIB + 5000, FIRST_S), begun, 0.0) == Hedge()
    assert isinstance(seasoned().judge(PART, Sight(second, 5 * MIB, FIRST_S), begun, 0.0), LookAgain)


@pytest.mark.parametrize(("share", "told"), [(0.26, LookAgain), (0.24, Hedge)])
def test_a_drip_is_below_a_quarter_of_the_usual_rate(share: float, told: type) -> None:
    """A body at a little more than a quarter of the median rate is left alone; at a little less it drips."""
    sight = Sight(FIRST_S + 1.0, int(share * PART / BODY_S), FIRST_S)
    assert isinstance(seasoned().judge(4 * PART, sight, Sight(FIRST_S, 0, FIRST_S), 0.0), told)


def test_too_early_to_tell_a_pause_from_a_stall() -> None:
    """A body that began just now is looked at again, however little of it came."""
    assert isinstance(seasoned().judge(PART, Sight(0.06, 10, 0.059), None, 0.0), LookAgain)


def test_the_end_of_a_body_is_left_alone() -> None:
    """What is nearly whole is not asked for again, what is whole is not looked at any more."""
    before = Sight(0.1, PART - 400_000, FIRST_S)
    slowly = Sight(0.2, PART - 20_000, FIRST_S)
    assert isinstance(seasoned().judge(PART, slowly, before, 0.0), LookAgain)
    assert seasoned().judge(PART, Sight(0.2, PART, FIRST_S), before, 0.0) == Leave()


def test_a_late_look_is_no_evidence() -> None:
    """Who was held up himself looks again before he calls another late."""
    assert isinstance(seasoned().judge(PART, Sight(1.0, lag_s=0.5), None, 0.0), LookAgain)
    assert seasoned().judge(PART, Sight(1.0, lag_s=0.001), None, 0.0) == Hedge()


def test_extra_bytes_are_paid_for() -> None:
    """Second requests are charged for what they ask, and paid from a share of what was read."""
    hedger = seasoned(HedgePolicy(saved_bytes=PART + 1000, share=0.05), count=400)
    assert hedger.account_bytes == PART + 1000
    assert hedger.judge(PART, Sight(1.0), None, 0.0) == Hedge()
    assert hedger.account_bytes == 1000
    assert isinstance(hedger.judge(PART, Sight(1.0), None, 0.0), LookAgain)
    stalled = Sight(1.0, PART - 1000, FIRST_S)
    assert hedger.judge(PART, stalled, Sight(0.5, PART - 1000, FIRST_S), 0.0) == Hedge()
    assert hedger.account_bytes == 0
    for _ in range(20):
        hedger.note(PART, FIRST_S, FIRST_S + BODY_S)
    assert hedger.account_bytes == pytest.approx(PART)


def test_hedges_that_lose_are_paid_less() -> None:
    """Parts that only share a busy link are seldom requested twice; hedges that win get their full share again."""
    policy = HedgePolicy(saved_bytes=16 * PART, share=0.05)
    assert Hedger(policy).account_bytes == 4 * PART
    hedger = seasoned(policy, count=400)
    assert hedger.account_bytes == 16 * PART
    hedger.hedged(won=False)
    assert hedger.account_bytes == 8 * PART
    for _ in range(5):
        hedger.hedged(won=False)
    assert hedger.account_bytes == 4 * PART
    assert hedger.judge(PART, Sight(1.0), None, 0.0) == Hedge()
    for _ in range(20):
        hedger.note(PART, FIRST_S, FIRST_S + BODY_S)
    assert hedger.account_bytes == pytest.approx(3 * PART + 20 * 0.05 / 8 * PART)
    for _ in range(3):
        hedger.hedged(won=True)
    before_bytes = hedger.account_bytes
    hedger.note(PART, FIRST_S, FIRST_S + BODY_S)
    assert hedger.account_bytes == pytest.approx(before_bytes + 0.05 * PART)
    for _ in range(400):
        hedger.note(PART, FIRST_S, FIRST_S + BODY_S)
    assert hedger.account_bytes == 16 * PART


def test_a_trial_comes_later_than_a_hedge_that_is_known_to_pay() -> None:
    """Before hedges won, a first byte has three times as long, and a body may be three times slower."""
    late_s = (FIRST_S + BODY_S) / 4
    drip = Sight(FIRST_S + 1.0, int(0.24 * PART / BODY_S), FIRST_S)
    stall = Sight(FIRST_S + 1.0, int(0.08 * PART / BODY_S), FIRST_S)
    begun = Sight(FIRST_S, 0, FIRST_S)
    hedger = seasoned(won_count=0)
    assert hedger.look_after_s(PART) == pytest.approx(3 * late_s)
    assert isinstance(hedger.judge(PART, Sight(2.9 * late_s), None, 0.0), LookAgain)
    assert isinstance(hedger.judge(4 * PART, drip, begun, 0.0), LookAgain)
    assert seasoned(won_count=0).judge(PART, Sight(3.1 * late_s), None, 0.0) == Hedge()
    assert seasoned(won_count=0).judge(PART, stall, begun, 0.0) == Hedge()
    for won in (False, True, True):
        assert hedger.look_after_s(PART) == pytest.approx(3 * late_s)
        hedger.hedged(won=won)
    assert hedger.look_after_s(PART) == pytest.approx(late_s)


def test_one_trial_at_a_time() -> None:
    """Parts that are late together have one cause: one is requested again, the others when that was of use."""
    hedger = seasoned(won_count=0)
    assert hedger.judge(MIB, Sight(1.0), None, 10.0) == Hedge()
    assert isinstance(hedger.judge(MIB, Sight(1.0), None, 10.0), LookAgain)
    assert isinstance(hedger.judge(MIB, Sight(1.0), None, 10.9), LookAgain)
    hedger.hedged(won=False)
    hedger.hedged(won=True)
    assert hedger.judge(MIB, Sight(1.0), None, 10.9) == Hedge(), "still a trial"
    assert isinstance(hedger.judge(MIB, Sight(1.0), None, 11.8), LookAgain)
    assert hedger.judge(MIB, Sight(1.0), None, 12.0) == Hedge()
    hedger = seasoned()
    assert [hedger.judge(MIB, Sight(1.0), None, 10.0) for _ in range(2)] == [Hedge(), Hedge()]


def test_quiet_after_being_told_to_slow_down() -> None:
    """While the store throttles, nothing is asked for twice; afterwards it is."""
    hedger = seasoned(HedgePolicy(quiet_s=2.0))
    hedger.throttled(10.0)
    assert isinstance(hedger.judge(PART, Sight(1.0), None, 11.9), LookAgain)
    assert hedger.judge(PART, Sight(1.0), None, 12.1) == Hedge()


def test_never() -> None:
    """What has no bytes, or whose share is nothing, is not looked at."""
    assert seasoned().look_after_s(0) is None
    assert Hedger(HedgePolicy(share=0.0)).look_after_s(PART) is None


def test_what_was_given_up_counts() -> None:
    """Slow requests that lost are samples too: where most are slow, slow is usual."""
    hedger = seasoned(count=16)
    for _ in range(64):
        hedger.note_slow(0.5)
    look_s = hedger.look_after_s(PART)
    assert look_s is not None
    assert look_s >= 1.0
