"""Bench: what a dataset costs a daemon by the number of its shards: to list, to open, to hold, to plan, to stream."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
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
_TOKENS, _BATCH_SIZE = 128, 256  # 64 KiB a batch
_BATCHES, _QUICK_BATCHES = 4000, 400
_SHARDS_READ = 100  # in which these batches lie, unless the dataset is one shard
_COUNTS, _QUICK_COUNTS = (1, 100, 10_000, 1_000_000), (1, 100, 10_000)
_ANSWER_S, _SHARD_BYTES, _LOOP_GROWTH = 0.5, 800.0, 2.0
COLUMNS = (
    Column("listing, CPU us/shard", "listing_us", digits=1),
    Column("open + 1st batch, s", "first_batch_s", digits=2, spread=True),
    Column("again, s", "again_batch_s", digits=3),
    Column("again, CPU us/shard", "again_us", digits=2),
    Column("next epoch's 1st, s", "next_first_s", digits=3),
    Column("loop us/batch, cold", "cold_loop_us", digits=0),
    Column("loop us/batch, cached", "warm_loop_us", digits=0, spread=True),
    Column("bytes/shard", "shard_bytes", digits=0),
    Column("anonymous MB", "held_bytes", scale=1e-6, digits=0),
    Column("health max, ms", "answer_s", scale=1e3, digits=0, spread=True),
)


def run(plan: Plan) -> Result:
    """Measure; one table."""
    counts, batches = (_QUICK_COUNTS, _QUICK_BATCHES) if plan.quick else (_COUNTS, _BATCHES)
    root = Path(tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm"))
    try:
        for count in counts:
            _write(root / _bucket(count) / str(count), batches * _BATCH_SIZE // (1 if count == 1 else _SHARDS_READ))
        with BenchServer(root, numbered=True) as server:
            arms = plan.chosen([_arm(server, count, batches) for count in counts])
            outcomes = interleave(
                arms, plan.round_count, lambda arm, number: _once(plan, arm, number), plan.say, first_round=1
            )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    title = f"{batches:,} batches of {_BATCH_SIZE} rows of {_TOKENS} tokens (64 KiB), shuffled, 1 rank"
    result = Result("shards", title, COLUMNS, outcomes)
    _compare(outcomes)
    result.verdicts = _verdicts(outcomes)
    result.notes = [
        f"Shards have {batches * _BATCH_SIZE // _SHARDS_READ:,} rows; the one shard has as many as {_SHARDS_READ}.",
        "Listing: CPU of the daemon for the first open without that of opening again, which uses the listing.",
        f"Figures of a shard are those beyond {_SHARDS_READ} shards.",
        "Again: a second session on the same listing. Its batches come from the cache, after the first session's.",
        "Bytes/shard: anonymous memory of the daemon after the first session's batches.",
        "Health: the longest time the health service took to answer while a session opened or an epoch began.",
    ]
    return result


def _arm(server: BenchServer, count: int, batches: int) -> Arm:
    settings: dict[str, Any] = {
        "url": f"s3://{_bucket(count)}/train/",
        "field": json.dumps({"decode": "tokens", "dtype": "uint16", "count": _TOKENS, "stride": _TOKENS}),
        "batch_size": _BATCH_SIZE,
        "batches": batches,
        "window_shards": 4,
        "prefetch": 16,
        "workers": 2,
        "shard_count": count,
    }
    name = f"{count:,} shard{'s' if count > 1 else ''}"
    return Arm(name, "tests.bench.arms.many_shards", Path(sys.executable), server.environment, settings)


def _once(plan: Plan, arm: Arm, round_index: int) -> Row:
    plan.say(f"shards: round {round_index}, {arm.name}")
    row = run_with_empty_cache(arm, _TIMEOUT_S)
    row["shard_count"] = arm.settings["shard_count"]
    return row


def _compare(outcomes: list[Outcome]) -> None:
    """Add the costs of each shard, beyond those of the arm with few shards in the same round."""
    few = next((one for one in outcomes if one.rounds and one.rounds[0]["shard_count"] == _SHARDS_READ), None)
    if few is None:
        return
    for outcome in outcomes:
        for row, base in zip(outcome.rounds, few.rounds, strict=False):
            more = row["shard_count"] - base["shard_count"]
            if more <= 0:
                continue
            again_s, first_s = (row[name] - base[name] for name in ("again_open_cpu_s", "first_open_cpu_s"))
            row["again_us"], row["listing_us"] = 1e6 * again_s / more, 1e6 * (first_s - again_s) / more
            row["shard_bytes"] = (row["held_bytes"] - base["held_bytes"]) / more


def _verdicts(outcomes: list[Outcome]) -> list[Verdict]:
    found = []
    base = next((one.middle("warm_loop_us") for one in outcomes if one.name.startswith(f"{_SHARDS_READ} ")), None)
    for outcome in outcomes:
        for figure, most, text in (
            ("answer_s", _ANSWER_S, f"health / {_ANSWER_S:g} s"),
            ("shard_bytes", _SHARD_BYTES, f"memory of a shard / {_SHARD_BYTES:g} bytes"),
            ("warm_loop_us", base or 0.0, f"loop of a batch / that with {_SHARDS_READ} shards"),
        ):
            middle = outcome.middle(figure)
            if middle is not None and most:
                target = _LOOP_GROWTH if figure == "warm_loop_us" else 1.0
                found.append(Verdict(f"{outcome.name}: {text}", middle / most, target, at_least=False))
    return found


def _bucket(count: int) -> str:
    return f"shards-{count}"


def _write(path: Path, rows: int) -> None:
    path.parent.mkdir()
    tokens = np.random.default_rng(rows).integers(0, 1 << 16, rows * _TOKENS, np.uint16)
    path.write_bytes(tokens.tobytes())
