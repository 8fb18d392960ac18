"""Arm: how late a daemon's loop wakes while a trainer reads and, if so told, while its disk hangs."""

from __future__ import annotations

import array
import contextlib
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from feedd_client import FeedDataset
from tests.bench.arms import daemon
from tests.bench.arms.consume import read_settings
from tests.fakes.disks import frozen_disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.sharedctypes import Synchronized

    from tests.fakes.disks import FrozenDisk

_ASK_EVERY_S = 0.05
_LOOK_S = 0.005
_SETTLE_S = 1.0  # of opening, which is not what is measured
_HANG_AFTER_S = 2.0
_WAIT_S = 120.0
_BATCH_SIZE = 64


def _train(url: str, address: str, count: Synchronized[int]) -> None:
    dataset = FeedDataset(url, batch_size=_BATCH_SIZE, fields={"jpg": "bytes"}, address=address)
    while True:
        for _ in dataset:
            count.value += _BATCH_SIZE


def _open(url: str, address: str) -> None:
    dataset = FeedDataset(url, batch_size=_BATCH_SIZE, fields={"jpg": "bytes"}, address=address)
    next(iter(dataset))


@contextlib.contextmanager
def _disk(settings: dict[str, Any]) -> Iterator[FrozenDisk | None]:
    if settings["place"] == "memory":
        yield None
        return
    with frozen_disk(Path(settings["run_dir"]), size_bytes=4 << 30) as disk:
        yield disk


class _Probe:
    """Asks for the daemon's health at even intervals, whether or not it has answered what was asked before."""

    def __init__(self, stub: health_pb2_grpc.HealthStub) -> None:
        self._stub = stub
        self._asked_count = 0
        self.answers_s: list[float] = []  # how long each answer took

    def ask(self) -> None:
        """Ask once more; do not wait."""
        self._asked_count += 1
        asked_s = time.perf_counter()

        def answered(call: Any) -> None:
            call.result()
            self.answers_s.append(time.perf_counter() - asked_s)

        self._stub.Check.future(health_pb2.HealthCheckRequest(), timeout=_WAIT_S).add_done_callback(answered)

    def finish(self) -> list[float]:
        """Wait for the answers still missing; return how long each took, in seconds, ascending."""
        deadline_s = time.monotonic() + _WAIT_S
        while len(self.answers_s) < self._asked_count and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
        assert len(self.answers_s) == self._asked_count, (
            f"expected {self._asked_count} answers, got {len(self.answers_s)}"
        )
        return sorted(self.answers_s)


def _blocked_threads(pid: int) -> int:
    """Return how many threads of the process wait in the kernel, for a disk."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return sum(stat.rpartition(")")[2].split()[0] == "D" for stat in stats)


def _probe(address: str, pid: int, settings: dict[str, Any], disk: FrozenDisk | None) -> list[float]:
    """Return how long each answer took, in seconds, ascending; freeze the disk meanwhile, if so told."""
    hang_s = settings.get("hang_s", 0.0)
    blocked_count = 0
    with grpc.insecure_channel(address.replace("unix://", "unix:")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        stub.Check(health_pb2.HealthCheckRequest(), timeout=_WAIT_S, wait_for_ready=True)
        probe = _Probe(stub)
        begin_s = time.perf_counter()
        hung = False
        for number in range(int(settings["seconds"] / _ASK_EVERY_S)):
            time.sleep(max(0.0, begin_s + number * _ASK_EVERY_S - time.perf_counter()))
            probe.ask()
            passed_s = number * _ASK_EVERY_S
            if disk is not None and hang_s and not hung and passed_s > _HANG_AFTER_S:
                hung = True
                disk.hang(hang_s)
            if hung and passed_s < _HANG_AFTER_S + hang_s:
                blocked_count = max(blocked_count, _blocked_threads(pid))
        found = probe.finish()
    assert blocked_count or not hang_s, "expected threads that wait for the frozen disk, got none: nothing was written"
    return found


def _loop_ns(pid: int) -> tuple[int, int]:
    """Return what the daemon's first thread, which runs the loop, has used of a core and waited for one."""
    used, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(used), int(waited)


def main() -> None:
    """Run."""
    settings = read_settings()
    spawn = multiprocessing.get_context("spawn")
    count = spawn.Value("q", 0)
    noted = Path(settings["run_dir"], "lag")
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(_disk(settings))
        if disk is not None:
            settings["cache_dir"] = str(disk.folder / "cache")
        child, address = daemon.start(settings, ("-m", "tests.bench.arms.lag_daemon", str(noted)))
        stack.callback(daemon.stop, child)
        daemon.wait_ready(child, address)
        if settings["reads"]:
            trainer = spawn.Process(target=_train, args=(settings["url"], address, count), daemon=True)
            trainer.start()
            stack.callback(trainer.join)
            stack.callback(trainer.kill)
            deadline_s = time.monotonic() + _WAIT_S
            while not count.value and time.monotonic() < deadline_s:
                time.sleep(_LOOK_S)
            time.sleep(_SETTLE_S)
        if "opens" in settings:
            opener = spawn.Process(target=_open, args=(settings["opens"], address), daemon=True)
            opener.start()
            stack.callback(opener.join)
            stack.callback(opener.kill)
        before, (used_ns, waited_ns), begin_s = count.value, _loop_ns(child.pid), time.perf_counter()
        found = _probe(address, child.pid, settings, disk)
        passed_s = time.perf_counter() - begin_s
        rate = (count.value - before) / passed_s
        now_used_ns, now_waited_ns = _loop_ns(child.pid)
        if disk is not None:
            disk.recover()
    late_s = _late(noted, begin_s, begin_s + passed_s)
    row = {
        "p50_ms": 1e3 * late_s[len(late_s) // 2],
        "p99_ms": 1e3 * late_s[int(len(late_s) * 0.99)],
        "max_ms": 1e3 * late_s[-1],
        "wakings": len(late_s),
        "answer_p50_ms": 1e3 * found[len(found) // 2],
        "answer_max_ms": 1e3 * found[-1],
        "samples_per_s": rate,
        "samples": count.value,
        "loop_cpu": (now_used_ns - used_ns) / 1e9 / passed_s,
        "loop_waits": (now_waited_ns - waited_ns) / 1e9 / passed_s,
    }
    json.dump(row, sys.stdout)


def _late(path: Path, begin_s: float, end_s: float) -> list[float]:
    """Return how late the daemon's loop woke between two moments of the machine's clock, in seconds, ascending."""
    noted = array.array("d")
    noted.frombytes(path.read_bytes())
    return sorted(late_s for now_s, late_s in zip(noted[::2], noted[1::2], strict=True) if begin_s < now_s < end_s)


if __name__ == "__main__":
    main()
