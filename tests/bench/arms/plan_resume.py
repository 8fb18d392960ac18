"""Arm: a fresh reader goes on at places all over an epoch; the time until each one's rows are known."""

from __future__ import annotations

import random
import statistics
import time

from tests.bench.arms.plan_data import SEED, read_settings, write_row
from tests.bench.arms.plan_node import Node, rows_at

_EPOCH = 3


def main() -> None:
    """Measure. The assignment is the open's, and is timed apart."""
    settings = read_settings()
    node = Node.of(settings)
    steps = node.steps()
    draw = random.Random(SEED)
    resumes: list[float] = []
    assigns: list[float] = []
    for _ in range(settings["position_count"]):
        step = draw.randrange(steps)
        begin_s = time.perf_counter()
        shares = node.shares()
        assigned_s = time.perf_counter()
        rows_at(node.reader(shares, steps), _EPOCH, step)
        resumes.append(time.perf_counter() - assigned_s)
        assigns.append(assigned_s - begin_s)
    both = [one + other for one, other in zip(resumes, assigns, strict=True)]
    write_row(
        {
            "steps": steps,
            "median_s": statistics.median(resumes),
            "worst_s": max(resumes),
            "both_median_s": statistics.median(both),
            "both_worst_s": max(both),
        }
    )


if __name__ == "__main__":
    main()
