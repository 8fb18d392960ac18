"""Bench: time and memory of planning: an epoch beside mosaicml-streaming, a million shards, going on anywhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from tests.bench.harness import Outcome
    from tests.bench.plan import Plan

_TIMEOUT_S = 300.0
_DEFAULT_ALGORITHM = "py1e"
_ALGORITHMS = (_DEFAULT_ALGORITHM, "py1s", "naive")
_BATCH_SIZE = 256
_WINDOW_SHARDS = 4  # the daemon's default
_NODES, _MANY_NODES = 8, 1024
_MB = 1e-6
_OPEN_S, _OPEN_BYTES, _RESUME_S = 2.0, 500e6, 0.05
_POSITIONS, _QUICK_POSITIONS = 100, 10
_TIMES_LESS = 20.0
EPOCH_COLUMNS = (
    Column("to 1st batch, ms", "first_s", scale=1e3, digits=1, spread=True),
    Column("order of all, ms", "order_s", scale=1e3, digits=1, spread=True),
    Column("all batches, ms", "epoch_s", scale=1e3, digits=0, spread=True),
    Column("next epoch's 1st, ms", "next_s", scale=1e3, digits=1),
    Column("MB to 1st batch", "first_bytes", scale=_MB, digits=1),
    Column("MB, all batches", "epoch_bytes", scale=_MB, digits=1),
    Column("RSS rise MB, all", "resident_bytes", scale=_MB, digits=1),
    Column("samples", "samples", digits=0),
)
HUGE_COLUMNS = (
    Column("assign + 1st window, s", "first_s", digits=2, spread=True),
    Column("assign, s", "assign_s", digits=2),
    Column("1st window, s", "window_s", digits=3),
    Column("RSS MB until then", "resident_bytes", scale=_MB, digits=0, spread=True),
    Column("steps of all, s", "steps_s", digits=2),
    Column("all three, s", "open_s", digits=2, spread=True),
    Column("RSS MB", "all_resident_bytes", scale=_MB, digits=0),
)
RESUME_COLUMNS = (
    Column("median, ms", "median_s", scale=1e3, digits=2, spread=True),
    Column("worst, ms", "worst_s", scale=1e3, digits=2, spread=True),
    Column("with assignment, median", "both_median_s", scale=1e3, digits=2),
    Column("worst", "both_worst_s", scale=1e3, digits=2),
    Column("steps of an epoch", "steps", digits=0),
)


def run(plan: Plan) -> list[Result]:
    """Measure all three; every arm and round is a process of its own."""
    return [_epoch(plan), _huge(plan), _resume(plan)]


def _dataset(plan: Plan, shard_count: int, shard_samples: int, node_count: int) -> dict[str, Any]:
    shards = shard_count // 20 if plan.quick else shard_count
    return {
        "shard_count": shards,
        "sample_count": shards * shard_samples,
        "node_count": node_count,
        "node_rank": node_count - 1,
        "batch_size": _BATCH_SIZE,
        "window_shards": _WINDOW_SHARDS,
        "sharding": "key",
    }


def _feedd(name: str, module: str, settings: dict[str, Any]) -> Arm:
    return Arm(name, f"tests.bench.arms.{module}", Path(sys.executable), settings=settings)


def _measure(plan: Plan, result: Result, arms: list[Arm]) -> Result:
    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"{result.name}: round {round_index}, {arm.name}")
        return run_arm(arm, {}, _TIMEOUT_S)

    result.outcomes = interleave(arms, plan.round_count, once, plan.say, first_round=plan.first_round)
    return result


def _of(outcome: Outcome | None, figure: str) -> float:
    """Return a figure's median; infinite where there is none, so that no target is met by it."""
    found = outcome.middle(figure) if outcome else None
    return float("inf") if found is None else found


