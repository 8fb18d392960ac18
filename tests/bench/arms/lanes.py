"""Arm: a node with lanes, and its ranks: a cold epoch, then warm ones; rates, and CPU time of the daemons."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedd_client import FeedDataset, Topology
from tests.bench.arms import daemon
from tests.bench.arms.consume import touch
from tests.bench.procs import cpu_s_of, descendants

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.synchronize import Barrier

_WAIT_S = 240.0


def _take(settings: dict[str, Any], address: str, rank: int, gate: Barrier) -> tuple[int, int]:
    """Take one rank's epochs, all ranks together; return its batches and bytes in a cold epoch."""
    if settings["trainer_cores"]:
        os.sched_setaffinity(0, settings["trainer_cores"])
    ranks = settings["rank_count"]
    dataset = FeedDataset(
        settings["urls"],
        batch_size=settings["batch_size"],
        fields={settings["field"]: settings["recipe"]},
        shuffle=True,
        uneven="drop",
        address=address,
        topology=Topology(ranks, rank, ranks, rank),
    )
    batches = taken_bytes = 0
    for epoch in range(1 + settings["warm_epochs"]):
        dataset.set_epoch(epoch)
        if epoch < 2:  # the cold one, and the warm ones as one
            gate.wait(_WAIT_S)
        for batch in dataset:
            if epoch == 0:
                batches += 1
                taken_bytes += sum(tensor.nbytes for tensor in batch.values())
        if epoch == 0 or epoch == settings["warm_epochs"]:
            gate.wait(_WAIT_S)
    dataset.close()
    return batches, taken_bytes


def _start(settings: dict[str, Any]) -> tuple[subprocess.Popen[bytes], str]:
    """Start the node's daemons, on the cores that they are given."""
    folder = Path(settings["run_dir"])
    config = folder / "feedd.toml"
    buckets = zip(settings["buckets"], settings["endpoints"], strict=True)
    config.write_text("".join(f'[s3."{bucket}"]\nendpoint_url = "{url}"\n' for bucket, url in buckets))
    words = ["-m", "tests.bench.arms.pinned", json.dumps(settings["daemon_cores"])]
    os.environ["FEEDD_CONFIG"] = str(config)
    os.environ["FEEDD_LANES"] = str(settings["lanes"])
    return daemon.start(settings, words)


def main() -> None:
    """Run."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    child, address = _start(settings)
    try:
        daemon.wait_ready(child, address)
        for lane in range(1, settings["lanes"]):
            daemon.wait_ready(child, f"{address}.lane{lane}")
        context = multiprocessing.get_context("spawn")
        with context.Manager() as manager, context.Pool(settings["rank_count"]) as pool:
            gate = manager.Barrier(settings["rank_count"] + 1)
            jobs = [(settings, address, rank, gate) for rank in range(settings["rank_count"])]
            taking = pool.starmap_async(_take, jobs, chunksize=1)
            spans = []
            touch(settings["touched_bytes"])
            for _ in range(2):
                gate.wait(_WAIT_S)
                began_s, before = time.perf_counter(), cpu_s_of([child.pid, *descendants(child.pid)])
                gate.wait(_WAIT_S)
                took_s = time.perf_counter() - began_s
                spans.append((took_s, cpu_s_of([child.pid, *descendants(child.pid)]) - before))
            taken = taking.get(_WAIT_S)
    finally:
        daemon.stop(child)
    batches, taken_bytes = (sum(column) for column in zip(*taken, strict=True))
    (cold_s, cold_cpu_s), (warm_s, warm_cpu_s) = spans
    warm_batches = batches * settings["warm_epochs"]
    row = {
        "batches": batches,
        "taken_bytes": taken_bytes,
        "cold_bytes_per_s": taken_bytes / cold_s,
        "cold_cpu_s_per_gb": cold_cpu_s / taken_bytes * 1e9,
        "warm_batches_per_s": warm_batches / warm_s,
        "warm_cpu_us": warm_cpu_s / warm_batches * 1e6,
    }
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
