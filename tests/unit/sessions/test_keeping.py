"""The books of a group, case by case; ``tests/model/test_keeping_model.py`` tries them in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.flow.arena import Arena
from feedd.sessions.job_sharing import slots_to_lease
from feedd.sessions.shared_batches import WINDOW_BATCHES, Keeping, SharedBatch
from feedd.values import BatchReady, Cursor

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def arena() -> Iterator[Arena]:
    """Four slots."""
    with Arena(4, 4096) as arena:
        yield arena


def _made(keeping: Keeping, step: int) -> SharedBatch:
    slot = keeping.free_slot()
    assert slot is not None
    return keeping.add((0, step), BatchReady(Cursor(0, step), 1, (), 1), slot)


def test_what_is_read_is_passed_over(arena: Arena) -> None:
    """Room is made of the oldest batch that nobody reads, however old one is that somebody does."""
    keeping = Keeping(arena)
    for member in ("fast", "slow"):
        keeping.join(member)
    made = [_made(keeping, step) for step in range(4)]
    keeping.hold(made[0], "fast")
    _made(keeping, 4)
    assert [keeping.find((0, step)) is not None for step in range(5)] == [True, False, True, True, True]
    keeping.let_go(made[0], "fast")
    assert keeping.find((0, 0), "slow") is made[0]


def test_a_place_is_lent_to_a_client_once(arena: Arena) -> None:
    """Who holds a batch, and may have written to it, gets another of the same; its place stays until it lets go."""
    keeping = Keeping(arena)
    keeping.join("one")
    first = _made(keeping, 0)
    keeping.hold(first, "one")
    assert keeping.find((0, 0), "one") is None
    second = _made(keeping, 0)
    assert second.slot != first.slot
    keeping.hold(second, "one")
    keeping.let_go(first, "one")
    assert arena.taken_count == 1
    keeping.let_go(second, "one")
    assert arena.taken_count == 0


def test_fewer_leases_than_slots(arena: Arena) -> None:
    """Leases are promised as long as one slot more is there; who leaves gives up the promise."""
    keeping = Keeping(arena)
    assert keeping.admit("one", 2)
    assert not keeping.admit("two", 2)
    assert keeping.admit("three", 1)
    keeping.leave("one")
    assert keeping.admit("two", 2)


@pytest.mark.parametrize(("leases", "slot_bytes", "slots"), [(4, 38 << 20, 17), (8, 1 << 20, 33), (4, 1 << 30, 13)])
def test_slots_of_a_group(leases: int, slot_bytes: int, slots: int) -> None:
    """Four members' leases and one slot more; of large batches the window and one member's."""
    assert slots_to_lease(leases, slot_bytes) == slots >= WINDOW_BATCHES + leases + 1
