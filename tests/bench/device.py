"""Bench: batches of pictures from full caches to the GPU, with and without a step: what the trainer loses for each."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.arms.device import ROW_VALUES
from tests.bench.harness import Arm, Row, interleave
from tests.bench.plan import run_with_empty_cache
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 180.0
_SHARDS, _SHARD_ROWS, _BATCH_SIZE = 8, 1024, 256  # 154 MB a shard, 38.5 MB a batch
_STEPS_MS = (0, 10)
COLUMNS = (
    Column("batches/s", "batches_per_s", digits=1, spread=True),
    Column("GB/s to the GPU", "bytes_per_s", scale=1e-9, digits=1),
    Column("ms lost a step", "lost_ms", digits=2, spread=True),
    Column("CPU ms/batch", "cpu_ms", digits=1),
)


def run(plan: Plan) -> Result:
    """Measure; one table. Without a CUDA device all arms fail and say so."""
    workers = max(2, len(os.sched_getaffinity(0)) // 2)
    root = Path(tempfile.mkdtemp(prefix="feedd-bench-device-", dir="/dev/shm"))
    try:
        for shard in range(_SHARDS):
            rows = np.random.default_rng(shard).integers(0, 1 << 16, _SHARD_ROWS * ROW_VALUES, np.uint16)
            (root / f"{shard:04d}.bin").write_bytes(rows.tobytes())
        arms = [_arm(name, root, workers, step_ms) for step_ms in _STEPS_MS for name in ("feedd", "torch DataLoader")]

        def once(arm: Arm, round_index: int) -> Row:
            plan.say(f"device: round {round_index}, {arm.name}")
            return run_with_empty_cache(arm, _TIMEOUT_S)

        outcomes = interleave(plan.chosen(arms), plan.round_count, once, plan.say, first_round=plan.first_round)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    names = {row["device"] for outcome in outcomes for row in outcome.rounds}
    title = f"batches of 38.5 MB to {', '.join(sorted(names)) or 'no device'}, {workers} workers"
    result = Result("device", title, COLUMNS, outcomes)
    for ours, theirs in zip(outcomes[::2], outcomes[1::2], strict=False):
        if (spread := ours.over(theirs, "batches_per_s")) is not None:
            result.verdicts.append(Verdict(f"{ours.name} / torch", spread.middle, 1.0, at_least=True))
    result.notes = [
        "The torch arm gathers a batch in one call in a worker, pins it in its thread, and copies it without blocking.",
        "A step of 10 ms is a kernel that waits. Lost: time of a step in all, less the 10 ms.",
    ]
    return result


def _arm(name: str, root: Path, workers: int, step_ms: int) -> Arm:
    settings: dict[str, Any] = {
        "folder": str(root),
        "batch_size": _BATCH_SIZE,
        "workers": workers,
        "prefetch_factor": 2,
        "step_ms": step_ms,
        "warm_batches": 128,  # four epochs: all pages have been touched
        "batch_count": 256,
    }
    module = "device_feedd" if name == "feedd" else "device_torch"
    title = f"{name}, step of {step_ms} ms" if step_ms else f"{name}, no step"
    return Arm(title, f"tests.bench.arms.{module}", Path(sys.executable), settings=settings)
