"""Arm: several trainer processes at once, each one of the epoch arms: ranks of one job, or jobs of one group."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import Any

from tests.bench.arms.consume import GO, READY, touch
from tests.bench.procs import tree_cpu_s

_TIMEOUT_S = 600.0


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _start(settings: dict[str, Any], number: int, port: int) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    if settings["rank_count"] > 1:
        count = str(settings["rank_count"])
        environment |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    return subprocess.Popen(
        [sys.executable, "-m", settings["module"], json.dumps(settings)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _together(trainers: list[subprocess.Popen[str]], touched_bytes: int) -> None:
    """Have all of them begin once all are ready: how long each took to import torch is nobody's rate."""
    for process in trainers:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == READY, f"expected a trainer to be ready, got {line!r}"
    touch(touched_bytes)
    for process in trainers:
        assert process.stdin is not None
        process.stdin.write(GO)
        process.stdin.flush()


def _row(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a trainer measured; it then waits for ``_end``."""
    assert process.stdout is not None
    line = next((line for line in process.stdout if line.startswith("{")), None)
    assert line is not None, "expected a trainer's measurements, got its end"
    row: dict[str, Any] = json.loads(line)
    return row


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 0, f"expected a trainer to end well, got exit {process.returncode}"


def main() -> None:
    """Run ``job_count`` jobs of ``rank_count`` ranks; together the ranks of a job must see every picture once."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    jobs, ranks = settings["job_count"], settings["rank_count"]
    assert 1 in {jobs, ranks}, f"expected several ranks or several jobs, got {ranks} of {jobs}"
    with contextlib.ExitStack() as stack:
        if settings["module"].endswith("_feedd"):
            from tests.bench.arms import daemon  # noqa: PLC0415 - peers' environments have no gRPC

            settings["address"] = stack.enter_context(daemon.running(settings))
        touched_bytes = settings.pop("touched_bytes", 0)  # once for all of them, and before the word to begin
        port = _free_port()
        trainers = [_start(settings, number, port) for number in range(jobs * ranks)]
        _together(trainers, touched_bytes)
        cpu_s = tree_cpu_s()
        rows = [_row(process) for process in trainers]
        cpu_s = tree_cpu_s() - cpu_s
        for process in trainers:
            _end(process)
    count = settings["sample_count"]
    seen = sum(row["samples"] for row in rows), sum(row["label_sum"] for row in rows)
    expected = (jobs * count, jobs * count * (count - 1) // 2)
    if settings["whole"]:
        assert seen == expected, f"expected {expected} samples and label sum, got {seen}"
    epoch_s = max(row["epoch_s"] for row in rows)  # from iter(): starting torch is nobody's loader
    row = {"samples": seen[0], "samples_per_s": seen[0] / epoch_s, "epoch_s": epoch_s}
    sys.stdout.write("\n" + json.dumps(row | {"cpu_ms_per_sample": 1000 * cpu_s / seen[0]}) + "\n")


if __name__ == "__main__":
    main()
