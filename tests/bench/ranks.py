"""Bench: what a batch of tokens costs a daemon, and what memory, by the number of ranks, their slots and partitions."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 300.0
_TOKENS, _BATCH_SIZE = 128, 256  # 64 KiB a batch
_SHARDS, _SHARD_SAMPLES, _WINDOW_SHARDS = 16, 65_536, 4  # 262,144 samples a window: 4.2 MB of sorted order
_QUICK_SHARD_SAMPLES = 4096
_LOOP_US_MAX, _ANONYMOUS_BYTES_MAX = 250.0, 400e6
COLUMNS = (
    Column("loop us/batch", "loop_us", digits=0, spread=True),
    Column("daemon us/batch", "daemon_us", digits=0),
    Column("workers us/batch", "workers_us", digits=0),
    Column("batches/s", "batches_per_s", digits=0),
    Column("anonymous MB", "anonymous_bytes", scale=1e-6, digits=0, spread=True),
    Column("idle MB", "idle_bytes", scale=1e-6, digits=0),
)


def run(plan: Plan) -> Result:
    """Measure; one table."""
    samples = _QUICK_SHARD_SAMPLES if plan.quick else _SHARD_SAMPLES
    url = _data(samples)
    shapes = [(1, 16), (8, 16), (8, 5), (8, 4), (8, 3), (8, 2), (64, 16), (64, 4)]
    arms = [_arm(url, ranks, prefetch) for ranks, prefetch in shapes]
    arms += [_arm(url, 8, 16, partitions) for partitions in (8, 64, 256, 1024)]
    if plan.arms:
        arms = [arm for arm in arms if arm.name in plan.arms]

    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"ranks: round {round_index}, {arm.name}")
        folder = tempfile.mkdtemp(prefix="feedd-bench-")
        try:
            extra = {"cache_dir": f"{folder}/cache", "run_dir": folder, "duration_s": 1.0 if plan.quick else 5.0}
            (Path(folder) / "cache").mkdir()
            return run_arm(arm, extra, _TIMEOUT_S)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    outcomes = interleave(arms, plan.round_count, once, plan.say, first_round=1)
    title = f"{_SHARDS * samples:,} rows of {_TOKENS} tokens, batches of {_BATCH_SIZE} (64 KiB), shuffled, cache full"
    result = Result("ranks", title, COLUMNS, outcomes)
    for outcome in outcomes:
        loop_us, anonymous = outcome.middle("loop_us"), outcome.middle("anonymous_bytes")
        if loop_us is None or anonymous is None:
            continue
        text = f"{outcome.name}: loop of a batch / {_LOOP_US_MAX:.0f} us"
        result.verdicts.append(Verdict(text, loop_us / _LOOP_US_MAX, 1.0, at_least=False))
        text = f"{outcome.name}: anonymous memory / {_ANONYMOUS_BYTES_MAX / 1e6:.0f} MB"
        result.verdicts.append(Verdict(text, anonymous / _ANONYMOUS_BYTES_MAX, 1.0, at_least=False))
    result.notes = [
        "Ranks of one job on one node, each a stream that gives a lease back when it comes; four processes of them.",
        "Loop: CPU time of the daemon's main thread, user and system. Daemon: of all its threads, without workers.",
        "Anonymous: RssAnon of the daemon at its highest in the time that is measured; arenas are not in it.",
    ]
    return result


def _arm(url: str, ranks: int, prefetch: int, partitions: int = 0) -> Arm:
    name = f"{ranks} ranks, prefetch={prefetch}" + (f", {partitions} partitions" if partitions else "")
    settings: dict[str, Any] = {
        "url": url,
        "field": json.dumps({"decode": "tokens", "dtype": "uint16", "count": _TOKENS, "stride": _TOKENS}),
        "batch_size": _BATCH_SIZE,
        "window_shards": _WINDOW_SHARDS if partitions <= 1 else 1,
        "rank_count": ranks,
        "prefetch": prefetch,
        "partitions": partitions,
        "sharding": "sample" if partitions > _SHARDS else "key",  # a partition without a shard would end every epoch
        "processes": 4,
        "workers": 2,
    }
    return Arm(name, "tests.bench.arms.many_ranks", Path(sys.executable), settings=settings)


def _data(samples: int) -> str:
    """Return the folder of the data set, made where it is not there."""
    base = Path(os.environ.get("FEEDD_BENCH_DATA", str(Path(tempfile.gettempdir()) / "feedd-bench-data")))
    root = base / f"ranks-{_SHARDS}-{samples}"
    if not root.exists():
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=_made(base)))
        for shard in range(_SHARDS):
            tokens = np.random.default_rng(shard).integers(0, 1 << 16, samples * _TOKENS, np.uint16)
            (partial / f"{shard:04d}.bin").write_bytes(tokens.tobytes())
        partial.rename(root)
    return f"file://{root}/"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
