"""Bench: four nodes that all read one data set, each from the store, and from each other's caches."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.harness import Arm, Row, interleave
from tests.bench.plan import run_with_empty_cache
from tests.bench.report import Column, Result, Verdict
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from tests.bench.harness import Outcome
    from tests.bench.plan import Plan

_TIMEOUT_S = 120.0
_NODES, _TOKENS = 4, 4096
_SHARDS, _ROWS, _QUICK_ROWS = 16, 1024, 256  # 8 MiB a shard
COLUMNS = (
    Column("cold s", "cold_s", digits=2, spread=True),
    Column("CPU s/GB read", "cpu_s_per_gb", digits=3, spread=True),
    Column("S3 bytes/data", "s3_ratio", digits=4, spread=True),
)


def run(plan: Plan) -> Result:
    """Measure; one table."""
    rows = _QUICK_ROWS if plan.quick else _ROWS
    root = Path(tempfile.mkdtemp(prefix="feedd-bench-peers-", dir="/dev/shm"))
    try:
        data_bytes = _write(root, rows)
        with BenchServer(root) as server:
            arms = [
                _arm(server, "store", peers=False),
                _arm(server, "peers", peers=True),
                _arm(server, "peers, one silent", peers=True, silent_count=1),
            ]

            def once(arm: Arm, round_index: int) -> Row:
                plan.say(f"peer cache: round {round_index}, {arm.name}")
                before = server.sent().body_bytes
                row = run_with_empty_cache(arm, _TIMEOUT_S)
                return row | {"s3_ratio": (server.sent().body_bytes - before) / data_bytes}

            outcomes = interleave(plan.chosen(arms), plan.round_count, once, plan.say, first_round=plan.first_round)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    title = f"{_NODES} nodes on one machine, {_SHARDS} shards of {rows * _TOKENS * 2 >> 20} MiB, replicated"
    result = Result("peer_cache", title, COLUMNS, outcomes)
    result.verdicts = _verdicts(outcomes)
    result.notes = [
        "CPU time is that of the four daemons, without workers, per GB that trainers read. Peers send and receive.",
        "The silent peer accepts connections and never answers. All options of the peer cache are the defaults.",
    ]
    return result


def _verdicts(outcomes: list[Outcome]) -> list[Verdict]:
    verdicts = []
    for outcome in outcomes:
        ratio = outcome.middle("s3_ratio")
        if ratio is not None and outcome.name != "store":
            verdicts.append(Verdict(f"S3 bytes / data, {outcome.name}", ratio, 1.005, at_least=False))
    return verdicts


def _arm(server: BenchServer, name: str, *, peers: bool, silent_count: int = 0) -> Arm:
    settings: dict[str, Any] = {
        "url": "s3://peers/train/",
        "recipe": f"tokens:uint16:{_TOKENS}",
        "batch_size": 64,
        "node_count": _NODES,
        "peers": peers,
        "silent_count": silent_count,
    }
    return Arm(name, "tests.bench.arms.peer_cache", Path(sys.executable), server.environment, settings)


def _write(root: Path, rows: int) -> int:
    """Write the shards; return their bytes."""
    folder = root / "peers" / "train"
    folder.mkdir(parents=True)
    for shard in range(_SHARDS):
        tokens = np.random.default_rng(shard).integers(0, 1 << 16, rows * _TOKENS, np.uint16)
        (folder / f"{shard:04d}.bin").write_bytes(tokens.tobytes())
    return _SHARDS * rows * _TOKENS * 2
