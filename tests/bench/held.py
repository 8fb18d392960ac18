"""Bench: how long large texts of strangers hold the daemon's event loop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.arms.held import NAMES
from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 120.0
_BYTES, _QUICK_BYTES = 48 << 20, 1 << 20
_HELD_S_MAX = 0.05
COLUMNS = (
    Column("longest hold, ms", "held_s", scale=1e3, digits=1, spread=True),
    Column("read in, s", "took_s", digits=2),
    Column("peak RSS, MB", "peak_resident_bytes", scale=1e-6, digits=0),
    Column("MB given", "given_bytes", scale=1e-6, digits=1),
)


def run(plan: Plan) -> Result:
    """Measure; one table."""
    settings = {"size_bytes": _QUICK_BYTES if plan.quick else _BYTES}
    names = [name for name in NAMES if not plan.arms or name in plan.arms]
    arms = [
        Arm(name, "tests.bench.arms.held", Path(sys.executable), settings={**settings, "text": name}) for name in names
    ]

    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"held: round {round_index}, {arm.name}")
        return run_arm(arm, {}, _TIMEOUT_S, watch_resident=True)

    title = f"texts of {settings['size_bytes'] >> 20} MiB: how long the event loop is held while each is read"
    result = Result("held", title, COLUMNS, interleave(arms, plan.round_count, once, plan.say, first_round=1))
    for outcome in result.outcomes:
        held_s = outcome.middle("held_s")
        if held_s is not None:
            text = f"{outcome.name}: longest hold / {_HELD_S_MAX * 1e3:.0f} ms"
            result.verdicts.append(Verdict(text, held_s / _HELD_S_MAX, 1.0, at_least=False))
    result.notes = [
        "Hold: how much later than asked a loop woke that sleeps 1 ms at a time; a busy machine adds to it."
    ]
    return result
