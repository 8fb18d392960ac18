"""Daemons follow one another under trainers of every kind: each epoch has its samples in the same order, each once."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset, Topology
from tests.e2e.daemon import STOP_S, Daemon, free_port
from tests.e2e.runs import wait_until
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]

IMAGES = {"cls": "int", "jpg": "image:32x32"}
STEP_S = 0.005
KINDS: dict[str, list[dict[str, Any]]] = {
    "ordered": [{}],
    "shuffled": [{"shuffle": True, "seed": 3}],
    "ranks": [
        {
            "shuffle": True,
            "uneven": "allow",
            "topology": Topology(world_size=2, rank=n, local_world_size=2, local_rank=n),
        }
        for n in range(2)
    ],
    "shared": [{"shuffle": True, "share": "jobs"} for _ in range(2)],
    "runs": [{"shuffle": True, "fields": {"cls": "int"}}],
    "tcp": [{"shuffle": True}],
    "samples": [{"shuffle": True, "batch_size": None}],
}


class Reader(threading.Thread):
    """Reads epochs until it is told to stop, and ends with its epoch."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        about = {"batch_size": 4, "fields": IMAGES, "prefetch": 4, "topology": Topology(), **options}
        self.dataset = FeedDataset("s3://data/train/", address=address, reconnect_timeout_s=60, **about)
        self.epochs: list[list[int]] = []
        self.stop = threading.Event()
        self.pause_s = STEP_S
        self.failure: BaseException | None = None

    @property
    def reconnects(self) -> int:
        """How often the dataset has lost a daemon and gone on."""
        found: int = self.dataset.stats()["reconnects"]
        return found

    def run(self) -> None:
        """Read."""
        try:
            while not self.stop.is_set():
                self.read()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.failure = error

    def read(self) -> None:
        """Read one epoch."""
        self.epochs.append([])
        for batch in self.dataset:
            self.epochs[-1] += batch["cls"].reshape(-1).tolist()
            time.sleep(self.pause_s)


def _steps_of(readers: list[Reader]) -> None:
    """Wait until each reader has taken some steps more."""
    seen = [sum(map(len, reader.epochs)) for reader in readers]
    wait_until(
        lambda: all(
            reader.failure or sum(map(len, reader.epochs)) > before + 100
            for reader, before in zip(readers, seen, strict=True)
        ),
        "steps",
    )


def _replaced(daemon: Daemon, standby: Daemon, way: str, chance: random.Random) -> Daemon:
    """End one of two daemons, or both, and return the one that serves then."""
    assert daemon.process is not None
    if way == "standby dies":
        standby.kill()
        return daemon
    if way == "SIGTERM":
        daemon.process.terminate()
        assert daemon.process.wait(STOP_S) == 0, daemon.log.read_text()[-3000:]
        return standby
    daemon.kill()
    if way == "both die":
        time.sleep(chance.uniform(0.0, 0.4))  # before, while or after it takes over
        standby.kill()
        standby.start()
    return standby


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_once_and_in_order(short_dir: Path, s3: S3Server, kind: str) -> None:
    """Daemons that end by SIGTERM and by SIGKILL, standbys that die while they wait or take over: no sample is lost."""
    for shard in range(6):
        s3.put("data", f"train/{shard}.tar", numbered(shard, 40))
    port, chance = free_port(), random.Random(11)

    def new(*flags: str) -> Daemon:
        return Daemon(short_dir, s3.url, flags=flags, tcp_only=kind == "tcp", tcp_port=port)

    with ExitStack() as stack:
        daemon = stack.enter_context(new())
        readers = [Reader(daemon.address, options) for options in KINDS[kind]]
        for reader in readers:
            reader.start()
        for way in ("SIGTERM", "SIGKILL", "standby dies", "both die", "both die", "SIGTERM"):
            _steps_of(readers)
            assert [reader.failure for reader in readers] == [None] * len(readers)
            reconnects = [reader.reconnects for reader in readers]
            standby = stack.enter_context(new("--standby"))
            daemon = _replaced(daemon, standby, way, chance)
        # A client that ends before it knows of the last daemon leaves a session there that waits a minute.
        wait_until(
            lambda: all(
                reader.failure or reader.reconnects > before for reader, before in zip(readers, reconnects, strict=True)
            ),
            "reconnects",
        )
        _steps_of(readers)
        for reader in readers:
            reader.stop.set()
        for reader in readers:
            reader.join(120)
            assert reader.failure is None
            assert reader.reconnects >= 3
            reader.dataset.close()
        for reader, options in zip(readers, KINDS[kind], strict=True):
            alone = Reader(daemon.address, {name: value for name, value in options.items() if name != "share"})
            alone.pause_s = 0.0
            for _ in reader.epochs:
                alone.read()
            alone.dataset.close()
            assert reader.epochs == alone.epochs
        assert "by an error" not in daemon.log.read_text()
        daemon.settle()
        assert daemon.stop() == 0
