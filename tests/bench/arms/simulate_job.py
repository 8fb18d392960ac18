"""Arm: a store, a daemon and the ranks of one node that train in step, as processes; what the job did."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

from feedd_client import FeedDataset, Topology
from tests.bench.arms import daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Barrier

_IDLE_S = 0.7  # a daemon that has just started still warms up


@contextlib.contextmanager
def _store(settings: dict[str, Any]) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.bench.arms.simulate_store", json.dumps(settings)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
    finally:
        child.terminate()
        child.wait(10)


def _sent(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/__stats") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _rank(settings: dict[str, Any], rank: int, barrier: Barrier, times: Any) -> None:
    count = settings["ranks"]
    dataset = FeedDataset(
        settings["url"],
        batch_size=settings["batch_size"],
        fields=settings["fields"],
        address=settings["address"],
        topology=Topology(count, rank, count, rank, 1, 0),
        shuffle=True,
        uneven="drop",
        prefetch=settings["prefetch"],
    )
    barrier.wait()
    if not rank:
        times[0] = time.monotonic()
    taken = 0
    for epoch in range(settings["epochs"]):
        dataset.set_epoch(epoch)
        for _ in dataset:
            barrier.wait()  # ranks take each step together
            if not rank and not taken:
                times[1] = time.monotonic()
            taken += 1
            time.sleep(settings["step_s"])
        if not rank:
            times[4 + epoch] = time.monotonic()
    barrier.wait()
    if not rank:
        times[2] = time.monotonic()
        times[3] = taken
    barrier.wait()


def main() -> None:
    """Run the job once."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(_store(settings))
        os.environ |= {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        settings["address"] = stack.enter_context(daemon.running(settings))
        time.sleep(_IDLE_S)
        before = _sent(url)
        context = multiprocessing.get_context("fork")
        barrier, times = context.Barrier(settings["ranks"] + 1), context.Array("d", 4 + settings["epochs"])
        ranks = [
            context.Process(target=_rank, args=(settings, rank, barrier, times)) for rank in range(settings["ranks"])
        ]
        for process in ranks:
            process.start()
        barrier.wait()  # all begin
        steps = settings["epochs"] * settings["steps"]
        for _ in range(steps):
            barrier.wait()
        barrier.wait()
        after = _sent(url)
        barrier.wait()
        for process in ranks:
            process.join(20)
    assert times[3] == steps, f"expected {steps} steps, got {times[3]}"
    requests = sum(after["requests"].values()) - sum(before["requests"].values())
    row = {
        "first_batch_s": times[1] - times[0],
        "run_s": times[2] - times[1],
        "samples_s": steps * settings["batch_size"] * settings["ranks"] / (times[2] - times[1]),
        "epochs_s": [end_s - times[0] for end_s in times[4:]],
        "requests": requests,
        "fetched_bytes": after["body_bytes"] - before["body_bytes"],
        "by_kind": {kind: count - before["requests"].get(kind, 0) for kind, count in after["requests"].items()},
    }
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
