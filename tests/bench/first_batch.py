"""Bench: how long a trainer waits for its first batch, with daemon and cache warm or cold; peers beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.bench.harness import Arm, Row, interleave
from tests.bench.report import Column, Result

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 180.0
_IDLE_S = 1.0
_WARM = "feedd, daemon warm, cache warm"
COLUMNS = (
    Column("iter() to 1st batch, s", "first_batch_s", digits=3, spread=True),
    Column("CPU s until then", "cpu_s", digits=2),
    Column("daemon start, s", "daemon_start_s", digits=2),
)


def run(plan: Plan) -> Result:
    """Measure."""
    first: dict[str, Any] = {"stop_after": 1, "window_shards": 0}
    arms = [
        *plan.peer_arms(stop_after=1),
        plan.feedd_arm(_WARM, **first, cache="warm"),
        plan.feedd_arm("feedd, daemon warm, cache cold", **first, idle_s=_IDLE_S),
        plan.feedd_arm("feedd, daemon cold, cache cold", **first, daemon="cold"),
    ]

    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"first_batch: round {round_index}, {arm.name}")
        return plan.once(arm, round_index, _TIMEOUT_S)

    result = Result("first_batch", "from iter() to the first batch", COLUMNS, [])
    result.outcomes = interleave(plan.chosen(arms), plan.round_count, once, plan.say, first_round=plan.first_round)
    result.notes = [
        "Peers start their workers in that time; their caches are cold. The cold daemon's process start is included.",
        f"The warm daemon with a cold cache has been ready for {_IDLE_S:g} s.",
        "Imports of the training process are not included anywhere.",
        "feedd shuffles with its default window, which begins with one shard; webdataset's buffer begins with 100.",
    ]
    return result
