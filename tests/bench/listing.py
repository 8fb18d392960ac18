"""Bench: how a daemon learns what a dataset holds: pages one by one, ranges of pages, and a frozen manifest."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.dataset.frozen_manifest import Head, Manifest, render
from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.plan import run_with_empty_cache
from tests.bench.report import Column, Result, Verdict
from tests.bench.s3 import BenchServer
from tests.fakes.s3.objects import numbered_etag, numbered_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.harness import Outcome
    from tests.bench.plan import Plan

_TIMEOUT_S = 300.0
_KEYS, _QUICK_KEYS = 100_000, 20_000
_LATENCIES_MS = (50.0, 100.0)
_SHARDS, _QUICK_SHARDS = 1_000_000, 20_000
_SAMPLES = 100
_REQUESTS_MORE, _OPEN_CPU_S, _OPEN_BYTES, _TURN_S = 1.10, 2.0, 150e6, 0.1
LISTING_COLUMNS = (
    Column("s", "took_s", digits=2, spread=True),
    Column("requests", "request_count", digits=0),
    Column("CPU s", "cpu_s", digits=2, spread=True),
    Column("objects", "object_count", digits=0),
)
OPEN_COLUMNS = (
    Column("open, s", "first_open_s", digits=2, spread=True),
    Column("CPU s", "first_open_cpu_s", digits=2, spread=True),
    Column("serving loop, CPU s", "first_open_loop_s", digits=2),
    Column("open + 1st batch, s", "first_batch_s", digits=2),
    Column("requests besides shards", "first_listing_count", digits=0),
    Column("peak memory MB", "peak_bytes", scale=1e-6, digits=0, spread=True),
    Column("MB for the dataset", "rise_bytes", scale=1e-6, digits=0, spread=True),
    Column("health max in the open, ms", "open_answer_s", scale=1e3, digits=0, spread=True),
)


def run(plan: Plan) -> Result:
    """Measure listings one by one and by ranges."""
    count = _QUICK_KEYS if plan.quick else _KEYS
    outcomes: list[Outcome] = []
    result = Result("listing", f"{count:,} keys, from the request to the sorted objects", LISTING_COLUMNS, outcomes)
    for latency_ms in _LATENCIES_MS:
        with _bucket(count, _tar()) as root, BenchServer(root, latency_ms, numbered=True) as server:
            arms = [
                _lister(server, f"{latency_ms:g} ms, {name}", in_flight)
                for name, in_flight in (("one by one", 1), ("by ranges", 16))
            ]
            found = interleave(
                plan.chosen(arms), plan.round_count, lambda arm, _: run_arm(arm, {}, _TIMEOUT_S), plan.say
            )
        outcomes += found
        if len(found) == 2:
            result.verdicts += _faster(found, f"{latency_ms:g} ms")
    return result


def _lister(server: BenchServer, name: str, in_flight: int) -> Arm:
    settings = {"url": "s3://listing/train/", "in_flight": in_flight}
    return Arm(name, "tests.bench.arms.listing", Path(sys.executable), server.environment, settings)


def _faster(found: list[Outcome], name: str) -> list[Verdict]:
    digests = {row["digest"] for outcome in found for row in outcome.rounds}
    assert len(digests) == 1, "expected the same objects in the same order"
    serial, ranges = found
    times = (serial.middle("took_s") or 0.0) / (ranges.middle("took_s") or 1.0)
    requests = (ranges.middle("request_count") or 0.0) / (serial.middle("request_count") or 1.0)
    return [
        Verdict(f"{name}: one by one / by ranges, time", times, 3.0),
        Verdict(f"{name}: requests by ranges / one by one", requests, _REQUESTS_MORE, at_least=False),
    ]


def run_frozen(plan: Plan) -> Result:
    """Measure opens of a listed dataset and of a frozen one."""
    count = _QUICK_SHARDS if plan.quick else _SHARDS
    tar = _tar()
    with _bucket(count, tar) as root:
        file = root / "listing" / "files" / "train" / "_feedd_manifest" / "00000001.feedd"
        file.parent.mkdir(parents=True)
        file.write_bytes(render(_manifest(count, len(tar))))
        with BenchServer(root, numbered=True) as server:
            arms = [_opener(server, "listed", "s3"), _opener(server, "frozen manifest", "frozen+s3")]
            outcomes = interleave(
                plan.chosen(arms), plan.round_count, lambda arm, _: _once(arm), plan.say, first_round=1
            )
        size = file.stat().st_size
    title = f"Opening {count:,} shards in a daemon, then 16 batches; the manifest has {size / 1e6:.1f} MB"
    result = Result("frozen", title, OPEN_COLUMNS, outcomes)
    result.notes = ["The dataset's memory is the peak of anonymous memory beyond that of the idle daemon."]
    frozen = next((one for one in outcomes if one.name.startswith("frozen")), None)
    if frozen is not None:
        for figure, most, text in (
            ("first_listing_count", 2.0, "requests / 2"),
            ("first_open_cpu_s", _OPEN_CPU_S, f"CPU / {_OPEN_CPU_S:g} s"),
            ("rise_bytes", _OPEN_BYTES, f"memory / {_OPEN_BYTES / 1e6:g} MB"),
            ("open_answer_s", _TURN_S, f"health / {_TURN_S:g} s"),
        ):
            middle = frozen.middle(figure)
            if middle is not None:
                result.verdicts.append(Verdict(f"frozen manifest: {text}", middle / most, 1.0, at_least=False))
    return result


def _opener(server: BenchServer, name: str, scheme: str) -> Arm:
    settings: dict[str, Any] = {
        "url": f"{scheme}://listing/train/",
        "field_name": "cls",
        "field": "int",
        "batch_size": 256,
        "batches": 16,
        "window_shards": 4,
        "prefetch": 8,
        "workers": 1,
    }
    return Arm(name, "tests.bench.arms.many_shards", Path(sys.executable), server.environment, settings)


def _once(arm: Arm) -> Row:
    row = run_with_empty_cache(arm, _TIMEOUT_S)
    row["rise_bytes"] = row["peak_bytes"] - row["idle_bytes"]
    return row


def _tar() -> bytes:
    """Return a shard of numbers."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number in range(_SAMPLES):
            member = tarfile.TarInfo(f"{number:06d}.cls")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"%3d" % number))
    return file.getvalue()


def _manifest(count: int, size_bytes: int) -> Manifest:
    """Return the manifest that ``feedd index --manifest`` writes of the bucket."""
    keys = [numbered_key(number, ".tar").removeprefix("train/") for number in range(count)]
    tags = b"".join(bytes.fromhex(numbered_etag(number)) for number in range(count))
    width = len(keys[0])
    return Manifest(
        Head(objects=count, key_bytes=0, tag_bytes=0, names=("x.tar",)),
        "".join(keys).encode(),
        range(0, count * width + 1, width),
        np.full(count, size_bytes, np.int64),
        tags,
        range(0, len(tags) + 1, len(tags) // count),
        np.full(count, _SAMPLES, np.int64),
        np.zeros(count, np.uint16),
        np.zeros(count, np.uint16),
    )


@contextlib.contextmanager
def _bucket(count: int, content: bytes) -> Iterator[Path]:
    """A folder of buckets on tmpfs: one bucket of ``count`` objects with this content."""
    root = Path(tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm"))
    try:
        file = root / "listing" / f"{count}.tar"
        file.parent.mkdir()
        file.write_bytes(content)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
