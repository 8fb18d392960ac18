"""Bench: one daemon, and several that share the node, under the same ranks: what a batch and a byte cost, and rates."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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

_TIMEOUT_S = 300.0
_TOKENS, _BATCH_SIZE, _RANKS = 4096, 64, 4  # 8 KiB a row, 512 KiB a batch
_SHARD_ROWS, _QUICK_SHARD_ROWS = 2048, 256  # 16 MiB a shard
_SHARDS, _MANY_CORES_SHARDS = 48, 192
_LANES = (1, 2, 4)
_MANY_CORES = 8
_CPU_RATIO_MAX, _LINEAR_MIN = 1.05, 0.85
COLUMNS = (
    Column("cold MB/s", "cold_bytes_per_s", scale=1e-6, digits=0, spread=True),
    Column("cold CPU s/GB", "cold_cpu_s_per_gb", digits=3, spread=True),
    Column("S3 bytes/data", "s3_ratio", digits=4),
    Column("warm batches/s", "warm_batches_per_s", digits=0, spread=True),
    Column("warm CPU us/batch", "warm_cpu_us", digits=0, spread=True),
    Column("cores", "core_count", digits=0),
)


def run(plan: Plan) -> Result:
    """Measure; one table."""
    cores = sorted(os.sched_getaffinity(0))
    many = len(cores) >= _MANY_CORES
    server_count = 4 if many else 1
    rows = _QUICK_SHARD_ROWS if plan.quick else _SHARD_ROWS
    shards = _MANY_CORES_SHARDS if many else _SHARDS
    root = Path(tempfile.mkdtemp(prefix="feedd-bench-lanes-", dir="/dev/shm"))
    try:
        data_bytes = _write(root, server_count, shards, rows)
        with ExitStack() as stack:
            servers = [stack.enter_context(BenchServer(root)) for _ in range(server_count)]
            each = len(cores) // 2 // max(_LANES)  # cores of a lane; the other half is the trainers' and the store's
            others = cores[each * max(_LANES) :]
            arms = [_arm(servers, lanes, cores[: each * lanes] if many else [], others) for lanes in _LANES]
            for server in servers if many else ():
                server.pin(others)
            limit = _limit_bytes_per_s(servers, shards)

            def once(arm: Arm, round_index: int) -> Row:
                plan.say(f"lanes: round {round_index}, {arm.name}")
                before = sum(server.sent().body_bytes for server in servers)
                row = run_with_empty_cache(arm, _TIMEOUT_S, touched_bytes=2 * data_bytes)
                sent = sum(server.sent().body_bytes for server in servers) - before
                return row | {"s3_ratio": sent / data_bytes, "core_count": _core_count(arm)}

            outcomes = interleave(plan.chosen(arms), plan.round_count, once, plan.say, first_round=plan.first_round)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    title = f"{shards} shards of {rows * _TOKENS * 2 >> 20} MiB, {_RANKS} ranks, batches of 512 KiB"
    result = Result("lanes", title, COLUMNS, outcomes)
    result.verdicts = _verdicts(outcomes, limit if many else None)
    result.notes = [
        "CPU time is that of daemons, workers and supervisor, from the first iter() to the last batch.",
        "Cores are those of the daemons; without a number, all of the machine. Trainers and store have others.",
    ]
    return result


def _verdicts(outcomes: list[Outcome], limit_bytes_per_s: float | None) -> list[Verdict]:
    """Return the verdicts; the store's limit is given where each lane has cores of its own."""
    alone, *others = outcomes
    verdicts = []
    for outcome in others:
        for figure, what in (("cold_cpu_s_per_gb", "cold"), ("warm_cpu_us", "warm")):
            spread = outcome.over(alone, figure)
            if spread is not None:
                text = f"{what} CPU, {outcome.name} / one daemon"
                verdicts.append(Verdict(text, spread.middle, _CPU_RATIO_MAX, at_least=False))
        if limit_bytes_per_s is None:
            continue
        lanes = int(outcome.name.split()[0])
        warm, cold, one = (
            outcome.over(alone, "warm_batches_per_s"),
            *(each.middle("cold_bytes_per_s") for each in (outcome, alone)),
        )
        if warm is not None:
            verdicts.append(
                Verdict(f"warm rate / {lanes} times one daemon", warm.middle / lanes, _LINEAR_MIN, at_least=True)
            )
        if cold is not None and one is not None:
            text = f"cold rate / {lanes} times one daemon, or the store's limit of {limit_bytes_per_s / 1e6:.0f} MB/s"
            verdicts.append(Verdict(text, cold / min(lanes * one, limit_bytes_per_s), _LINEAR_MIN, at_least=True))
    for outcome in outcomes:
        ratio = outcome.middle("s3_ratio")
        if ratio is not None:
            verdicts.append(Verdict(f"S3 bytes / data, {outcome.name}", ratio, 1.005, at_least=False))
    return verdicts


def _core_count(arm: Arm) -> int | None:
    return len(arm.settings["daemon_cores"]) or None


def _arm(servers: list[BenchServer], lanes: int, daemon_cores: list[int], trainer_cores: list[int]) -> Arm:
    buckets = [f"lanes{number}" for number in range(len(servers))]
    settings: dict[str, Any] = {
        "lanes": lanes,
        "urls": [f"s3://{bucket}/train/" for bucket in buckets],
        "buckets": buckets,
        "endpoints": [server.url for server in servers],
        "field": "tokens",
        "recipe": f"tokens:uint16:{_TOKENS}",
        "batch_size": _BATCH_SIZE,
        "rank_count": _RANKS,
        "warm_epochs": 4,
        "workers": lanes if daemon_cores else max(_LANES),
        "cache_size": "6GiB",
        "daemon_cores": daemon_cores,
        "trainer_cores": trainer_cores if daemon_cores else [],
    }
    name = f"{lanes} lanes" if lanes > 1 else "1 daemon"
    return Arm(name, "tests.bench.arms.lanes", Path(sys.executable), servers[0].environment, settings)


def _limit_bytes_per_s(servers: list[BenchServer], shards: int) -> float:
    """Return the rate at which plain sockets drain all shards from all servers at once."""
    each = [
        [f"/lanes{at}/train/{shard:04d}.bin" for shard in range(at, shards, len(servers))] for at in range(len(servers))
    ]
    with ThreadPoolExecutor(len(servers)) as pool:
        return sum(pool.map(BenchServer.raw_bytes_per_s, servers, each))


def _write(root: Path, bucket_count: int, shards: int, rows: int) -> int:
    """Write the shards, over all buckets; return their bytes."""
    for shard in range(shards):
        folder = root / f"lanes{shard % bucket_count}" / "train"
        folder.mkdir(parents=True, exist_ok=True)
        tokens = np.random.default_rng(shard).integers(0, 1 << 16, rows * _TOKENS, np.uint16)
        (folder / f"{shard:04d}.bin").write_bytes(tokens.tobytes())
    return shards * rows * _TOKENS * 2
