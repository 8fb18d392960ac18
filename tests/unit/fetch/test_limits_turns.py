"""How many small objects may be in flight follows how late the loop wakes."""

from __future__ import annotations

import pytest

from feedd.fetch.limits import TurnLimit

LOOKS = 8


def looks(turns: TurnLimit, *lates_s: float, in_flight_count: int | None = None, periods: int = 1) -> int:
    """Tell what these looks saw, over and over, a period's worth of looks at a time; return the limit."""
    for number in range(periods * LOOKS):
        count = turns.limit if in_flight_count is None else in_flight_count
        turns.woke(lates_s[number % len(lates_s)], count)
    return turns.limit


def test_long_turns_lower_it_and_short_ones_raise_it() -> None:
    """The limit falls as far as 16 while turns are long, and returns to where it began once they are short."""
    turns = TurnLimit(128)
    assert turns.limit == 128
    assert looks(turns, 0.01) == 64
    assert looks(turns, 0.01, periods=20) == 16
    assert looks(turns, 0.002, periods=20) == 16, "neither long nor short"
    assert looks(turns, 0.001) == 18
    assert looks(turns, 0.001, periods=40) == 128


def test_one_late_look_is_not_a_long_turn() -> None:
    """A single late look of a period, for instance a collection of garbage, changes nothing; two of them do."""
    turns = TurnLimit(128)
    assert looks(turns, 0.2, *[0.001] * 7) == 128
    assert looks(turns, 0.2, 0.2, *[0.001] * 6) == 64


def test_turns_that_are_far_too_long_are_not_waited_for() -> None:
    """Two looks of more than 12 ms lower the limit before the period is over; one does not."""
    turns = TurnLimit(128)
    turns.woke(0.1, 128)
    assert turns.limit == 128
    turns.woke(0.013, 128)
    assert turns.limit == 64
    assert looks(turns, 0.001) == 72, "a period begins anew"


def test_what_is_not_used_does_not_rise() -> None:
    """Short turns earn no rise where fewer objects are in flight than may be."""
    turns = TurnLimit(128)
    looks(turns, 0.01, periods=20)
    assert looks(turns, 0.001, in_flight_count=15, periods=20) == 16
    assert looks(turns, 0.001, in_flight_count=16) == 18


def test_it_falls_from_what_is_in_flight() -> None:
    """Turns that are long with few objects in flight lower a limit far above them at once."""
    turns = TurnLimit(1024)
    assert looks(turns, 0.0042, in_flight_count=140) == 100


def test_a_small_limit_stays() -> None:
    """A limit that begins below 16 never changes, and one below 1 is refused."""
    turns = TurnLimit(8)
    assert looks(turns, 0.1, periods=5) == 8
    assert looks(turns, 0.001, periods=5) == 8
    with pytest.raises(ValueError, match="expected room for 1 or more requests, got 0"):
        TurnLimit(0)


@pytest.mark.parametrize("cost_s", [0.000_02, 0.000_1, 0.000_25])
def test_turns_of_a_busy_loop_become_short(cost_s: float) -> None:
    """Turns of a loop that is never idle settle between 1.2 and 3 ms, whatever one object costs."""
    turns = TurnLimit(4096)
    for _ in range(100):
        looks(turns, turns.limit * cost_s)
    assert turns.limit * cost_s <= max(0.003, 16 * cost_s)
    assert turns.limit * cost_s >= 0.0012


def test_it_doubles_until_a_turn_was_long() -> None:
    """A limit that starts low is soon where it may be, and rises slowly behind the first long turn."""
    turns = TurnLimit(64, least=2, first=8)
    assert [turns.limit, *(looks(turns, 0.001) for _ in range(4))] == [8, 16, 32, 64, 64]
    assert looks(turns, 0.01) == 32
    assert looks(turns, 0.001) == 36
    assert looks(turns, 0.01, periods=20) == 2
    assert looks(turns, 0.001) == 3
    assert TurnLimit(4, least=8, first=16).limit == 4
