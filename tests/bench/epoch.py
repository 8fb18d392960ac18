"""Bench: one cold epoch of JPEGs from S3 into the training process, every contender from its own format."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.bench.harness import Arm, Row, interleave
from tests.bench.plan import BATCH_SIZE, PREFETCH_FACTOR, WORKERS
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 180.0
COLUMNS = (
    Column("samples/s from iter()", "samples_per_s", spread=True, digits=0),
    Column("from 1st request", "samples_per_s_from_request", digits=0),
    Column("after 1st batch", "samples_per_s_after_first", digits=0),
    Column("incl. process start", "process_samples_per_s", digits=0),
    Column("CPU ms/sample", "cpu_ms_per_sample", digits=2, spread=True),
    Column("1st batch s", "first_batch_s", digits=2),
    Column("GETs", "gets", digits=0),
    Column("MB from S3", "sent_bytes", scale=1e-6, digits=1),
    Column("peak PSS MB", "peak_pss_bytes", scale=1e-6, digits=0, warmup=True),
    Column("of it anonymous", "peak_anonymous_bytes", scale=1e-6, digits=0, warmup=True),
)


def run(plan: Plan) -> list[Result]:
    """Measure feedd and every installed peer: near, 20 ms away, and over TLS, as S3 is."""
    results = [_measured(plan, "")]
    for name, changes in (("_20ms", {"latency_ms": 20.0}), ("_tls", {"tls": True})):
        other = replace(plan, **changes, _stack=contextlib.ExitStack(), _server=None)
        try:
            results.append(_measured(other, name))
        finally:
            other.close()
    return results


def _measured(plan: Plan, suffix: str) -> Result:
    arms = [*plan.peer_arms(), plan.feedd_arm()]
    shape = plan.data.shape

    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"epoch{suffix}: round {round_index}, {arm.name}")
        return plan.once(arm, round_index, _TIMEOUT_S)

    where = f"{plan.latency_ms:g} ms to the first byte, {'TLS' if plan.tls else 'plain HTTP'}"
    title = f"{shape.sample_count} JPEGs 500x375 q90, cold, batch {BATCH_SIZE}, {WORKERS} workers, shuffled; {where}"
    outcomes = interleave(plan.chosen(arms), plan.round_count, once, plan.say, first_round=plan.first_round)
    result = Result(f"epoch{suffix}", title, COLUMNS, outcomes)
    result.verdicts = _verdicts(result)
    result.notes = [
        (
            "Compared: the whole epoch from iter() to StopIteration, torch's worker start and end included. feedd's"
            " daemon runs before iter(), as a node's daemon does; 'incl. process start' has its start and end in it."
        ),
        "CPU: whole process tree from iter() to the end (training process, workers, daemon, curl), not the S3 server.",
        "PSS: sampled in the round that is not counted. Cache files on tmpfs count only where they are mapped (feedd).",
        f"Look-ahead: torch prefetch_factor {PREFETCH_FACTOR}; {_look_ahead(arms)}",
        (
            "Shuffle, as each comes: feedd mixes the 2304 samples of 2 shards (window_shards=2), mosaicml-streaming"
            " blocks of 262144 samples, litdata blocks of 256 inside each chunk, webdataset a buffer of 1000 samples."
        ),
        "All arms decode with feedd.codecs.image.",
    ]
    return result


def _look_ahead(arms: list[Arm]) -> str:
    keys = ("predownload", "max_pre_download", "shuffle_buffer", "prefetch", "reader")
    named = (f"{arm.name}: {', '.join(f'{k}={arm.settings[k]}' for k in keys if k in arm.settings)}" for arm in arms)
    return "; ".join(named)


def _verdicts(result: Result) -> list[Verdict]:
    ours = result.outcome("feedd")
    peers = [one for one in result.outcomes if one.name != "feedd" and one.middle("samples_per_s")]
    if ours is None or not peers:
        return []
    best = max(peers, key=lambda one: one.middle("samples_per_s") or 0.0)
    return [
        Verdict.of(f"samples/s, feedd / {best.name} (the fastest peer)", ours, best, "samples_per_s", 1.15),
        Verdict.of(f"CPU per sample, feedd / {best.name}", ours, best, "cpu_ms_per_sample", 1.0, at_least=False),
    ]
