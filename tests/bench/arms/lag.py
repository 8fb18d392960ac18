"""Arm: a daemon is asked for its health all the time, while a trainer reads and, if so told, while its disk hangs."""

from __future__ import annotations

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

_EVERY_S = 0.005
_SETTLE_S = 1.0  # of opening, which is not what is measured
_HANG_AFTER_S = 2.0
_WAIT_S = 120.0
_BATCH_SIZE = 64


def _train(url: str, address: str, count: Synchronized[int]) -> None:
    dataset = FeedDataset(url, batch_size=_BATCH_SIZE, fields={"jpg": "bytes"}, address=address)
    while True:
        for _ in dataset:
            count.value += _BATCH_SIZE


@contextlib.contextmanager
def _disk(settings: dict[str, Any]) -> Iterator[FrozenDisk | None]:
    if settings["place"] == "memory":
        yield None
        return
    with frozen_disk(Path(settings["run_dir"]), size_bytes=4 << 30) as disk:
        yield disk


def _probe(address: str, settings: dict[str, Any], disk: FrozenDisk | None) -> list[float]:
    """Return how long each answer took, in seconds."""
    found: list[float] = []
    hang_s = settings.get("hang_s", 0.0)
    hung = False
    with grpc.insecure_channel(address.replace("unix://", "unix:")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        stub.Check(request, timeout=_WAIT_S, wait_for_ready=True)
        begin_s = time.perf_counter()
        while (passed_s := time.perf_counter() - begin_s) < settings["seconds"]:
            if disk is not None and hang_s and not hung and passed_s > _HANG_AFTER_S:
                hung = True
                disk.hang(hang_s)
            asked_s = time.perf_counter()
            stub.Check(request, timeout=_WAIT_S)
            answered_s = time.perf_counter()
            found.append(answered_s - asked_s)
            time.sleep(max(0.0, _EVERY_S - (answered_s - asked_s)))
    return found


def main() -> None:
    """Run."""
    settings = read_settings()
    spawn = multiprocessing.get_context("spawn")
    count = spawn.Value("q", 0)
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(_disk(settings))
        if disk is not None:
            settings["cache_dir"] = str(disk.folder / "cache")
        address = stack.enter_context(daemon.running(settings))
        if settings["reads"]:
            trainer = spawn.Process(target=_train, args=(settings["url"], address, count), daemon=True)
            trainer.start()
            stack.callback(trainer.join)
            stack.callback(trainer.kill)
            deadline_s = time.monotonic() + _WAIT_S
            while not count.value and time.monotonic() < deadline_s:
                time.sleep(_EVERY_S)
            time.sleep(_SETTLE_S)
        before, begin_s = count.value, time.perf_counter()
        found = sorted(_probe(address, settings, disk))
        rate = (count.value - before) / (time.perf_counter() - begin_s)
        if disk is not None:
            disk.recover()
    row = {
        "p50_ms": 1e3 * found[len(found) // 2],
        "p99_ms": 1e3 * found[int(len(found) * 0.99)],
        "max_ms": 1e3 * found[-1],
        "probes": len(found),
        "samples_per_s": rate,
    }
    json.dump(row, sys.stdout)


if __name__ == "__main__":
    main()
