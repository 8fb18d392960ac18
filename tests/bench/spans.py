"""Bench: a file of tokens that is larger than the cache: first batch, epoch, and the bytes that each node takes."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedd.units import GIB, MIB, format_size
from tests.bench.harness import Arm, Row, interleave
from tests.bench.plan import run_with_empty_cache
from tests.bench.report import Column, Result, Verdict
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.bench.plan import Plan

_TIMEOUT_S = 240.0
_SIZE, _QUICK_SIZE = 8 * GIB, GIB
_WHOLE_BYTES = GIB
_CACHE = "256MiB"
_TOKENS, _BATCH_SIZE = 2049, 64
_FIRST_S, _RATIO, _SPANS = 0.5, 1.005, 2
_SPAN_BYTES = 64 * MIB
COLUMNS = (
    Column("iter() to 1st batch, s", "first_batch_s", digits=3, spread=True),
    Column("epoch, s", "epoch_s", digits=2, spread=True),
    Column("GB/s", "bytes_per_s", scale=1e-9, digits=2),
    Column("bytes from S3 / file", "ratio", digits=4),
    Column("most of one node / its share", "node_ratio", digits=4),
    Column("rows", "rows", digits=0),
)


def run(plan: Plan) -> Result:
    """Measure."""
    size_bytes = _QUICK_SIZE if plan.quick else _SIZE
    root = Path(tempfile.mkdtemp(prefix="feedd-bench-"))
    try:
        for name, size in (("large", size_bytes), ("whole", _WHOLE_BYTES)):
            _sparse(root / name / "t" / "train.bin", size)
        with BenchServer(root) as server:
            environment = server.environment
            whole = {**environment, "FEEDD_FETCH__SPAN_SIZE": "0"}
            large = format_size(size_bytes)
            arms = [
                _arm(f"{large}, in order", environment, size_bytes),
                _arm(f"{large}, shuffled, windows of 1 span", environment, size_bytes, window_shards=1),
                _arm(f"{large}, 4 nodes in turn", environment, size_bytes, nodes=4),
                _arm("1GiB, in spans", environment, _WHOLE_BYTES, bucket="whole", cache_size="2GiB"),
                _arm("1GiB, whole", whole, _WHOLE_BYTES, bucket="whole", cache_size="2GiB"),
            ]

            def once(arm: Arm, round_index: int) -> Row:
                plan.say(f"spans: round {round_index}, {arm.name}")
                row = run_with_empty_cache(arm, _TIMEOUT_S)
                size = arm.settings["size_bytes"]
                row["bytes_per_s"] = size / row["epoch_s"]
                row["ratio"] = row["sent_bytes"] / size
                row["node_ratio"] = row["most_bytes"] * arm.settings["nodes"] / size
                return row

            outcomes = interleave(plan.chosen(arms), plan.round_count, once, plan.say, first_round=1)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    result = Result("spans", f"a file of tokens through a cache of {_CACHE}", COLUMNS, outcomes)
    for outcome in outcomes[:1]:
        first_s, ratio = outcome.middle("first_batch_s"), outcome.middle("ratio")
        if first_s is not None and ratio is not None:
            ahead = _SPANS * _SPAN_BYTES / size_bytes
            result.verdicts.append(Verdict("seconds to the first batch", first_s, _FIRST_S, at_least=False))
            result.verdicts.append(Verdict("bytes from S3 / file", ratio, _RATIO + ahead, at_least=False))
    result.notes = [
        f"Rows of {_TOKENS:,} tokens of uint16, batches of {_BATCH_SIZE}. The daemon has been ready for 1 s.",
        "Bytes are counted by the server, with the listing and the first spans of the next epoch, fetched in advance.",
        "The file is sparse, so its bytes cost the server no disk.",
        "The file of 1 GiB has a cache of 2 GiB, because a whole object must fit.",
    ]
    return result


def _arm(
    name: str,
    environment: Mapping[str, str],
    size_bytes: int,
    *,
    bucket: str = "large",
    nodes: int = 1,
    window_shards: int = 0,
    cache_size: str = _CACHE,
) -> Arm:
    settings: dict[str, Any] = {
        "url": f"s3://{bucket}/t/",
        "field": f"tokens:uint16:{_TOKENS}",
        "batch_size": _BATCH_SIZE,
        "size_bytes": size_bytes,
        "nodes": nodes,
        "window_shards": window_shards,
        "cache_size": cache_size,
        "workers": 1,
    }
    return Arm(name, "tests.bench.arms.spans_feedd", Path(sys.executable), dict(environment), settings)


def _sparse(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)
