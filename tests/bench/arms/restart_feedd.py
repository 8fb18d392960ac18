"""Arm: trains with steps of 10 ms, has its daemon replaced in the middle, prints the longest pause."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedd_client import FeedDataset, Topology
from tests.bench.arms.daemon import wait_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

_STEP_S = 0.01
_REPLACED_AT_STEP = 150
_STANDBY = '"event": "standby"'


def _start(settings: dict[str, Any], *flags: str) -> subprocess.Popen[bytes]:
    folder = Path(settings["run_dir"])
    arguments = ["serve", "--listen", f"unix://{folder}/feedd.sock", "--cache-dir", settings["cache_dir"]]
    arguments += ["--cache-size", "1GiB", "--workers", "1", "--status", "off", "--log", "json", *flags]
    with (folder / "feedd.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "feedd", *arguments], stdout=log, stderr=log)


def _await_standby(settings: dict[str, Any], count: int = 1) -> None:
    log = Path(settings["run_dir"]) / "feedd.log"
    while log.read_text().count(_STANDBY) < count:
        time.sleep(_STEP_S)


def _replace(
    settings: dict[str, Any], daemons: list[subprocess.Popen[bytes]], row: dict[str, float], begun_s: list[float]
) -> None:
    """Replace the daemon as often as the settings say; a standby for the first replacement may wait already.

    ``begun_s`` gets the time at which each replacement begins, with the start of its standby.
    """
    for number in range(settings.get("times", 1)):
        begun_s.append(time.perf_counter())
        if number:
            daemons.append(_start(settings, "--standby"))
            _await_standby(settings, number + 1)
        began_s = time.perf_counter()
        daemons[number].send_signal(signal.SIGKILL if settings.get("kills") else signal.SIGTERM)
        daemons[number].wait()
        row["exit_s"] = max(row.get("exit_s", 0.0), time.perf_counter() - began_s)
    if settings["way"] != "standby":
        daemons.append(_start(settings))


def _batches(dataset: FeedDataset, replacing: threading.Thread) -> Iterator[object]:
    """Yield the batches of whole epochs until the replacing has ended."""
    yield from dataset
    while replacing.is_alive():
        yield from dataset


def _train(settings: dict[str, Any], daemons: list[subprocess.Popen[bytes]]) -> dict[str, float]:
    row: dict[str, float] = {}
    dataset = FeedDataset(
        "s3://data/train/",
        batch_size=4,
        fields={"cls": "int", "jpg": "image:32x32"},
        shuffle=True,
        prefetch=4,
        address=f"unix://{settings['run_dir']}/feedd.sock",
        topology=Topology(),
    )
    begun_s: list[float] = []
    replacing = threading.Thread(target=_replace, args=(settings, daemons, row, begun_s))
    waits: list[tuple[float, float]] = []  # when each batch came, and the wait for it
    last_s = math.inf
    for step, _ in enumerate(_batches(dataset, replacing)):
        now_s = time.perf_counter()
        waits.append((now_s, now_s - last_s))
        if step == _REPLACED_AT_STEP:
            replacing.start()
        time.sleep(_STEP_S)
        last_s = time.perf_counter()
    replacing.join()
    pauses = [
        max((wait_s for at_s, wait_s in waits if since_s <= at_s < until_s), default=0.0)
        for since_s, until_s in pairwise([*begun_s, math.inf])
    ]
    about = {"load": os.getloadavg()[0], "reconnects": dataset.stats()["reconnects"]}
    return row | about | {"pause_s": max(pauses), "median_pause_s": statistics.median(pauses)}


def main() -> None:
    """Run; the last line is the figures."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    command = [sys.executable, "-m", "tests.fakes.s3.server", "--root", settings["store"], "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.environ |= {
            "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        daemons = [_start(settings)]
        try:
            wait_ready(daemons[0], f"unix://{settings['run_dir']}/feedd.sock")
            if settings["way"] == "standby":
                daemons.append(_start(settings, "--standby"))
                _await_standby(settings)
            print(json.dumps(_train(settings, daemons)))
        finally:
            for daemon in daemons:
                daemon.terminate()
                daemon.wait()
            server.terminate()


if __name__ == "__main__":
    main()
