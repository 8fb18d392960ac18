"""Arm: a real daemon under many ranks; CPU time of its threads for each batch, and its anonymous memory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.arms import daemon
from tests.bench.procs import descendants, process_cpu_s, thread_cpu_s

_WARM_S = 2.0


def _anonymous_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def _workers_s(pid: int) -> float:
    found = 0.0
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            found += process_cpu_s(child)
    return found


class _Clients:
    """Processes of raw ranks."""

    def __init__(self, settings: dict[str, Any]) -> None:
        count, processes = settings["rank_count"], settings["processes"]
        self._children = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.bench.arms.raw_ranks",
                    json.dumps({**settings, "ranks": list(range(number, count, processes))}),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(min(processes, count))
        ]

    def wait_ready(self) -> None:
        for child in self._children:
            assert child.stdout is not None
            line = child.stdout.readline()
            assert line == "ready\n", f"expected ranks to be ready, got {line!r}"

    def batches(self) -> int:
        """Return the batches that all ranks have got so far."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write("?\n")
            child.stdin.flush()
        return sum(int(child.stdout.readline()) for child in self._children if child.stdout is not None)

    def end(self) -> None:
        for child in self._children:
            child.kill()  # the daemon takes back what they hold
            child.wait()


def main() -> None:
    """Run."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    child, address = daemon.start(settings)
    try:
        daemon.wait_ready(child, address)
        idle_bytes = _anonymous_bytes(child.pid)
        clients = _Clients({**settings, "address": address})
        try:
            clients.wait_ready()
            time.sleep(_WARM_S)
            before = clients.batches(), thread_cpu_s(child.pid), process_cpu_s(child.pid), _workers_s(child.pid)
            began_s, anonymous_bytes = time.perf_counter(), 0
            while time.perf_counter() - began_s < settings["duration_s"]:
                time.sleep(0.1)
                anonymous_bytes = max(anonymous_bytes, _anonymous_bytes(child.pid))
            took_s = time.perf_counter() - began_s
            after = clients.batches(), thread_cpu_s(child.pid), process_cpu_s(child.pid), _workers_s(child.pid)
        finally:
            clients.end()
    finally:
        daemon.stop(child)
    batches, loop_s, whole_s, workers_s = (late - early for early, late in zip(before, after, strict=True))
    row = {
        "batches": batches,
        "batches_per_s": batches / took_s,
        "loop_us": 1e6 * loop_s / batches,
        "daemon_us": 1e6 * whole_s / batches,
        "workers_us": 1e6 * workers_s / batches,
        "anonymous_bytes": anonymous_bytes,
        "idle_bytes": idle_bytes,
    }
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
