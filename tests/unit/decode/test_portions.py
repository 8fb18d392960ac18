"""How many rows go into a message: more where they are quick, the same where nothing is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedd.decode.portions import Portions
from feedd.decode.work import CHUNK_ROWS_MAX


def test_quick_rows_go_twice_as_many_at_a_time() -> None:
    """By what the last batch of the same arena took; another arena's says nothing, nor that of one that is gone."""
    portions = Portions(32)
    assert portions.of(1, 256) == 32
    portions.took(1, 256, 256 * 0.0007)
    assert (portions.of(1, 256), portions.of(2, 256)) == (64, 32)
    portions.took(1, 256, 256 * 0.0025)
    assert (portions.of(1, 100), portions.of(1, 101)) == (50, 34)
    portions.took(1, 256, 256 * 0.1)
    assert portions.of(1, 256) == 32
    portions.took(1, 1, 0.0)
    assert portions.of(1, 256) == 64
    portions.forget(1)
    portions.forget(3)
    assert portions.of(1, 256) == 32


def test_parts_are_equal() -> None:
    """A rest of a few rows costs a message like any other, and keeps a worker for less than it waited for it."""
    assert [Portions(32).of(1, rows) for rows in (0, 1, 32, 33, 70, 96)] == [0, 1, 32, 17, 24, 32]


@given(st.integers(1, CHUNK_ROWS_MAX), st.integers(0, 4096), st.integers(1, 4096), st.floats(0, 3600))
def test_bounds(rows: int, total: int, count: int, busy_s: float) -> None:
    """Never more than twice what is asked for, nor than an answer can name, in no more messages than it would take."""
    portions = Portions(rows)
    portions.took(7, count, busy_s)
    sent = portions.of(7, total)
    assert sent <= min(2 * rows, CHUNK_ROWS_MAX)
    assert sent * -(-total // rows) >= total
