"""Arm: epochs of tokens with and without measuring in turn; a daemon and a trainer, no restart between the turns."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedd_client import FeedDataset
from feedd_client.step_times import StepTimes
from tests.bench.arms import daemon
from tests.bench.arms.tokens import TOKENS, read_settings
from tests.bench.procs import tree_cpu_s

if TYPE_CHECKING:
    from collections.abc import Callable

_TOOK = StepTimes.took


def _nothing(_times: StepTimes, _request_s: float, _wait_s: float) -> None:
    pass


def _start(settings: dict[str, Any]) -> tuple[subprocess.Popen[str], str]:
    folder = Path(settings["run_dir"])
    address = f"unix://{folder / 'feedd.sock'}"
    words = ["serve", "--listen", address, "--cache-dir", settings["cache_dir"], "--cache-size", "8GiB"]
    words += ["--workers", str(settings["workers"]), "--status", "off", "--log", "text"]
    with (folder / "feedd.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.arms.measuring_daemon", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    return child, address


def _epoch(dataset: FeedDataset, settings: dict[str, Any]) -> tuple[float, float, int]:
    began_s, cpu_s, count = time.perf_counter(), tree_cpu_s(), 0
    for batch in dataset:
        assert tuple(batch["tokens"].shape) == (settings["batch_size"], TOKENS)
        int(batch["tokens"][:, 0].numpy().astype("int64").sum())  # touches each row
        count += 1
    return time.perf_counter() - began_s, tree_cpu_s() - cpu_s, count


def _row(epochs: list[tuple[float, float, int]]) -> dict[str, float]:
    seconds, cpu_s, batches = (sum(column) for column in zip(*epochs, strict=True))
    return {"batches_per_s": batches / seconds, "cpu_ms_per_batch": 1000 * cpu_s / batches}


def _run(dataset: FeedDataset, switch: Callable[[str], None], settings: dict[str, Any]) -> dict[str, Any]:
    _epoch(dataset, settings)
    _epoch(dataset, settings)
    found: dict[str, list[tuple[float, float, int]]] = {"on": [], "off": []}
    for number in range(settings["pairs"]):
        for state in ("on", "off") if number % 2 else ("off", "on"):
            switch(state)
            found[state].append(_epoch(dataset, settings))
    ratios = [on[0] / off[0] for on, off in zip(found["on"], found["off"], strict=True)]
    return {state: _row(epochs) for state, epochs in found.items()} | {"time_ratio": statistics.median(ratios)}


def main() -> None:
    """Run."""
    settings = read_settings()
    child, address = _start(settings)
    stdin, stdout = child.stdin, child.stdout
    assert stdin is not None
    assert stdout is not None

    def switch(state: str) -> None:
        StepTimes.took = _TOOK if state == "on" else _nothing  # type: ignore[method-assign, assignment]  # for as long as the bench wants
        stdin.write(state + "\n")
        stdin.flush()
        while stdout.readline().strip() != "done":
            pass

    try:
        daemon.wait_ready(child, address)  # type: ignore[arg-type]  # it only asks whether the process lives
        dataset = FeedDataset(
            settings["url"],
            batch_size=settings["batch_size"],
            fields={"tokens": settings["field"]},
            shuffle=True,
            address=address,
        )
        row = _run(dataset, switch, settings)
        dataset.close()
    finally:
        child.kill()
        child.wait()
        stdin.close()
        stdout.close()
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
