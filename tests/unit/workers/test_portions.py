"""How many rows go into a message: more where they are quick, the same where nothing is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedd.workers.schedule import ChunkSizer
from feedd.workers.work import CHUNK_ROWS_MAX


def test_quick_rows_go_more_at_a_time() -> None:
    """By what the last batch of the same arena took; another arena's says nothing, nor that of one that is gone."""
    portions = ChunkSizer(32)
    assert portions.of(1, 256, 2) == 32
    portions.took(1, 256, 256 * 0.0007)
    assert (portions.of(1, 256, 8), portions.of(2, 256, 8)) == (64, 32)
    portions.took(1, 256, 256 * 0.0025)
    assert (portions.of(1, 100, 8), portions.of(1, 101, 8)) == (50, 34)
    portions.took(1, 256, 256 * 0.1)
    assert portions.of(1, 256, 8) == 32
    portions.forget(1)
    portions.forget(3)
    assert portions.of(1, 256, 8) == 32


def test_few_workers_get_a_part_each() -> None:
    """As long as that keeps none of them for long: whoever cancels waits for what they hold."""
    portions = ChunkSizer(32)
    portions.took(1, 256, 256 * 0.00065)
    assert [portions.of(1, 256, workers) for workers in (1, 2, 3, 4, 16)] == [128, 128, 86, 64, 64]
    portions.took(1, 256, 256 * 0.0012)
    assert [portions.of(1, 256, workers) for workers in (1, 2, 4)] == [86, 86, 64]


def test_what_is_worth_no_message_is_not_divided() -> None:
    """A row of ten microseconds costs less than saying which."""
    portions = ChunkSizer(32)
    portions.took(1, 256, 256 * 0.00001)
    assert [portions.of(1, rows, 16) for rows in (256, 257, 1024)] == [256, 129, 256]
    portions.took(1, 256, 256 * 0.0001)
    assert portions.of(1, 256, 16) == 86
    portions.took(1, 1, 0.0)
    assert portions.of(1, 256, 16) == 256


def test_parts_are_equal() -> None:
    """A rest of a few rows costs a message like any other, and keeps a worker for less than it waited for it."""
    assert [ChunkSizer(32).of(1, rows, 1) for rows in (0, 1, 32, 33, 70, 96)] == [0, 1, 32, 17, 24, 32]


@given(
    st.integers(1, CHUNK_ROWS_MAX), st.integers(0, 4096), st.integers(1, 4096), st.floats(0, 3600), st.integers(0, 256)
)
def test_bounds(rows: int, total: int, count: int, busy_s: float, workers: int) -> None:
    """Never more than an answer can name, nor fewer than asked for but to make parts equal, and all rows."""
    portions = ChunkSizer(rows)
    portions.took(7, count, busy_s)
    sent = portions.of(7, total, workers)
    assert sent <= 8 * rows
    assert sent * -(-total // rows) >= total
    assert sent * busy_s / count <= 0.125 or sent <= rows
