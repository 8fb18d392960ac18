"""The trainer of a scenario: steps of a known length, and the habits that the scenario asks for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedd_client import DeviceLoader, FeedDataset, Topology, copier, shm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LOOK_S = 0.02


def _dataset(settings: dict[str, Any], rank: int) -> FeedDataset:
    world = settings.get("ranks", 1)
    return FeedDataset(
        settings["url"],
        batch_size=settings["batch_size"],
        fields=settings["fields"],
        address=settings["address"],
        topology=Topology(world, rank, world, rank, 1, 0),
        **settings.get("options", {}),
    )


@contextlib.contextmanager
def _batches(settings: dict[str, Any], dataset: FeedDataset) -> Iterator[Iterable[Any]]:
    copy_bytes_s = settings.get("copy_bytes_s", 0.0)
    if not copy_bytes_s:
        yield dataset
        return
    from tests.fakes.cuda.fixture import simulated  # noqa: PLC0415 - most scenarios have no device

    copy = copier.Copier.copy

    def slow(self: copier.Copier, batch: Any, *rest: Any) -> object:
        moved = copy(self, batch, *rest)
        time.sleep(sum(one.nbytes for one in batch.values() if hasattr(one, "nbytes")) / copy_bytes_s)
        return moved

    with simulated("eager") as (_, patch):
        patch.setattr(copier.Copier, "copy", slow)
        if settings.get("unpinned"):
            patch.setattr(copier, "register", lambda *_: False)
        with DeviceLoader(dataset, device="cuda:0") as loader:
            yield loader


def _train(settings: dict[str, Any], rank: int) -> None:
    step_s = settings["step_s"] * (settings.get("slow_rank", 1.0) if rank == 1 else 1.0)
    pause_every, log_calls = settings.get("pause_every", 0), settings.get("log_calls", 0)
    if settings.get("apart"):
        shm.attach = _not_mounted  # type: ignore[assignment]  # as in a container without the socket's directory
    sys.stdout.write("opens\n")
    sys.stdout.flush()
    dataset = _dataset(settings, rank)
    count = 0
    log = os.open("/dev/null" if rank else Path(settings["run_dir"]) / "log", os.O_WRONLY | os.O_CREAT, 0o600)
    with _batches(settings, dataset) as batches:
        while True:
            for _ in batches:
                count += 1
                if count == 1:
                    sys.stdout.write("began\n")
                    sys.stdout.flush()
                _work(step_s, spins=settings.get("spins", False))
                for call in range(log_calls if count % settings.get("log_every", 1) == 0 else 0):
                    os.write(log, b"step %d line %d\n" % (count, call))
                if pause_every and count % pause_every == 0:
                    _pause(settings)


def _not_mounted(*_: object, **__: object) -> None:
    raise FileNotFoundError("the socket's directory is not mounted")


def _work(step_s: float, *, spins: bool) -> None:
    if not spins:
        time.sleep(step_s)
        return
    end_s = time.perf_counter() + step_s
    while time.perf_counter() < end_s:
        pass


def _pause(settings: dict[str, Any]) -> None:
    size_bytes = settings.get("checkpoint_bytes", 0)
    if size_bytes:
        (Path(settings["run_dir"]) / "checkpoint").write_bytes(bytes(size_bytes))
    time.sleep(settings["pause_s"])


def main() -> None:
    """Train until killed."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    socket = Path(settings["run_dir"]) / "ready"
    while not socket.exists():
        time.sleep(_LOOK_S)
    for rank in range(1, settings.get("ranks", 1)):
        if os.fork() == 0:
            _train(settings, rank)
    _train(settings, 0)


if __name__ == "__main__":
    main()
