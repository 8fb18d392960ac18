"""Bench: 4 of 40 columns of Parquet, from S3 to torch tensors in the trainer; nothing cached; and what it fetches."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.arms.columns import ROW
from tests.bench.dataset import BUCKET
from tests.bench.harness import Arm, Row, interleave
from tests.bench.peers import ROOT
from tests.bench.plan import BATCH_SIZE, PREFETCH_FACTOR, WORKERS, run_with_empty_cache
from tests.bench.report import Column, Result, Verdict
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 900.0  # rows one by one: half a million of them
_LAYOUT_VERSION = 1
_COLUMN_COUNT = 40
_WANTED = (ROW, "c05", "c20", "c38")
_GROUP_ROWS = 65536
_OURS, _ARROW = "feedd", "pyarrow.dataset"
_SHUFFLED = ", shuffled"
_TARGET, _PEER_TARGET = 1.0, 30.0  # of pyarrow, and of the others, which read in the files' order
_BYTES_TARGET = 1.1
COLUMNS = (
    Column("k rows/s", "samples_per_s", scale=1e-3, spread=True, digits=0),
    Column("epoch, s", "epoch_s", digits=2),
    Column("1st batch, s", "first_batch_s", digits=2),
    Column("CPU us/row", "cpu_us_per_sample", digits=2),
    Column("fetched / columns' bytes", "sent_share", digits=3),
)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How large the data set is.

    Attributes:
        shard_count: files.
        shard_rows: rows of each, a multiple of the rows of a row group.
    """

    shard_count: int
    shard_rows: int

    @property
    def row_count(self) -> int:
        """Rows in all."""
        return self.shard_count * self.shard_rows


_FULL = _Shape(16, 8 * _GROUP_ROWS)
_SLOW_SHARDS = 1  # of them for the arms of datasets: with rows one by one it takes a minute for each 300,000
_QUICK = _Shape(4, _GROUP_ROWS)
_TOUCHED_BYTES = 1 << 30  # more than any arm writes into memory that is new


def run(plan: Plan) -> Result:
    """Measure."""
    shape = _QUICK if plan.quick else _FULL
    plan.say("columns: making what is missing")
    root = _prepare(shape)
    own_bytes = sum(map(_own_bytes, sorted((root / BUCKET / "parquet").iterdir())))
    with BenchServer(root) as server:
        arms = [arm for arm in _arms(plan, shape, server) if not plan.arms or arm.name in plan.arms]

        def once(arm: Arm, round_index: int) -> Row:
            plan.say(f"columns: round {round_index}, {arm.name}")
            before = server.sent()
            row = run_with_empty_cache(arm, _TIMEOUT_S)
            sent = server.sent().since(before)
            return row | {"sent_share": sent.body_bytes / own_bytes, "gets": sent.get_count}

        outcomes = interleave(arms, plan.round_count, once, plan.say, first_round=plan.first_round)
    title = f"{len(_WANTED)} of {_COLUMN_COUNT} columns of {shape.row_count} rows of Parquet, batches of {BATCH_SIZE}"
    result = Result("columns", title, COLUMNS, outcomes)
    for peer in outcomes:
        order = _SHUFFLED if peer.name.endswith(_SHUFFLED) else ""
        ours = result.outcome(_OURS + order)
        if ours is None or ours.failure or peer is ours or peer.failure:
            continue
        target = _TARGET if peer.name.startswith(_ARROW) else _PEER_TARGET
        result.verdicts.append(Verdict.of(f"{ours.name} / {peer.name}", ours, peer, "samples_per_s", target))
    result.notes = [
        f"feedd: a daemon with {WORKERS} decode workers, an empty cache, and its client in one trainer process.",
        "pyarrow.dataset: in the trainer's process; it keeps nothing for a 2nd epoch.",
        "shuffled: feedd draws from one file of 8 row groups at a time, in random order; pyarrow from 4 row groups.",
        f"datasets: streamed by HTTP from the same server, {WORKERS} torch workers; it keeps nothing for a 2nd epoch.",
        f"The arms of datasets read {_SLOW_SHARDS} of the {shape.shard_count} files: their rate does not depend on it.",
        f"Fetched bytes: at most {_BYTES_TARGET} times those of the columns is what is asked of feedd.",
    ]
    return result


def _arms(plan: Plan, shape: _Shape, server: BenchServer) -> list[Arm]:
    shared: dict[str, Any] = {
        "batch_size": BATCH_SIZE,
        "columns": list(_WANTED),
        "sample_count": shape.row_count,
        "workers": WORKERS,
        "prefetch_factor": PREFETCH_FACTOR,
        "touched_bytes": _TOUCHED_BYTES,
    }
    imports = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "client")))}  # this tree's, wherever it lies
    ours = {**shared, "url": f"s3://{BUCKET}/parquet/", "shuffled": False}
    mixed = {**ours, "shuffled": True}
    environment = {**imports, **server.environment}
    python = Path(sys.executable)
    arms = [
        Arm(_OURS, "tests.bench.arms.columns_feedd", python, environment, ours),
        Arm(_ARROW, "tests.bench.arms.columns_pyarrow", python, environment, ours),
        Arm(_OURS + _SHUFFLED, "tests.bench.arms.columns_feedd", python, environment, mixed),
        Arm(_ARROW + _SHUFFLED, "tests.bench.arms.columns_pyarrow", python, environment, mixed),
    ]
    if plan.peers is None:
        return arms
    urls = [f"{server.url}/{BUCKET}/parquet/{_name(shard)}" for shard in range(shape.shard_count)]
    for name, batched in (("datasets, DataLoader", False), ("datasets, its own batches", True)):
        rows = _SLOW_SHARDS * shape.shard_rows
        settings = {**shared, "urls": urls[:_SLOW_SHARDS], "batched": batched, "sample_count": rows}
        environment = {**plan.peers.environment, "HF_HUB_OFFLINE": "1"}
        arms.append(Arm(name, "tests.bench.arms.columns_datasets", plan.peers.python, environment, settings))
    return arms


def _name(shard: int) -> str:
    return f"shard-{shard:06d}.parquet"


def _prepare(shape: _Shape) -> Path:
    """Return the folder to serve; files that are there already are kept."""
    base = Path(os.environ.get("FEEDD_BENCH_DATA") or Path(tempfile.gettempdir()) / "feedd-bench")
    root = base / f"columns-{_LAYOUT_VERSION}-{shape.shard_count}x{shape.shard_rows}"
    folder = root / BUCKET / "parquet"
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shape.shard_count):
        path = folder / _name(shard)
        if not path.exists():
            source = np.random.default_rng(shard)
            columns: dict[str, Any] = {
                f"c{number:02}": source.random(shape.shard_rows, np.float32) for number in range(_COLUMN_COUNT - 1)
            }
            columns[ROW] = np.arange(shape.shard_rows, dtype=np.int64) + shard * shape.shard_rows
            half = path.with_suffix(".half")
            pq.write_table(pa.table(columns), half, row_group_size=_GROUP_ROWS)
            half.rename(path)
    return root


def _own_bytes(path: Path) -> int:
    """Return what the wanted columns take in a file."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in _WANTED)
