"""Arm: one node's epoch planned with feedd: until its first batch, and all of its batches."""

from __future__ import annotations

import time
import tracemalloc

from feedd.values import Cursor
from tests.bench.arms.plan_data import ResidentPeak, read_settings, traced_peak_bytes, write_row
from tests.bench.arms.plan_node import Node, rows_at


def main() -> None:
    """Measure times first, then allocations, which slows what is measured."""
    settings = read_settings()
    node = Node.of(settings)
    peak = ResidentPeak()
    begin_s = time.perf_counter()
    steps = node.steps()
    reader = node.reader(node.shares(), steps)
    reader.order_of(0)  # the order that tells the cache what to bring, and when
    samples = rows_at(reader, 0, 0).ordinal.shape[0]
    first_s = time.perf_counter()
    for step in range(1, steps):
        samples += rows_at(reader, 0, step).ordinal.shape[0]
    end_s = time.perf_counter()
    resident_bytes = peak.bytes
    next_begin_s = time.perf_counter()
    reader.order_of(1)
    rows_at(reader, 1, 0)
    next_s = time.perf_counter() - next_begin_s
    row = {"first_s": first_s - begin_s, "epoch_s": end_s - begin_s, "next_s": next_s, "samples": samples}
    row["order_s"] = first_s - begin_s + _windows_s(node, steps)
    write_row({**row, **_traced(settings, steps), "resident_bytes": resident_bytes})


def _windows_s(node: Node, steps: int) -> float:
    """Return the time for the order of all the node's samples, window by window, without what batches add to it."""
    reader = node.reader(node.shares(), steps)
    begin_s = time.perf_counter()
    plan = reader.epoch_map(Cursor(0))
    for window in range(1, plan.window_count):  # the first is among what the first batch needs
        plan.samples(0, window)
    return time.perf_counter() - begin_s


def _traced(settings: dict[str, object], steps: int) -> dict[str, int]:
    """Return the bytes allocated at once, what is known of the dataset included."""
    tracemalloc.start()
    node = Node.of(settings)
    tracemalloc.reset_peak()  # what making it took besides is not the plan's
    node.steps()
    reader = node.reader(node.shares(), steps)
    reader.order_of(0)
    rows_at(reader, 0, 0)
    first_bytes = traced_peak_bytes()
    for step in range(1, steps):
        rows_at(reader, 0, step)
    return {"first_bytes": first_bytes, "epoch_bytes": traced_peak_bytes()}


if __name__ == "__main__":
    main()
