"""Bench: what measuring costs. Epochs of tokens take turns: with all metrics and step times, and with none of them."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.harness import Arm, Outcome, Spread, run_arm
from tests.bench.peers import ROOT
from tests.bench.plan import BATCH_SIZE, WORKERS, empty_folder
from tests.bench.report import Column, Result, Verdict
from tests.bench.tokens import FULL, QUICK, WINDOWS, prepare

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 200.0
COLUMNS = (
    Column("batches/s", "batches_per_s", spread=True, digits=0),
    Column("CPU ms/batch", "cpu_ms_per_batch", digits=4),
)


def run(plan: Plan) -> Result:
    """Measure; each round is a daemon and a trainer that switch measuring on and off from epoch to epoch."""
    shape = QUICK if plan.quick else FULL
    root = prepare(shape, None)
    arm = Arm(
        "feedd",
        "tests.bench.arms.measuring",
        Path(sys.executable),
        {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "client")))},
        {
            "url": f"file://{root}/bin/",
            "field": WINDOWS,
            "batch_size": BATCH_SIZE,
            "sample_count": shape.sample_count,
            "workers": WORKERS,
            "pairs": 4 if plan.quick else 40,
        },
    )
    on, off = Outcome("measured"), Outcome("not measured")
    ratios = []
    for round_index in range(plan.round_count):
        plan.say(f"measuring: round {round_index + 1}")
        with empty_folder() as folder:
            (folder / "cache").mkdir()
            row = run_arm(arm, {"cache_dir": str(folder / "cache"), "run_dir": str(folder)}, _TIMEOUT_S)
        on.rounds.append(row["on"])
        off.rounds.append(row["off"])
        ratios.append(row["time_ratio"])
    title = f"tokens, batches of {BATCH_SIZE}, caches full, epochs in turn"
    result = Result("measuring", title, COLUMNS, [on, off])
    middle = statistics.median(ratios)
    result.verdicts = [
        Verdict("time of an epoch, measured over not measured", middle, 1.01, at_least=False, rounds=Spread.of(ratios))
    ]
    return result
