"""Datasets to plan for, numbers only, and how much memory planning takes; the peers' interpreter imports it too."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEED = 11
_SAMPLE_BYTES = 110_000


def read_settings() -> dict[str, Any]:
    """Return the settings the harness handed over."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    return settings


def write_row(row: dict[str, Any]) -> None:
    """Print the arm's line of JSON."""
    sys.stdout.write("\n" + json.dumps(row) + "\n")


def sample_counts(shard_count: int, sample_count: int) -> NDArray[np.int64]:
    """Return the samples of each shard, int64[shards]: uneven by up to a half, ``sample_count`` in all."""
    mean = sample_count // shard_count
    counts = np.random.default_rng(SEED).integers(mean // 2, mean + mean // 2 + 1, shard_count)
    while left := sample_count - int(counts.sum()):
        counts[: min(abs(left), shard_count)] += 1 if left > 0 else -1
    return counts


def shard_sizes(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of each shard, int64[shards], no two groups of samples quite alike."""
    return counts * _SAMPLE_BYTES + np.random.default_rng(SEED).integers(0, _SAMPLE_BYTES, counts.shape[0])


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"expected {name} in /proc/self/status, got none")


def peak_resident_bytes() -> int:
    """Return the most memory this process has had resident since the last ``ResidentPeak``, or its start."""
    return _status_bytes("VmHWM")


class ResidentPeak:
    """How far resident memory rises above what it is when this is made."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before_bytes = _status_bytes("VmRSS")

    @property
    def bytes(self) -> int:
        """The rise so far, at its highest."""
        return max(peak_resident_bytes() - self._before_bytes, 0)


def traced_peak_bytes() -> int:
    """Return the most bytes that were allocated at once since ``tracemalloc.start``."""
    return tracemalloc.get_traced_memory()[1]
