"""Bench: how long a trainer waits between the last batch of an epoch and the first of the next."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.bench.harness import Arm, Row, interleave
from tests.bench.plan import WORKERS, Plan
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMEOUT_S = 240.0
_EPOCHS = 4
_BATCH_SIZE = 32
_STEP_S = 0.05
_TARGET_STEPS = 2.0
_MODULE = "tests.bench.arms.boundary"
COLUMNS = (
    Column("gap / median step", "gap_steps", digits=2, spread=True),
    Column("worst of a run", "worst_gap_steps", digits=2),
    Column("gap / mean step", "gap_mean_steps", digits=2),
    Column("gap, ms", "gap_s", scale=1e3, digits=1, spread=True),
    Column("worst, ms", "worst_gap_s", scale=1e3, digits=1),
    Column("median step, ms", "step_s", scale=1e3, digits=1),
    Column("mean", "mean_step_s", scale=1e3, digits=1),
)


def run(plan: Plan) -> list[Result]:
    """Measure with a trainer that takes batches as fast as they come, and with one whose step takes a time."""
    # epochs of 64 steps: long beside what is read ahead, short enough for several boundaries
    small = Plan(plan.round_count, quick=True, peers=plan.peers, say=plan.say)
    try:
        return [
            _measure(small, "boundary", "batches taken as they come", 0.0),
            _measure(small, "boundary, paced", f"a step takes {_STEP_S * 1e3:.0f} ms", _STEP_S),
        ]
    finally:
        small.close()


def _measure(plan: Plan, name: str, what: str, step_s: float) -> Result:
    settings: dict[str, Any] = {"epoch_count": _EPOCHS, "batch_size": _BATCH_SIZE, "step_s": step_s}
    peers = plan.peer_arms(**settings)
    arms = [
        *_renamed(peers, persistent=False),
        *_renamed(peers, " kept", persistent=True),
        *_renamed([plan.feedd_arm(**settings)], persistent=False),
        *_renamed([plan.feedd_arm(**settings)], " in workers", persistent=False, torch_workers=WORKERS),
        *_renamed([plan.feedd_arm(**settings)], " in workers, kept", persistent=True, torch_workers=WORKERS),
    ]

    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"{name}: round {round_index}, {arm.name}")
        return plan.once(arm, round_index, _TIMEOUT_S)

    count = plan.data.shape.sample_count
    title = f"{_EPOCHS} epochs of {count} JPEGs, batch {_BATCH_SIZE}, {what}"
    result = Result(name, title, COLUMNS, interleave(arms, plan.round_count, once, plan.say, first_round=1))
    result.verdicts = [
        Verdict(f"feedd, {text}", ours.middle(figure) or float("inf"), _TARGET_STEPS, at_least=False)
        for ours in [result.outcome("feedd")]
        if ours is not None
        for text, figure in (
            ("gap in median steps", "gap_steps"),
            ("worst gap of a run in median steps", "worst_gap_steps"),
            ("gap in mean steps", "gap_mean_steps"),
        )
    ]
    result.notes = [
        (
            f"Gap: from the arrival of an epoch's last batch to that of the next one's first, the median of"
            f" {_EPOCHS - 1} in a run; a perfect loader's is one step. Caches are empty at the start and full then."
        ),
        (
            "A loader that hands over several batches at once has a median step of next to nothing where they are taken"
            " as they come; its mean step is then the time a batch takes."
        ),
        f"Peers: {WORKERS} torch workers, new ones for each epoch, torch's default, or kept (persistent_workers).",
        (
            "feedd: its trainer iterates the dataset anew, and its daemon stays; it needs no torch workers, but works"
            f" with them: {WORKERS}, new ones for each epoch, or kept."
        ),
    ]
    return result


def _renamed(arms: Iterable[Arm], suffix: str = "", **settings: Any) -> list[Arm]:
    """Return arms of the epoch bench as arms of this one."""
    return [
        replace(
            arm,
            name=arm.name + suffix,
            module=_MODULE,
            settings={**arm.settings, "loader": arm.module, **settings},
        )
        for arm in arms
    ]
