"""Bench: small JPEGs into shards of 64 MB, from a local folder and from S3: feedd pack and the peers' writers."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.dataset import BUCKET
from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.objects_data import ObjectsData, prepare
from tests.bench.plan import WORKERS
from tests.bench.report import Column, Result, Verdict
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 300.0
_SHARD_BYTES = 64 << 20
_OURS, _MDS, _LITDATA, _FLOOR = "feedd pack", "MDSWriter", "litdata optimize", "read, SHA-256, write"
_HASHED = f"{_MDS}, sha256"
_TARGET = 0.8
_THREADS = 16  # that get objects for MDSWriter
COLUMNS = (
    Column("CPU s", "cpu_s", digits=2, spread=True),
    Column("CPU s after imports", "work_cpu_s", digits=2, spread=True),
    Column("wall s after imports", "work_s", digits=2, spread=True),
    Column("MB/s", "bytes_per_s", scale=1e-6, digits=0),
    Column("MB written", "written_bytes", scale=1e-6, digits=0),
)


def run(plan: Plan) -> Result:
    """Measure from a folder."""
    plan.say("pack: making what is missing")
    data = prepare(quick=plan.quick)
    return _measured(plan, data, "folder", str(data.root / BUCKET / data.folder), {})


def run_s3(plan: Plan) -> Result:
    """Measure from the S3 server."""
    plan.say("pack_s3: making what is missing")
    data = prepare(quick=plan.quick)
    with BenchServer(data.root) as server:
        return _measured(plan, data, "S3", f"s3://{BUCKET}/{data.folder}/", server.environment)


def _measured(plan: Plan, data: ObjectsData, where: str, source: str, environment: dict[str, str]) -> Result:
    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"pack from {where}: round {round_index}, {arm.name}")
        row = _once(arm)
        return row | {"bytes_per_s": data.count * data.mean_bytes / row["work_s"]}

    arms = plan.chosen(_arms(plan, where, {"source": source, "shard_bytes": _SHARD_BYTES}, environment))
    outcomes = interleave(arms, plan.round_count, once, plan.say, first_round=plan.first_round)
    title = f"{data.count} JPEGs of {data.mean_bytes / 1e3:.0f} KB on average, from {where}, into shards on tmpfs"
    result = Result(f"pack_{where.lower()}", title, COLUMNS, outcomes)
    ours = result.outcome(_OURS)
    peers = [one for one in outcomes if one.name in {_MDS, _LITDATA} and not one.failure]
    if ours is not None and not ours.failure and peers:
        for figure, what in (("cpu_s", "CPU"), ("work_cpu_s", "CPU after imports")):
            best = min(peers, key=lambda one: one.middle(figure) or 0.0)
            said = f"{what}: feedd / {best.name}, the better of both"
            result.verdicts.append(Verdict.of(said, ours, best, figure, _TARGET, at_least=False))
    result.notes = [
        "CPU is that of the process and its children, imports included. feedd also writes digests and a manifest.",
        f"{_MDS}: one loop that reads and writes; from S3 {_THREADS} threads get the objects ahead by boto3.",
        f"{_LITDATA}: {WORKERS} workers; from S3 its function gets each object by boto3.",
        f"{_FLOOR}: one thread, each file into the same memory; the least that has to be done.",
    ]
    return result


def _arms(plan: Plan, where: str, settings: dict[str, Any], environment: dict[str, str]) -> list[Arm]:
    ours = Path(sys.executable)
    arms = [Arm(_OURS, "tests.bench.arms.pack_feedd", ours, environment, settings)]
    if where == "folder":
        arms.append(Arm(_FLOOR, "tests.bench.arms.pack_floor", ours, environment, settings))
    if plan.peers is not None:
        theirs = {**plan.peers.environment, **environment}
        python, many = plan.peers.python, {"threads": _THREADS, "workers": WORKERS}
        arms += [
            Arm(_MDS, "tests.bench.arms.pack_mds", python, theirs, settings | many),
            Arm(_HASHED, "tests.bench.arms.pack_mds", python, theirs, settings | many | {"hashes": ["sha256"]}),
            Arm(_LITDATA, "tests.bench.arms.pack_litdata", python, theirs, settings | many),
        ]
    return arms


def _once(arm: Arm) -> Row:
    folder = Path(tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm"))  # no arm waits for a disk
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        row = run_arm(arm, {"target": str(folder / "out")}, _TIMEOUT_S)
        row["written_bytes"] = sum(path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file())
    return row
