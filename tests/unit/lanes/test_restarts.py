"""What becomes of a node when a lane ends."""

from __future__ import annotations

import pytest

from feedd.lanes.restarts import Restart, Restarts, Stop


@pytest.mark.parametrize(("code", "expected"), [(2, 2), (1, 1), (-9, 1)])
def test_a_lane_that_cannot_start_ends_the_node(code: int, expected: int) -> None:
    """Its exit code is the node's; a signal is exit code 1."""
    found = Restarts().ended(code, 0.2, was_ready=False, node_ready=False)
    assert isinstance(found, Stop)
    assert found.code == expected


def test_a_lane_that_was_ready_is_started_again_at_once() -> None:
    """The first failure costs no pause, even if other lanes still start."""
    assert Restarts().ended(-9, 5.0, was_ready=True, node_ready=False) == Restart(0.0)
    assert Restarts().ended(1, 5.0, was_ready=False, node_ready=True) == Restart(0.0)


def test_failures_in_a_row_double_the_pause() -> None:
    """Up to half a minute; a steady minute begins anew."""
    restarts = Restarts()
    pauses = []
    for _ in range(9):
        found = restarts.ended(70, 1.0, was_ready=False, node_ready=True)
        assert isinstance(found, Restart)
        pauses.append(found.pause_s)
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert restarts.ended(70, 61.0, was_ready=True, node_ready=True) == Restart(0.0)


def test_a_lane_that_was_told_to_end_ends_the_node() -> None:
    """As by an administrator, or when the last process of a tree has gone."""
    for ready in (True, False):
        found = Restarts().ended(0, 9.0, was_ready=ready, node_ready=ready)
        assert isinstance(found, Stop)
        assert found.code == 0


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (70, 70), (-9, 1)])
def test_a_lane_may_end_its_node(code: int, expected: int) -> None:
    """The first lane of a node that trainers started: they start another node as soon as it is gone."""
    found = Restarts(ends_node=True).ended(code, 99.0, was_ready=True, node_ready=True)
    assert isinstance(found, Stop)
    assert found.code == expected
