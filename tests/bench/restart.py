"""Bench: how long a daemon takes to end, and how long its trainer waits, where another one takes its place."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.report import Column, Result, Verdict
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 120.0
_SHARDS, _SHARD_SAMPLES = 16, 200
_EXIT_S_MAX, _PAUSE_S_MAX = 3.0, 0.5
_IN_TURN = "SIGTERM, 20 daemons stand by in turn"
COLUMNS = (
    Column("SIGTERM to exit, s", "exit_s", digits=2, spread=True),
    Column("trainer's longest pause, s", "pause_s", digits=2, spread=True),
    Column("median of its pauses, s", "median_pause_s", digits=2, spread=True),
    Column("load", "load", digits=1),
    Column("reconnects", "reconnects", digits=0),
)


def run(plan: Plan) -> Result:
    """Measure."""
    store = Path(tempfile.mkdtemp(prefix="feedd-bench-"))
    try:
        (store / "data" / "train").mkdir(parents=True)
        for shard in range(_SHARDS):
            (store / "data" / "train" / f"{shard}.tar").write_bytes(numbered(shard, _SHARD_SAMPLES))
        settings = {"store": str(store)}
        arms = [
            Arm(name, "tests.bench.arms.restart_feedd", Path(sys.executable), settings={**settings, **more})
            for name, more in (
                ("SIGTERM, a daemon stands by", {"way": "standby"}),
                ("kill -9, a daemon stands by", {"way": "standby", "kills": True}),
                (_IN_TURN, {"way": "standby", "times": 3 if plan.quick else 20}),
                ("SIGTERM, then start", {"way": "start"}),
                ("kill -9, then start", {"way": "start", "kills": True}),
            )
        ]

        def once(arm: Arm, round_index: int) -> Row:
            plan.say(f"restart: round {round_index}, {arm.name}")
            folder = tempfile.mkdtemp(prefix="fb-", dir="/tmp")  # a short path, for its socket
            try:
                return run_arm(arm, {"cache_dir": f"{folder}/cache", "run_dir": folder, "workers": 1}, _TIMEOUT_S)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        title = "a daemon is replaced under a trainer with steps of 10 ms, prefetch=4"
        outcomes = interleave(plan.chosen(arms), plan.round_count, once, plan.say, first_round=1)
    finally:
        shutil.rmtree(store, ignore_errors=True)
    result = Result("restart", title, COLUMNS, outcomes)
    for outcome in outcomes:
        exit_s, pause_s = outcome.middle("exit_s"), outcome.middle("pause_s")
        if "stand" not in outcome.name or exit_s is None or pause_s is None:
            continue
        result.verdicts.append(Verdict("seconds from SIGTERM to exit", exit_s, _EXIT_S_MAX, at_least=False))
        result.verdicts.append(Verdict("seconds of pause", pause_s, _PAUSE_S_MAX, at_least=False))
    result.notes = [
        "A pause is the longest time between two batches, less the step, from the start of a standby to that"
    ]
    result.notes.append("of the next one. Without a standby it holds the next daemon's start: imports, workers, cache.")
    result.notes.append("The load is the mean number of running processes over the last minute, when the arm ended.")
    return result
