"""What a batch is made of."""

from __future__ import annotations

import numpy as np
import pytest

from feedd.dataset.assignment import Assignment
from feedd.ordering.epoch import EpochOptions
from feedd.ordering.quality import mix


def _mix(shards: int, per_shard: int, window: int, batch: int, epoch: int = 1) -> tuple[float, float, float, float]:
    share = Assignment(np.arange(shards, dtype=np.int64))
    counts = np.full(shards, per_shard, dtype=np.int64)
    found = mix(share, counts, EpochOptions(epoch, 0, shuffle=True, window_shards=window), batch)
    if epoch:
        assert found.window_samples == min(window, shards) * per_shard
    return found.none, found.windows, found.buffer, found.full


def test_windows_of_one_shard_do_not_mix() -> None:
    """One shard at a time: batches that fit into a shard come from one."""
    none, windows, _, full = _mix(50, 64, 1, 32)
    assert none == windows == 1
    assert full > 20


def test_a_window_of_everything_is_a_full_shuffle() -> None:
    """With all shards in one window there is nothing left to gain after epoch 0."""
    _, windows, _, full = _mix(40, 100, 40, 64)
    assert windows == pytest.approx(full, rel=0.03)


def _drawn(shards: int, per_shard: int, batch: int) -> float:
    """Return how many of the window's shards a batch has: W (1 - C(nW - n, B) / C(nW, B))."""
    left = np.prod([(per_shard * (shards - 1) - i) / (per_shard * shards - i) for i in range(batch)])
    return float(shards * (1 - left))


def test_epoch_0_of_few_shards_mixes_less() -> None:
    """With all shards in a window, epoch 0 still begins with windows of 1, 2, 4, ... shards, and mixes as those do."""
    widths = [1, 2, 4, 8, 16, 9]
    _, windows, _, full = _mix(40, 128, 40, 64, epoch=0)
    expected = sum(width * _drawn(width, 128, 64) for width in widths) / sum(widths)
    assert windows == pytest.approx(expected, rel=0.03)
    assert windows < 0.4 * full


def test_epoch_0_of_many_shards_mixes_as_well() -> None:
    """The small windows at the begin of epoch 0 are a small part of a large dataset."""
    _, windows, _, _ = _mix(1024, 64, 4, 32, epoch=0)
    _, later, _, _ = _mix(1024, 64, 4, 32)
    assert windows == pytest.approx(later, rel=0.01)


@pytest.mark.parametrize("window", [2, 4, 16])
def test_as_many_shards_as_windows_and_batches_have(window: int) -> None:
    """The figure is that of drawing without replacement, worked out by hand."""
    _, windows, buffer, full = _mix(256, 64, window, 32)
    assert windows == pytest.approx(_drawn(window, 64, 32), rel=0.05)
    assert windows <= full
    assert buffer <= full * 1.02


def test_nothing_to_mix() -> None:
    """Without samples there are no batches, and that is no error."""
    share = Assignment(np.zeros(0, dtype=np.int64))
    found = mix(share, np.zeros(0, dtype=np.int64), EpochOptions(0, 0, shuffle=True, window_shards=2), 8)
    assert (found.windows, found.full, found.window_samples) == (0, 0, 0)
