"""What a batch is made of."""

from __future__ import annotations

import numpy as np
import pytest

from feedd.dataset.assignment import Assignment
from feedd.ordering.epoch import EpochOptions
from feedd.ordering.quality import mix


def _mix(shards: int, per_shard: int, window: int, batch: int, seed: int = 0) -> tuple[float, float, float, float]:
    share = Assignment(np.arange(shards, dtype=np.int64))
    counts = np.full(shards, per_shard, dtype=np.int64)
    found = mix(share, counts, EpochOptions(0, seed, shuffle=True, window_shards=window), batch)
    assert found.window_samples == min(window, shards) * per_shard
    return found.none, found.windows, found.buffer, found.full


def test_windows_of_one_shard_do_not_mix() -> None:
    """One shard at a time: batches that fit into a shard come from one."""
    none, windows, _, full = _mix(50, 64, 1, 32)
    assert none == windows == 1
    assert full > 20


def test_a_window_of_everything_is_a_full_shuffle() -> None:
    """With all shards in one window there is nothing left to gain."""
    _, windows, _, full = _mix(40, 100, 40, 64)
    assert windows == pytest.approx(full, rel=0.03)


@pytest.mark.parametrize("window", [2, 4, 16])
def test_as_many_shards_as_windows_and_batches_have(window: int) -> None:
    """The figure is that of drawing without replacement, worked out by hand: W (1 - C(nW - n, B) / C(nW, B))."""
    _, windows, buffer, full = _mix(256, 64, window, 32)
    left = np.prod([(64 * (window - 1) - i) / (64 * window - i) for i in range(32)])
    assert windows == pytest.approx(window * (1 - left), rel=0.05)
    assert windows <= full
    assert buffer <= full * 1.02


def test_nothing_to_mix() -> None:
    """Without samples there are no batches, and that is no error."""
    share = Assignment(np.zeros(0, dtype=np.int64))
    found = mix(share, np.zeros(0, dtype=np.int64), EpochOptions(0, 0, shuffle=True, window_shards=2), 8)
    assert (found.windows, found.full, found.window_samples) == (0, 0, 0)
