"""What a client tells the daemon of the trainer's loop."""

from __future__ import annotations

import pytest

from feedd_client.step_times import StepTimes


def _run(steps: list[tuple[float, float]]) -> StepTimes:
    """Take batches: each after a step of some seconds, and after a wait."""
    times, now_s = StepTimes(), 100.0
    for step_s, wait_s in steps:
        now_s += step_s
        times.took(now_s, wait_s)
        now_s += wait_s
    return times


def test_waits_and_steps_are_told_apart() -> None:
    """Wall time runs from the first request; what is no wait is the trainer's."""
    times = _run([(5.0, 0.5), (1.0, 0.25), (1.0, 0.25)])
    told = times.report()
    assert (told.steps, told.wait_s, told.pauses) == (3, 1.0, 0)
    assert told.wall_s == pytest.approx(107.75 + 0.25 - 105.0)


def test_a_long_step_among_short_ones_is_a_pause() -> None:
    """Five times the usual length and a quarter of a second; it does not change what is usual."""
    usual = [(0.1, 0.0)] * 10
    times = _run([*usual, (2.0, 0.0), *usual, (2.0, 0.0), (0.45, 0.0)])
    assert times.pauses == 2
    assert times.pause_s == pytest.approx(4.0)


def test_long_steps_are_no_pauses() -> None:
    """Neither steps that are all long, nor short ones that are a little longer."""
    assert _run([(3.0, 0.0)] * 10).pauses == 0
    assert _run([*[(0.01, 0.0)] * 10, (0.2, 0.0)]).pauses == 0


def test_a_long_wait_is_no_pause() -> None:
    """A step begins when the batch is there."""
    assert _run([*[(0.1, 0.0)] * 10, (0.1, 5.0), (0.1, 0.0), (0.1, 0.0)]).pauses == 0


def test_they_are_told_once_a_second() -> None:
    """Not before the first batch, then at once, then after a second."""
    times = StepTimes()
    due = [times.due]
    times.took(1.0, 0.1)
    due.append(times.due)
    assert times.report().steps == 1
    for request_s in (2.0, 2.2):
        times.took(request_s, 0.0)
        due.append(times.due)
    assert due == [False, True, False, True]


def test_copies_to_the_device_are_told() -> None:
    """The copy thread adds them up."""
    times = _run([(1.0, 0.5)])
    times.copy_s += 0.25
    times.copy_s += 0.5
    assert times.report().copy_s == 0.75
