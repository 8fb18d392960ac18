"""The sizes of the house, which may shrink and not grow; see ``python -m tests.tidy.house``."""

from __future__ import annotations

from tests.tidy.house import file_counts, range_way


def test_a_batch_runs_through_few_files() -> None:
    """Who reads what a batch or an open does need not read the house: a bound on the files that run.

    The bounds have room for what only runs now and then: a thread that starts, a shard that is prefetched.
    """
    files = file_counts()
    assert files["open, cold"] <= 167
    assert 20 < files["warm batch"] <= 75  # 20: else nothing was traced


def test_a_byte_range_passes_few_objects() -> None:
    """Who follows one part of a shard from the cache to its connection meets no more objects than these."""
    way = range_way()
    assert "Tier" in way
    assert way.count("Connection") == 1
    assert len(way) <= 21
