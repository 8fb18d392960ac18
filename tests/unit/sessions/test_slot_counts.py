"""How many batches lie in each slot of a session whose batches are small copies."""

from __future__ import annotations

import pytest

from feedd.open_spec import SessionSpec
from feedd.sessions.slot_counts import may_differ, run_and_slots

MIB = 1 << 20


@pytest.mark.parametrize(
    ("prefetch", "size_bytes", "slots_max", "join", "expected"),
    [
        (0, MIB, 64, False, (42, 3)),  # 128 MiB, if the client names no number
        (0, MIB, 64, True, (32, 4)),  # agreement on steps looks ahead
        (0, MIB, 16, False, (10, 3)),  # twice the batches that the operator allows
        (0, 4 * MIB, 64, False, (10, 3)),
        (0, 100 << 10, 64, False, (42, 3)),  # longer runs save nothing more
        (0, 5 << 10, 64, False, (256, 6)),
        (24, MIB, 64, False, (8, 3)),  # the client's number is kept
        (200, MIB, 64, False, (21, 3)),
        (0, 5 * MIB, 64, False, (1, 12)),  # too large for runs: the memory of single batches
    ],
)
def test_slots_of_runs(
    prefetch: int, size_bytes: int, slots_max: int, *, join: bool, expected: tuple[int, int]
) -> None:
    """Long runs, in three slots, or in four if ranks agree on their steps."""
    asked = SessionSpec(prefetch_batches=prefetch, runs=True)
    assert run_and_slots(asked, size_bytes, slots_max, join=join) == expected
    assert may_differ(asked, size_bytes) == (expected[0] > 1)


def test_no_runs_take_the_memory_of_single_batches() -> None:
    """A client that takes no runs gets as many slots as ever."""
    assert run_and_slots(SessionSpec(), MIB, 64, join=False) == (1, 64)
