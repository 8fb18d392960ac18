"""Bench: a cold epoch over JPEGs that are objects of their own, from a near and a far S3, into the training process."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.objects_data import LABELS, ObjectsData, prepare
from tests.bench.plan import BATCH_SIZE, PICTURES, PREFETCH_FACTOR, WORKERS
from tests.bench.report import Column, Result, Verdict
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 300.0
_LATENCIES_MS = (0, 20)
_SLOW = "boto3 map-style"
_SLOW_BATCHES = 12
_THREADS = 16  # of each torch worker
_SIDE_BY_SIDE = f"boto3, {_THREADS} threads a worker"
_SPDL = "SPDL over obstore"
_TARGETS = {"litdata raw": 1.3, _SLOW: 1.7, _SIDE_BY_SIDE: 1.0, _SPDL: 1.0}
COLUMNS = (
    Column("samples/s from iter()", "samples_per_s", spread=True, digits=0),
    Column("after 1st batch", "samples_per_s_after_first", digits=0),
    Column("CPU ms/sample", "cpu_ms_per_sample", digits=2, spread=True),
    Column("loop us/object", "loop_us", digits=0, spread=True),
    Column("daemon us/object", "daemon_us", digits=0),
    Column("1st batch s", "first_batch_s", digits=2),
    Column("GETs", "gets", digits=0),
    Column("MB from S3", "sent_bytes", scale=1e-6, digits=1),
)


def run(plan: Plan) -> list[Result]:
    """Measure feedd, and the peers that read objects one by one."""
    plan.say("objects: making what is missing")
    data = prepare(quick=plan.quick)
    results = []
    for latency_ms in _LATENCIES_MS:
        with BenchServer(data.root, latency_ms) as server:
            results.append(_measured(plan, server, latency_ms, data))
    return results


def _measured(plan: Plan, server: BenchServer, latency_ms: int, data: ObjectsData) -> Result:
    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"objects, {latency_ms} ms: round {round_index}, {arm.name}")
        return _once(arm, server)

    title = (
        f"{data.count} JPEGs 500x375 q{data.quality} of {data.mean_bytes / 1e3:.0f} KB on average, one object each,"
        f" {latency_ms} ms to the first byte, cold, shuffled"
    )
    arms = [_shortened(arm) if latency_ms and arm.name == _SLOW else arm for arm in _arms(plan, server, data)]
    outcomes = interleave(plan.chosen(arms), plan.round_count, once, plan.say, first_round=plan.first_round)
    result = Result(f"objects_{latency_ms}ms", title, COLUMNS, outcomes)
    ours = result.outcome("feedd")
    for name, target in _TARGETS.items():
        peer = result.outcome(name)
        if ours is not None and peer is not None and not peer.failure:
            result.verdicts.append(Verdict.of(f"feedd / {name}", ours, peer, "samples_per_s", target))
    result.notes = [
        f"Batch {BATCH_SIZE}, {WORKERS} workers everywhere; torch prefetch_factor {PREFETCH_FACTOR}. Same decoder.",
        f"{_SLOW}, where the store is far: {_SLOW_BATCHES} batches, not the whole epoch.",
        "litdata's raw data set lists by boto3 here: its own way needs packages that are not installed.",
        "feedd's daemon runs before iter() and has listed nothing; its cache is empty. Labels come from a table.",
        "Before iter() each trainer touches 2 GiB and frees them: a virtual machine's host is slow to find new memory.",
    ]
    return result


def _arms(plan: Plan, server: BenchServer, data: ObjectsData) -> list[Arm]:
    shared = {
        **PICTURES,
        "touched_bytes": 2 << 30,
        "sample_count": data.count,
        "folder": data.folder,
        "labels": LABELS,
    }
    arms = [
        Arm(
            "feedd",
            "tests.bench.arms.objects_feedd",
            Path(sys.executable),
            server.environment,
            {**shared, "prefetch": None},
        )
    ]
    if plan.peers is not None:
        environment = {**plan.peers.environment, **server.environment}
        names: dict[str, tuple[str, dict[str, int]]] = {
            "litdata raw": ("objects_litdata", {}),
            _SLOW: ("objects_boto3", {}),
            _SIDE_BY_SIDE: ("objects_boto3", {"threads": _THREADS}),
            _SPDL: ("objects_spdl", {}),
        }
        arms += [
            Arm(name, f"tests.bench.arms.{module}", plan.peers.python, environment, {**shared, **extra})
            for name, (module, extra) in names.items()
        ]
    return arms


def _shortened(arm: Arm) -> Arm:
    return replace(arm, settings={**arm.settings, "stop_after": _SLOW_BATCHES})


def _once(arm: Arm, server: BenchServer) -> Row:
    folder = Path(tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm"))  # no arm waits for a disk
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "cache").mkdir()
        before = server.sent()
        own = replace(arm, environment={**arm.environment, "TMPDIR": str(folder)})
        row = run_arm(own, {"cache_dir": str(folder / "cache"), "run_dir": str(folder)}, _TIMEOUT_S)
        sent = server.sent().since(before)
    return row | {"gets": sent.get_count, "sent_bytes": sent.body_bytes}
