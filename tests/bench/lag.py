"""Bench: how long a daemon's event loop keeps others waiting, while small objects stream and while its disk hangs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.dataset import BUCKET
from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.report import Column, Result, Verdict
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
    Column("wakings", "wakings", digits=0),
    Column("health p50 ms", "answer_p50_ms", digits=1),
    Column("health max ms", "answer_max_ms", digits=1, spread=True),
    Column("samples/s", "samples_per_s", digits=0),
    Column("GETs/sample", "gets_per_sample", digits=2),
    Column("names looked up", "looked_up", digits=0),
    Column("loop's CPU, %", "loop_cpu", scale=100, digits=0),
    Column("loop waits for a core, %", "loop_waits", scale=100, digits=1),
)
_GETS_PER_SAMPLE_LEAST = 0.5  # fewer: what was measured are reads of the cache
_MANIFEST_BYTES = 48 << 20
_FOLDER = "objects-of-100-kb"  # as long as names need to be for as many of them as a manifest may have


def run(plan: Plan) -> Result:
    """Measure; one table."""
    seconds, hang_s, count, cache = (6.0, 2.0, 20_000, "512MiB") if plan.quick else (20.0, 10.0, 60_000, "1GiB")
    root = Path(tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm"))
    try:
        _objects(root / BUCKET / _FOLDER, count)
        _manifest(root / BUCKET / "large.manifest", count)
        with BenchServer(root) as server:
            settings = {"url": f"s3://{BUCKET}/{_FOLDER}/", "workers": 1, "seconds": seconds, "cache_size": cache}
            shapes = {
                "idle": {"place": "memory", "reads": False},
                "100 KB objects, cache on tmpfs": {"place": "memory", "reads": True},
                "the same, and a 48 MiB manifest is opened": {
                    "place": "memory",
                    "reads": True,
                    "opens": f"manifest+s3://{BUCKET}/large.manifest",
                },
                "100 KB objects, cache on ext4": {"place": "ext4", "reads": True},
                f"100 KB objects, ext4 frozen for {hang_s:.0f} s": {"place": "ext4", "reads": True, "hang_s": hang_s},
            }
            arms = [
                Arm(name, _MODULE, Path(sys.executable), server.environment, settings | shape)
                for name, shape in shapes.items()
            ]
            outcomes = interleave(
                plan.chosen(arms), plan.round_count, lambda arm, _: _once(plan, server, arm), plan.say
            )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    result = Result("lag", "how late a daemon's loop wakes, asked to every 5 ms", COLUMNS, outcomes)
    for outcome in outcomes:
        for figure, most in (("p99_ms", _P99_MS), ("max_ms", _MAX_MS)):
            middle = outcome.middle(figure)
            if middle is not None:
                text = f"{outcome.name}: {figure.removesuffix('_ms')} / {most:.0f} ms"
                result.verdicts.append(Verdict(text, middle / most, 1.0, at_least=False))
    result.notes = [
        "p50, p99, max: how much later than asked the loop woke; a wait for a core is in it.",
        "Health: from question to answer, 20 times a second; a question does not wait for the answers before it.",
        "The dataset is four times the cache or more, so that its samples come from the store.",
        "The loop's shares are those of its thread: of one core used, and of the time ready but without a core.",
        "Trainer, decode worker, S3 server and whoever asks share the machine's cores with the daemon.",
        "The manifest's names are as many as a dataset may have of that length; each is looked up by a HEAD.",
        "Frozen: FIFREEZE on the cache's file system, ext4 on a loop device; needs root.",
    ]
    return result


def _once(plan: Plan, server: BenchServer, arm: Arm) -> Row:
    plan.say(f"lag: {arm.name}")
    before = server.sent()
    folder = tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm" if arm.settings["place"] == "memory" else None)
    try:
        row = run_arm(arm, {"run_dir": folder, "cache_dir": f"{folder}/cache"}, _TIMEOUT_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sent = server.sent().since(before)
    if "opens" in arm.settings:
        row["looked_up"] = found = sent.request_count - sent.get_count
        assert found, "expected a manifest whose names are looked up, got none: it was not read to its end"
    if arm.settings["reads"]:
        row["gets_per_sample"] = found = sent.get_count / max(1, row["samples"])
        assert found >= _GETS_PER_SAMPLE_LEAST, f"expected samples from the store, got {found:.2f} GETs for each"
    return row


def _objects(folder: Path, count: int) -> None:
    """Make objects of which many share their bytes, which nobody looks at: names are links."""
    folder.mkdir(parents=True)
    body = folder / "000000.jpg"
    body.write_bytes(os.urandom(_OBJECT_BYTES))
    for number in range(1, count):
        (folder / f"{number:06d}.jpg").hardlink_to(body)


def _manifest(path: Path, count: int) -> None:
    """Write a manifest of 48 MiB, whose names are those of the objects, again and again."""
    names = b"".join(b',"%b/%06d.jpg"' % (_FOLDER.encode(), number) for number in range(count))
    head = b'[{"prefix": "s3://%b/"}' % BUCKET.encode()
    path.write_bytes(head + names * (_MANIFEST_BYTES // len(names)) + b"]")
