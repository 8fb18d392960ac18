"""Bench: whole objects from S3 by ``fetch.parts_in_flight``: more of them must never be slower, nor parts smaller."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.units import MIB
from tests.bench.dataset import BUCKET
from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.report import Column, Result, Verdict
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 120.0
_COUNTS = (16, 64, 256, 512)
_OBJECT_BYTES = 128 * MIB
_NO_SLOWER = 0.95  # of the median with fewer parts: rounds of one arm differ by as much
COLUMNS = (
    Column("MB/s", "bytes_per_s", scale=1e-6, digits=0, spread=True),
    Column("CPU s/GB", "cpu_s_per_gb", digits=2, spread=True),
    Column("loop s/GB", "loop_s_per_gb", digits=2),
    Column("part MiB", "part_bytes", scale=1 / MIB, digits=0),
    Column("bytes in flight MiB", "bytes_in_flight", scale=1 / MIB, digits=0),
    Column("transfer threads", "transfer_threads", digits=0),
)


def run(plan: Plan) -> Result:
    """Measure; one table."""
    count = 4 if plan.quick else 12
    root = Path(tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm"))
    try:
        _objects(root / BUCKET / "large", count)
        with BenchServer(root) as server:
            arms = [
                Arm(
                    f"parts_in_flight = {parts}",
                    "tests.bench.arms.parts",
                    Path(sys.executable),
                    server.environment,
                    {"url": f"s3://{BUCKET}/large/", "parts_in_flight": parts},
                )
                for parts in _COUNTS
            ]
            outcomes = interleave(plan.chosen(arms), plan.round_count, lambda arm, _: _once(plan, arm), plan.say)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    title = f"{count} objects of {_OBJECT_BYTES // MIB} MiB into an empty cache on tmpfs; all other bounds left out"
    result = Result("parts", title, COLUMNS, outcomes)
    for fewer, more in itertools.pairwise(outcomes):
        text = f"{more.name} / {fewer.name}: bytes per second"
        result.verdicts.append(Verdict.of(text, more, fewer, "bytes_per_s", _NO_SLOWER))
        text = f"{more.name} / {fewer.name}: CPU per byte"
        result.verdicts.append(Verdict.of(text, more, fewer, "cpu_s_per_gb", 1 / _NO_SLOWER, at_least=False))
        smallest = more.middle("part_bytes")
        if smallest is not None:
            result.verdicts.append(Verdict(f"{more.name}: part / 8 MiB", smallest / (8 * MIB), 1.0))
    result.notes = ["Loop: CPU time of the thread that serves, the kernel's included. Part: as chosen in the end."]
    return result


def _once(plan: Plan, arm: Arm) -> Row:
    plan.say(f"parts: {arm.name}")
    folder = tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm")
    try:
        return run_arm(arm, {"cache_dir": folder}, _TIMEOUT_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _objects(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    body = folder / "00.tar"
    body.write_bytes(os.urandom(MIB) * (_OBJECT_BYTES // MIB))
    for number in range(1, count):
        (folder / f"{number:02d}.tar").hardlink_to(body)
