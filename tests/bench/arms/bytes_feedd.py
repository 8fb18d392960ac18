"""Arm: a cold epoch of several nodes and local ranks: a daemon and a cache per node, a process per rank."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

from feedd_client import FeedDataset, Topology
from tests.bench.arms import daemon
from tests.bench.arms.consume import read_settings


def take_rank(settings: dict[str, Any], address: str, node: int, local_rank: int) -> tuple[int, int]:
    """Take one rank's epoch; return its samples and the sum of their labels."""
    nodes, ranks = settings["node_count"], settings["local_ranks"]
    dataset = FeedDataset(
        f"s3://{settings['bucket']}/tar/",
        batch_size=settings["batch_size"],
        fields={"jpg": "image:224x224", "cls": "int"},
        shuffle=True,
        uneven="allow",
        address=address,
        topology=Topology(nodes * ranks, node * ranks + local_rank, ranks, local_rank, nodes, node),
    )
    samples = label_sum = 0
    for batch in dataset:
        samples += len(batch["cls"])
        label_sum += int(batch["cls"].sum())
    return samples, label_sum


def main() -> None:
    """Run and check that every sample came exactly once."""
    settings = read_settings()
    nodes, ranks = settings["node_count"], settings["local_ranks"]
    with contextlib.ExitStack() as stack:
        addresses = []
        for node in range(nodes):
            folder = Path(settings["run_dir"]) / f"node-{node}"
            (folder / "cache").mkdir(parents=True)
            own = {**settings, "run_dir": str(folder), "cache_dir": str(folder / "cache")}
            addresses.append(stack.enter_context(daemon.running(own)))
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(nodes * ranks))
        jobs = [(settings, addresses[node], node, rank) for node in range(nodes) for rank in range(ranks)]
        taken = pool.starmap(take_rank, jobs, chunksize=1)
    samples, label_sum = (sum(column) for column in zip(*taken, strict=True))
    count = settings["sample_count"]
    expected = (count, count * (count - 1) // 2)
    assert (samples, label_sum) == expected, f"expected {expected} samples and label sum, got {samples, label_sum}"
    sys.stdout.write(json.dumps({"samples": samples, "per_rank": [rank_samples for rank_samples, _ in taken]}) + "\n")


if __name__ == "__main__":
    main()
