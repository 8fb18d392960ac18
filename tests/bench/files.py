"""Bench: objects to files: ``feedd files`` beside boto3's transfer manager, out of the cache, and a second run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.report import Column, Result
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S: Final = 120.0
_MEMORY: Final = "/dev/shm"  # no arm waits for a disk
_URL: Final = "s3://data/train/"
_COLD, _CACHED, _AGAIN, _BOTO3 = "feedd files", "feedd files, cached", "feedd files, second run", "boto3 transfers"
COLUMNS = (
    Column("s", "wall_s", digits=2, spread=True),
    Column("MB/s", "bytes_per_s", scale=1e-6, digits=0),
    Column("files/s", "files_per_s", digits=0),
    Column("CPU s", "cpu_s", digits=2, spread=True),
    Column("CPU s/GB", "cpu_s_per_gb", digits=2),
    Column("CPU ms/file", "cpu_ms_per_file", digits=2),
)


class _Shape(NamedTuple):
    name: str
    file_count: int
    size_bytes: int


_SHAPES: Final = (_Shape("large", 16, 64 << 20), _Shape("small", 2000, 20_000))


def run(plan: Plan) -> list[Result]:
    """Measure."""
    return [_measured(plan, shape) for shape in _SHAPES]


def _measured(plan: Plan, shape: _Shape) -> Result:
    home = Path(tempfile.mkdtemp(prefix="feedd-bench-", dir=_MEMORY))
    try:
        _write(home / "store" / "data" / "train", shape)
        with BenchServer(home / "store") as server:
            environment = {**server.environment, "FEEDD_CACHE__DIR": str(home / "cache")}
            warm = [sys.executable, "-m", "feedd", "cache", "warm", _URL, "--json", "--set", "cache.free_reserve=0"]
            subprocess.run(warm, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
            arms = [
                Arm(name, "tests.bench.arms.files_command", Path(sys.executable), environment)
                for name in (_COLD, _CACHED, _AGAIN, _BOTO3)
            ]

            def once(arm: Arm, round_index: int) -> Row:
                plan.say(f"files, {shape.name}: round {round_index}, {arm.name}")
                root = home / ("kept" if arm.name == _AGAIN else "root")
                folder = root / "input" / "data" / "train"
                try:
                    settings = {"command": _command(arm.name, root, home), "folder": str(folder)}
                    counts = {"count": shape.file_count, "bytes": shape.file_count * shape.size_bytes}
                    return run_arm(arm, settings | counts, _TIMEOUT_S)
                finally:
                    if arm.name != _AGAIN:
                        shutil.rmtree(root, ignore_errors=True)

            outcomes = interleave(plan.chosen(arms), plan.round_count, once, plan.say, first_round=plan.first_round)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    title = f"{shape.file_count} objects of {shape.size_bytes / 1e6:.2g} MB to files in memory, whole commands"
    result = Result(f"files_{shape.name}", title, COLUMNS, outcomes)
    result.notes = ["Each figure is of a whole process: starting feedd takes about a second of CPU."]
    return result


def _command(name: str, root: Path, home: Path) -> list[str]:
    if name == _BOTO3:
        folder = root / "input" / "data" / "train"
        return [sys.executable, "-m", "tests.bench.arms.files_boto3", "data", "train/", str(folder)]
    cache = home / ("cache" if name == _CACHED else "no-cache")
    words = ["files", "--root", str(root), "--channel", f"train={_URL}", "--json", "--cache-dir", str(cache)]
    return [sys.executable, "-m", "feedd", *words]


def _write(folder: Path, shape: _Shape) -> None:
    for number in range(shape.file_count):
        path = folder / f"{number % 10}" / f"{number:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(shape.size_bytes))
