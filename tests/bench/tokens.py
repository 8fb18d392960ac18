"""Bench: rows of 2,049 tokens, batches of 256, shuffled, from warm caches to torch tensors in the trainer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.arms.tokens import TOKENS
from tests.bench.harness import Arm, Row, interleave
from tests.bench.peers import ROOT
from tests.bench.plan import BATCH_SIZE, PREFETCH_FACTOR, WORKERS, run_with_empty_cache
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from tests.bench.peers import Peers
    from tests.bench.plan import Plan

_TIMEOUT_S = 240.0
_LAYOUT_VERSION = 1
_WINDOW_SHARDS = 4
_TARGETS = {
    "mosaicml-streaming": 15.0,
    "litdata": 8.0,
    "DataLoader, memmap": 4.0,
    "get_batch, local memmap": 1.0,
    "rows[idx], local memmap": 1.0,
}
COLUMNS = (
    Column("batches/s", "batches_per_s", spread=True, digits=0),
    Column("within epochs", "batches_per_s_inside", digits=0),
    Column("M tokens/s", "tokens_per_s", scale=1e-6, digits=0),
    Column("CPU ms/batch", "cpu_ms_per_batch", digits=3),
    Column("of it the trainer", "trainer_ms_per_batch", digits=3),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the data set is; an epoch is a whole number of batches.

    Attributes:
        shard_count: files of raw tokens.
        shard_samples: rows of each.
    """

    shard_count: int
    shard_samples: int

    @property
    def sample_count(self) -> int:
        """Rows in all."""
        return self.shard_count * self.shard_samples


FULL = Shape(8, 16384)
QUICK = Shape(4, 2048)


def run(plan: Plan) -> Result:
    """Measure all who read tokens; one table."""
    shape = QUICK if plan.quick else FULL
    plan.say("tokens: making what is missing")
    root = prepare(shape, plan.peers)
    duration_s = 0.5 if plan.quick else 3.0
    arms = _arms(root, shape, plan.peers)

    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"tokens: round {round_index}, {arm.name}")
        return run_with_empty_cache(arm, _TIMEOUT_S, duration_s=duration_s)

    title = f"{shape.sample_count} rows of {TOKENS} tokens, batches of {BATCH_SIZE}, shuffled, caches full"
    outcomes = interleave(arms, plan.round_count, once, plan.say, first_round=plan.first_round)
    result = Result("tokens", title, COLUMNS, outcomes)
    for ours in (outcome for outcome in outcomes if outcome.name.startswith("feedd")):
        for name, target in _TARGETS.items():
            peer = result.outcome(name)
            if peer is not None and not ours.failure:
                result.verdicts.append(Verdict.of(f"{ours.name} / {name}", ours, peer, "batches_per_s", target))
    result.notes = [
        "Every arm takes whole epochs for the time given, after one that fills caches; each sample is checked for.",
        (
            f"Peers: {WORKERS} torch workers, kept from epoch to epoch, prefetch_factor {PREFETCH_FACTOR}; their data"
            " lie where they read them, nothing is fetched."
        ),
        "The arms 'local memmap' have no workers: the trainer's own thread makes each batch.",
        f"feedd: a daemon with {WORKERS} decode workers and its client in one trainer process; views of slots.",
    ]
    return result


def _arms(root: Path, shape: Shape, peers: Peers | None) -> list[Arm]:
    shared: dict[str, Any] = {
        "batch_size": BATCH_SIZE,
        "sample_count": shape.sample_count,
        "workers": WORKERS,
        "prefetch_factor": PREFETCH_FACTOR,
        "window_shards": _WINDOW_SHARDS,
    }
    python = Path(sys.executable)

    def arm(name: str, module: str, **settings: Any) -> Arm:
        imports = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "client")))}  # this tree's, wherever it lies
        return Arm(name, f"tests.bench.arms.{module}", python, imports, {**shared, **settings})

    def peer(name: str, module: str, folder: str) -> list[Arm]:
        if peers is None:
            return []
        settings = {**shared, "folder": str(root / folder)}
        return [Arm(name, f"tests.bench.arms.{module}", peers.python, peers.environment, settings)]

    return [
        *peer("mosaicml-streaming", "tokens_mds", "mds"),
        *peer("litdata", "tokens_litdata", "litdata"),
        *(
            arm(name, "tokens_memmap", path=str(root / "all.bin"), way=way)
            for name, way in (
                ("DataLoader, memmap", "loader"),
                ("get_batch, local memmap", "get_batch"),
                ("rows[idx], local memmap", "rows"),
            )
        ),
        *([arm("feedd, MDS", "tokens_feedd", url=f"file://{root}/mds/")] if peers is not None else []),
        arm("feedd, .bin", "tokens_feedd", url=f"file://{root}/bin/", field=WINDOWS),
    ]


WINDOWS = json.dumps({"decode": "tokens", "dtype": "uint16", "count": TOKENS, "stride": TOKENS})


def prepare(shape: Shape, peers: Peers | None) -> Path:
    """Return the folder of the data set, making what is missing: raw tokens, and each peer's own format."""
    base = Path(os.environ.get("FEEDD_BENCH_DATA", str(Path(tempfile.gettempdir()) / "feedd-bench-data")))
    root = base / f"tokens-{_LAYOUT_VERSION}-{shape.shard_count}-{shape.shard_samples}"
    if not (root / "bin").exists():
        _make_files(root, shape)
    for form in ("mds", "litdata") if peers else ():
        target, partial = root / form, root / f"partial-{form}"
        if target.exists() or peers is None:
            continue
        shutil.rmtree(partial, ignore_errors=True)
        settings = {
            "format": form,
            "source": str(root / "bin"),
            "target": str(partial),
            "shard_samples": shape.shard_samples,
            "limit_bytes": shape.shard_samples * (TOKENS * 2 + 4) + 4096,
        }
        subprocess.run(
            [peers.python, "-m", "tests.bench.arms.write_tokens", json.dumps(settings)],
            cwd=ROOT,
            env={**os.environ, **peers.environment},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        partial.rename(target)  # only a whole format ever has its final name
    return root


def _make_files(root: Path, shape: Shape) -> None:
    """Write the tokens once in shards and once in one file; the first two of a row are its number."""
    partial = root / "partial-bin"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    draws = np.random.default_rng(0)
    with (root / "all.bin").open("wb") as whole:
        for shard in range(shape.shard_count):
            rows = draws.integers(0, 50257, (shape.shard_samples, TOKENS), np.uint16)
            numbers = np.arange(shape.shard_samples) + shard * shape.shard_samples
            rows[:, 0], rows[:, 1] = numbers & 0xFFFF, numbers >> 16
            (partial / f"shard-{shard:05d}.bin").write_bytes(rows.tobytes())
            whole.write(rows.tobytes())
    partial.rename(root / "bin")