def _epoch(plan: Plan) -> Result:
    settings = _dataset(plan, 10_000, 1000, _NODES)
    arms = [_feedd("feedd", "plan_feedd", settings)]
    if plan.peers is not None:
        arms[:0] = [
            Arm(
                f"streaming, {algorithm}",
                "tests.bench.arms.plan_streaming",
                plan.peers.python,
                plan.peers.environment,
                {**settings, "algorithm": algorithm, "workers": 2},
            )
            for algorithm in _ALGORITHMS
        ]
    shape = f"{settings['sample_count']:,} samples in {settings['shard_count']:,} shards, 1 of {_NODES} nodes"
    result = _measure(plan, Result("plan_speed", f"an epoch of {shape}, shuffled", EPOCH_COLUMNS, []), arms)
    result.verdicts = _epoch_verdicts(result)
    result.notes = [
        "All: from what is known of each shard to the samples of the node's rank; workers and ranks started by nobody.",
        (
            "streaming, before its first batch: get_partitions and get_shuffle of all samples, as every node does,"
            " canonical nodes = nodes; its resampling, 1:1 here, and the shared memory between workers are left out."
        ),
        (
            "feedd, before its first batch: the node's shards, the steps of all ranks, the epoch's order of shards and"
            " the first window's of samples; a later window is planned when it is read. 'Order of all': with all"
            " windows, which is what streaming has at that point. 'All batches': with each batch's cursor, distinct"
            " shards and augmentation seeds, which streaming's plan does not hold."
        ),
        (
            f"Shuffle: feedd mixes windows of {_WINDOW_SHARDS} shards (about {_WINDOW_SHARDS}000 samples), py1e blocks"
            " of 500,000, py1s and naive all of a canonical node or of the dataset: what each is made for is not equal."
        ),
        "MB: most bytes allocated at once (tracemalloc, in a second pass that is not timed), known counts included.",
    ]
    return result


def _epoch_verdicts(result: Result) -> list[Verdict]:
    ours = result.outcome("feedd")
    verdicts = []
    for algorithm in _ALGORITHMS:
        peer = result.outcome(name := f"streaming, {algorithm}")
        if ours is None or peer is None:
            continue
        verdicts += [
            Verdict(f"{name} / feedd, {text}", _of(peer, figure) / _of(ours, figure), _TIMES_LESS)
            for text, figure in (("time to 1st batch", "first_s"), ("memory to 1st batch", "first_bytes"))
        ]
    default = result.outcome(f"streaming, {_DEFAULT_ALGORITHM}")
    if ours is not None and default is not None:
        verdicts += [
            Verdict(f"{default.name} / feedd, {text}", _of(default, figure) / _of(ours, figure), target)
            for text, figure, target in (
                ("time of the order of all samples of the node", "order_s", _TIMES_LESS),
                ("time of all batches of the node", "epoch_s", 1.0),
                ("memory over all batches of the node", "epoch_bytes", _TIMES_LESS),
            )
        ]
    return verdicts


def _huge(plan: Plan) -> Result:
    settings = _dataset(plan, 1_000_000, 1000, _MANY_NODES)
    variants: dict[str, dict[str, Any]] = {
        "by key": {"listing": False},
        "by size": {"sharding": "size", "listing": False},
        "by key, listing held": {"listing": True},
    }
    arms = [_feedd(name, "plan_huge", {**settings, **own}) for name, own in variants.items()]
    title = f"{settings['shard_count']:,} shards, 1 of {_MANY_NODES:,} nodes, until its first window"
    result = _measure(plan, Result("plan_speed, many", title, HUGE_COLUMNS, []), arms)
    for name in ("by key", "by size"):
        outcome = result.outcome(name)
        result.verdicts += [
            Verdict(f"{name}: time / 2 s", _of(outcome, "first_s") / _OPEN_S, 1.0, at_least=False),
            Verdict(f"{name}: RSS / 500 MB", _of(outcome, "resident_bytes") / _OPEN_BYTES, 1.0, at_least=False),
        ]
    result.notes = [
        "RSS: all the process has, interpreter and numpy, sizes and sample counts of all shards included, at its peak.",
        "Steps: how many all ranks of all nodes have (uneven='drop'), which an open needs too where asked for.",
        "Listing held: the daemon also has every object's key, size and ETag; that is no part of the plan.",
    ]
    return result


def _resume(plan: Plan) -> Result:
    positions = _QUICK_POSITIONS if plan.quick else _POSITIONS
    shapes = ((10_000, _NODES), (10_000, 1), (1_000_000, _MANY_NODES))
    arms = []
    for settings in (_dataset(plan, shard_count, 1000, nodes) for shard_count, nodes in shapes):
        name = f"{settings['shard_count']:,} shards, 1 of {settings['node_count']:,} nodes"
        arms.append(_feedd(name, "plan_resume", {**settings, "position_count": positions}))
    title = f"a fresh reader's rows at {positions} places of an epoch, all counts known"
    result = _measure(plan, Result("plan_speed, resume", title, RESUME_COLUMNS, []), arms)
    for arm in arms:
        worst_s = _of(result.outcome(arm.name), "worst_s")
        result.verdicts.append(Verdict(f"{arm.name}: worst / 50 ms", worst_s / _RESUME_S, 1.0, at_least=False))
    result.notes = [
        "Median and worst of the places of a round; shown is the median of the rounds. No anchors are used."
    ]
    return result
