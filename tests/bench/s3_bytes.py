"""Bench: bytes a node takes from S3 in a cold epoch, over its assignment, for several local ranks and nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.harness import Arm, Row, interleave
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from tests.bench.plan import Plan

_TIMEOUT_S = 240.0
_WORLDS = ((1, 1), (1, 2), (1, 4), (2, 2))  # nodes, ranks on each
_QUICK_WORLDS = ((1, 4), (2, 2))
COLUMNS = (
    Column("GETs of all nodes", "gets", digits=0),
    Column("MB from S3", "sent_bytes", scale=1e-6, digits=1),
    Column("MB in tar shards", "dataset_bytes", scale=1e-6, digits=1),
    Column("ratio", "ratio", digits=4),
    Column("samples taken", "samples", digits=0),
)


def run(plan: Plan) -> Result:
    """Count; one run each, since nothing here is a time."""
    result = Result("bytes", "S3 bytes of a cold epoch, over the bytes of the shards", COLUMNS, [])
    dataset_bytes = plan.data.size_bytes("tar")

    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"bytes: {arm.name}")
        row = plan.once(arm, round_index, _TIMEOUT_S)
        return row | {"dataset_bytes": dataset_bytes, "ratio": row["sent_bytes"] / dataset_bytes}

    arms = [
        plan.feedd_arm(f"feedd, {nodes} node(s) x {ranks} rank(s)", "bytes_feedd", node_count=nodes, local_ranks=ranks)
        for nodes, ranks in (_QUICK_WORLDS if plan.quick else _WORLDS)
    ]
    result.outcomes = interleave(arms, 1, once, plan.say, first_round=1)  # counts need no warming up
    for outcome in result.outcomes:
        ratio = outcome.middle("ratio")
        if ratio is not None:
            result.verdicts.append(Verdict(f"S3 bytes / assignment, {outcome.name}", ratio, 1.005, at_least=False))
    result.notes = ["Counted by the server: bodies of all answers, listings included. Ranks are processes."]
    return result
