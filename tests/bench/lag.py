"""Bench: how long a daemon's event loop keeps others waiting, while small objects stream and while its disk hangs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.bench.harness import Arm, Row, interleave, run_arm
from feedd.bench.report import Column, Result, Verdict
from tests.bench.dataset import BUCKET
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 180.0
_OBJECT_BYTES = 100_000
_P99_MS, _MAX_MS = 20.0, 200.0
_MODULE = "tests.bench.arms.lag"
COLUMNS = (
    Column("p50 ms", "p50_ms", digits=1),
    Column("p99 ms", "p99_ms", digits=1, spread=True),
    Column("max ms", "max_ms", digits=1, spread=True),
    Column("probes", "probes", digits=0),
    Column("samples/s", "samples_per_s", digits=0),
)


def run(plan: Plan) -> Result:
    """Measure; one table."""
    seconds, hang_s, count = (6.0, 2.0, 8_000) if plan.quick else (20.0, 10.0, 60_000)
    root = Path(tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm"))
    try:
        _objects(root / BUCKET / "small", count)
        with BenchServer(root) as server:
            settings = {"url": f"s3://{BUCKET}/small/", "workers": 1, "seconds": seconds}
            shapes = {
                "idle": {"place": "memory", "reads": False},
                "100 KB objects, cache on tmpfs": {"place": "memory", "reads": True},
                "100 KB objects, cache on ext4": {"place": "ext4", "reads": True},
                f"the same, frozen for {hang_s:.0f} s": {"place": "ext4", "reads": True, "hang_s": hang_s},
            }
            arms = [
                Arm(name, _MODULE, Path(sys.executable), server.environment, settings | shape)
                for name, shape in shapes.items()
            ]
            outcomes = interleave(plan.chosen(arms), plan.round_count, lambda arm, _: _once(plan, arm), plan.say)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    result = Result("lag", "answers of a daemon's health service, asked for every 5 ms", COLUMNS, outcomes)
    for outcome in outcomes:
        for figure, most in (("p99_ms", _P99_MS), ("max_ms", _MAX_MS)):
            middle = outcome.middle(figure)
            if middle is not None:
                text = f"{outcome.name}: {figure.removesuffix('_ms')} / {most:.0f} ms"
                result.verdicts.append(Verdict(text, middle / most, 1.0, at_least=False))
    result.notes = [
        "From the question to the answer: the wait for the daemon's loop, for a core, and some 0.5 ms of gRPC.",
        "Trainer, decode worker, S3 server and whoever asks share the machine's cores with the daemon.",
        "Frozen: FIFREEZE on the cache's file system, ext4 on a loop device; needs root.",
    ]
    return result


def _once(plan: Plan, arm: Arm) -> Row:
    plan.say(f"lag: {arm.name}")
    folder = tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm" if arm.settings["place"] == "memory" else None)
    try:
        return run_arm(arm, {"run_dir": folder, "cache_dir": f"{folder}/cache"}, _TIMEOUT_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _objects(folder: Path, count: int) -> None:
    """Make objects of which many share their bytes, which nobody looks at: names are links."""
    folder.mkdir(parents=True)
    body = folder / "000000.jpg"
    body.write_bytes(os.urandom(_OBJECT_BYTES))
    for number in range(1, count):
        (folder / f"{number:06d}.jpg").hardlink_to(body)
