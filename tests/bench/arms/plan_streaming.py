"""Arm: an epoch's plan as mosaicml-streaming makes it: partitions and shuffle of all samples, then a node's part."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
from streaming.base.partition import get_partitions  # type: ignore[import-not-found]  # peers' environment
from streaming.base.shuffle import get_shuffle  # type: ignore[import-not-found]  # peers' environment

from tests.bench.arms.plan_data import (
    SEED,
    ResidentPeak,
    read_settings,
    sample_counts,
    traced_peak_bytes,
    write_row,
)

_BLOCK_SAMPLES_MIN, _BLOCK_SAMPLES = 1 << 18, 4_000_000  # what StreamingDataset computes where nothing is set


def plan_epoch(settings: dict[str, Any], counts: Any, epoch: int) -> Any:
    """Return the samples of the node's rank, as ``StreamingDataset`` makes them before its first batch.

    Its ``generate_work`` also maps samples through ``resample_streams``, an array of their number and one more gather,
    which here would map each to itself: that is left out, in the peer's favour.
    """
    nodes, batch_size = settings["node_count"], settings["batch_size"]
    ids = get_partitions("relaxed", int(counts.sum()), nodes, nodes, 1, settings["workers"], batch_size, 0, nodes)
    block = max(_BLOCK_SAMPLES // nodes, _BLOCK_SAMPLES_MIN)
    shuffle = get_shuffle(settings["algorithm"], counts, nodes, SEED, epoch, block)
    ids = np.where(ids != -1, shuffle[ids], -1)
    return ids[settings["node_rank"], 0].transpose(1, 0, 2).reshape(-1, batch_size)  # batches, by turns of its workers


def main() -> None:
    """Measure times first, then allocations, which slows what is measured."""
    settings = read_settings()
    counts = sample_counts(settings["shard_count"], settings["sample_count"])
    peak = ResidentPeak()
    begin_s = time.perf_counter()
    batches = plan_epoch(settings, counts, 0)
    first_s = time.perf_counter()
    samples = sum(int((batch >= 0).sum()) for batch in batches)
    end_s = time.perf_counter()
    resident_bytes = peak.bytes
    del batches
    next_begin_s = time.perf_counter()
    plan_epoch(settings, counts, 1)
    next_s = time.perf_counter() - next_begin_s
    tracemalloc.start()
    plan_epoch(settings, sample_counts(settings["shard_count"], settings["sample_count"]), 0)
    row = {"first_s": first_s - begin_s, "epoch_s": end_s - begin_s, "next_s": next_s, "samples": samples}
    row["order_s"] = row["first_s"]  # of all nodes
    traced = {"first_bytes": traced_peak_bytes(), "epoch_bytes": traced_peak_bytes()}
    write_row({**row, **traced, "resident_bytes": resident_bytes})


if __name__ == "__main__":
    main()
