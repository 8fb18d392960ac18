"""Arm: feedd hands over batches that already lie in slots; server and trainer are processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from feedd_client import FeedDataset
from tests.bench.procs import tree_cpu_s

_WARM_UP_BATCHES = 32  # twice the most slots a daemon chooses by itself


def _measure(settings: dict[str, Any], address: str) -> dict[str, float]:
    dataset = FeedDataset("s3://bench/ready", batch_size=settings["shape"][0], address=address)
    batches = iter(dataset)
    for _ in range(_WARM_UP_BATCHES):
        int(next(batches)["data"].long().sum())  # every page of every slot is mapped from here on
    count = total = 0
    cpu_s, begin_s = tree_cpu_s(), time.perf_counter()
    end_s = begin_s + settings["duration_s"]
    while (now_s := time.perf_counter()) < end_s:
        total += int(next(batches)["data"].view(-1)[-1])
        count += 1
    elapsed_s = now_s - begin_s
    cpu_s = tree_cpu_s() - cpu_s
    assert total == 7 * count, f"expected {7 * count} as the sum of last elements, got {total}"
    return {"batches_per_s": count / elapsed_s, "cpu_ms_per_batch": 1000 * cpu_s / count, "batches": count}


def main() -> None:
    """Read settings, run for the time asked, print the rate."""
    settings = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "room.sock"
        room = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.bench.arms.handoff_room",
                json.dumps({"socket": str(socket), "shape": settings["shape"], "dtype": settings["dtype"]}),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert room.stdout is not None
            assert room.stdout.readline() == "ready\n", "expected the serve room to say ready"
            print(json.dumps(_measure(settings, f"unix://{socket}")))
        finally:
            room.terminate()
            room.wait(20)


if __name__ == "__main__":
    main()
