"""How many rows go into a message: more where they are quick, the same where nothing is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedd.decode.portions import Portions
from feedd.decode.work import CHUNK_ROWS_MAX


def test_quick_rows_go_twice_as_many_at_a_time() -> None:
    """By what the last batch of the same arena took; another arena's says nothing, nor that of one that is gone."""
    portions = Portions(32)
    assert portions.of(1) == 32
    portions.took(1, 256, 256 * 0.0007)
    assert (portions.of(1), portions.of(2)) == (64, 32)
    portions.took(1, 256, 256 * 0.001)
    assert portions.of(1) == 50
    portions.took(1, 256, 256 * 0.1)
    assert portions.of(1) == 32
    portions.took(1, 1, 0.0)
    assert portions.of(1) == 64
    portions.forget(1)
    portions.forget(3)
    assert portions.of(1) == 32


@given(st.integers(1, CHUNK_ROWS_MAX), st.integers(1, 4096), st.floats(0, 3600))
def test_bounds(rows: int, count: int, busy_s: float) -> None:
    """Never fewer than asked for, nor more than twice that, nor than an answer can name."""
    portions = Portions(rows)
    portions.took(7, count, busy_s)
    assert rows <= portions.of(7) <= min(2 * rows, CHUNK_ROWS_MAX)
