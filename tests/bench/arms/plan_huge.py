"""Arm: what one node of very many does before its first batch, over very many shards, and all the memory it has."""

from __future__ import annotations

import time

from feedd.dataset.listing import Listing
from feedd.dataset.ref_columns import ShardNumbers
from feedd.values import ObjectRef
from tests.bench.arms.plan_data import peak_resident_bytes, read_settings, write_row
from tests.bench.arms.plan_node import Node, rows_at


def _listing(node: Node) -> Listing:
    """Return what a daemon holds of the objects besides."""
    sizes = enumerate(node.sizes.tolist())
    refs = (ObjectRef("s3://training-data", f"web/train/{n:08d}.tar", size, f"{n:032x}-12") for n, size in sizes)
    held = tuple(refs)
    return Listing(held, node.sizes, b"", 0.0, ShardNumbers(held), node.counts)


def main() -> None:
    """Measure: the assignment and the first window; then the steps of all ranks, which all nodes must agree on."""
    settings = read_settings()
    node = Node.of(settings)
    held = _listing(node) if settings["listing"] else None
    begin_s = time.perf_counter()
    shares = node.shares()
    assigned_s = time.perf_counter()
    reader = node.reader(shares, None)
    reader.order_of(0)
    rows_at(reader, 0, 0)
    first_s = time.perf_counter()
    resident_bytes = peak_resident_bytes()
    steps_begin_s = time.perf_counter()
    steps = node.steps()
    row = {"steps_s": time.perf_counter() - steps_begin_s, "steps": steps, "all_resident_bytes": peak_resident_bytes()}
    times = {"assign_s": assigned_s - begin_s, "window_s": first_s - assigned_s, "first_s": first_s - begin_s}
    write_row({**row, **times, "open_s": row["steps_s"] + first_s - begin_s, "resident_bytes": resident_bytes})
    del held


if __name__ == "__main__":
    main()
