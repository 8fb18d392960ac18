"""Bench: from a finished batch on the producer's side to a tensor in the trainer, against torch's own worker queue."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.plan import WORKERS
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_SIZES: dict[str, tuple[dict[str, Any], float]] = {
    "images 38.5 MB": ({"shape": [256, 224, 224, 3], "dtype": "uint8"}, 50.0),
    "tokens 1.05 MB": ({"shape": [256, 2049], "dtype": "uint16"}, 5.0),
}
_TORCH_PREFETCH = 2
_TIMEOUT_S = 120.0
COLUMNS = (
    Column("batches/s", "batches_per_s", spread=True, digits=0),
    Column("GB/s", "gigabytes_per_s", digits=2),
    Column("CPU ms/batch", "cpu_ms_per_batch", digits=3),
)


def _arms(name: str, shape: dict[str, Any]) -> list[Arm]:
    python = Path(sys.executable)
    torch_settings = {**shape, "workers": WORKERS, "prefetch_factor": _TORCH_PREFETCH}
    module = "tests.bench.arms.handoff_torch"
    return [
        Arm(f"torch DataLoader, {name}", module, python, {}, {**torch_settings, "way": "fresh"}),
        Arm(f"torch, preallocated, {name}", module, python, {}, {**torch_settings, "way": "preallocated"}),
        Arm(f"feedd lease, {name}", "tests.bench.arms.handoff_feedd", python, {}, shape),
        Arm(f"(torch, no copy at all, {name})", module, python, {}, {**torch_settings, "way": "shared"}),
    ]


def run(plan: Plan) -> Result:
    """Measure both sizes; one table."""
    duration_s = 1.0 if plan.quick else 3.0

    def once(arm: Arm, round_index: int) -> Row:
        row = run_arm(arm, {"duration_s": duration_s if round_index else 0.5}, _TIMEOUT_S)
        rows, *rest = arm.settings["shape"]
        size_bytes = rows * (2 if arm.settings["dtype"] == "uint16" else 1)
        for edge in rest:
            size_bytes *= edge
        row["gigabytes_per_s"] = row["batches_per_s"] * size_bytes / 1e9
        return row

    result = Result("handoff", "a finished batch reaches the trainer", COLUMNS, [])
    for name, (shape, target) in _SIZES.items():
        plan.say(f"handoff: {name}")
        result.outcomes += interleave(
            _arms(name, shape), plan.round_count, once, plan.say, first_round=plan.first_round
        )
        ours = result.outcome(f"feedd lease, {name}")
        for peer, aim in (("torch, preallocated", 1.0), ("torch DataLoader", target)):
            theirs = result.outcome(f"{peer}, {name}")
            if theirs and ours:
                result.verdicts.append(Verdict.of(f"feedd / {peer}, {name}", ours, theirs, "batches_per_s", aim))
    result.notes = [
        (
            f"torch: {WORKERS} workers, prefetch_factor {_TORCH_PREFETCH}; each batch is a tensor of the worker's own"
            " memory, which torch copies into a new shared segment."
        ),
        "feedd: serve room and trainer in processes of their own; as many slots as the daemon chooses: 4 and 16.",
        (
            "preallocated: like for like. Workers hand over the number of a tensor that lies in shared memory and was"
            " written once, as feedd's slots are here."
        ),
        (
            "In brackets: torch with one tensor that lies in shared memory already and is never written again. Nothing"
            " is copied, and no real loader can do so: the cost of torch's queue alone."
        ),
    ]
    return result
