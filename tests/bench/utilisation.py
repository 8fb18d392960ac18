"""Bench: how much of its time an accelerator works, fed by a DataLoader of one worker, by one of many, and by feedd."""

from __future__ import annotations

import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.dataset import BUCKET
from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.plan import PREFETCH_FACTOR, run_with_empty_cache
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 300.0
_BATCH_SIZE = 32
_LIMIT_STEP_S = 0.005  # 6,400 pictures a second
_CALIBRATIONS = 3
_ALONE = "decoding alone, all cores"
_MODULES = {"feedd": "utilisation_feedd"}
COLUMNS = (
    Column("utilisation", "utilisation", scale=100, digits=1, spread=True),
    Column("samples/s", "samples_per_s", digits=0, spread=True),
    Column("CPU ms/sample", "cpu_ms_per_sample", digits=2),
)


def run(plan: Plan) -> Result:
    """Measure a step that one worker can feed for half of the time."""
    arms = _arms(plan)
    plan.say("utilisation: how long one worker takes for a batch")
    batch_s = statistics.median(run_arm(arms[0], {}, _TIMEOUT_S)["batch_s"] for _ in range(_CALIBRATIONS))
    return _measured(plan, "utilisation", batch_s / 2, arms)


def run_limit(plan: Plan) -> Result:
    """Measure a step that is shorter than anybody can feed, beside decoding alone."""
    return _measured(plan, "utilisation_limit", _LIMIT_STEP_S, [*_arms(plan), _alone(plan, _cores())])


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _arms(plan: Plan) -> list[Arm]:
    cores = _cores()
    names = ("DataLoader, 1 worker", f"DataLoader, {cores} workers", "feedd")
    settings: dict[str, Any] = {
        "folder": str(plan.data.root / BUCKET / "tar"),
        "batch_size": _BATCH_SIZE,
        "prefetch_factor": PREFETCH_FACTOR,
        "warm_batches": 4 if plan.quick else 16,
        "batch_count": 16 if plan.quick else 48,
    }
    return [
        Arm(
            name,
            f"tests.bench.arms.{_MODULES.get(name, 'utilisation_torch')}",
            Path(sys.executable),
            {"OMP_NUM_THREADS": "1"},
            {**settings, "workers": 1 if "1 worker" in name else cores, "step_s": 0.0},
        )
        for name in names
    ]


def _alone(plan: Plan, cores: int) -> Arm:
    """Return the arm that decodes the same pictures with feedd's codec, and does nothing else."""
    settings = {
        "folder": str(plan.data.root / BUCKET / "tar"),
        "workers": cores,
        "sample_count": plan.data.shape.sample_count,
    }
    return Arm(_ALONE, "tests.bench.arms.decode_alone", Path(sys.executable), {}, settings)


def _measured(plan: Plan, name: str, step_s: float, arms: list[Arm]) -> Result:
    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"{name}: round {round_index}, {arm.name}")
        return run_with_empty_cache(arm, _TIMEOUT_S)

    timed = [arm if arm.name == _ALONE else replace(arm, settings={**arm.settings, "step_s": step_s}) for arm in arms]
    outcomes = interleave(plan.chosen(timed), plan.round_count, once, plan.say, first_round=plan.first_round)
    title = f"JPEGs 500x375 -> 224, batches of {_BATCH_SIZE}, a step of {1000 * step_s:.1f} ms"
    result = Result(name, title, COLUMNS, outcomes)
    ours = result.outcome("feedd")
    if ours is not None and name == "utilisation" and (spread := ours.spread("utilisation")) is not None:
        result.verdicts = [Verdict("utilisation with feedd", spread.middle, 0.95, rounds=spread)]
    alone = result.outcome(_ALONE)
    if ours is not None and alone is not None:
        result.verdicts = [Verdict.of("feedd / decoding alone", ours, alone, "samples_per_s", 0.97)]
    result.notes = [
        (
            "Utilisation: the steps' time over the time of the loop, in percent. The step sleeps, as a loop does that"
            " waits for its accelerator."
        ),
        (
            "DataLoader: Pillow, Resize(256), CenterCrop(224), floating point, Normalize, from local tar files. feedd:"
            " the daemon with an empty cache over the same files; the accelerator would normalise."
        ),
    ]
    return result
