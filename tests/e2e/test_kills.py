"""kill -9 of client, worker and daemon: nothing is left behind and nothing is lost."""

from __future__ import annotations

import gc
import signal
import threading
from typing import TYPE_CHECKING

import psutil
import pytest
from torch.utils.data import DataLoader

from feedd_client import FeedDataset
from tests.budget import PATIENT_S, later
from tests.e2e.shards import numbered
from tests.fakes.forks import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SHARDS, PER_SHARD = 6, 40
IDS = [shard * 1000 + ordinal for shard in range(SHARDS) for ordinal in range(PER_SHARD)]

_READER = """
import sys
from feedd_client import FeedDataset
fields = {"cls": "int", "jpg": "image:32x32"}
dataset = FeedDataset("s3://data/train/", batch_size=4, fields=fields, address=sys.argv[1])
for batch in dataset:
    print("got", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def data(s3: S3Server) -> None:
    """Six shards."""
    for shard in range(SHARDS):
        s3.put("data", f"train/{shard}.tar", numbered(shard, PER_SHARD))


def _dataset(daemon: Daemon) -> FeedDataset:
    return FeedDataset(
        "s3://data/train/",
        batch_size=4,
        fields={"cls": "int", "jpg": "image:32x32"},
        shuffle=True,
        address=daemon.address,
        reconnect_timeout_s=60,
    )


def _labels(daemon: Daemon) -> list[list[int]]:
    return [batch["cls"].tolist() for batch in _dataset(daemon)]


def test_killed_client(nothing_shared: None, data: None, daemons: Callable[..., Daemon]) -> None:
    """A client killed while it holds leases gives them all back; the daemon serves the next one."""
    daemon = daemons()
    with Script(_READER, [daemon.address], daemon.home / "reader.log") as reader:
        for _ in range(3):
            assert reader.stdout.readline() == b"got\n"
            reader.stdin.write(b"\n")
            reader.stdin.flush()
        assert daemon.metrics()["feedd_serve_leases"] > 0
        reader.kill()
    daemon.wait_idle()
    assert sorted(label for labels in _labels(daemon) for label in labels) == IDS
    assert daemon.stop() == 0


def test_killed_worker(nothing_shared: None, data: None, daemons: Callable[..., Daemon]) -> None:
    """A decode worker killed in mid-epoch changes nothing in what arrives."""
    daemon = daemons(workers=2)
    expected = _labels(daemon)
    got = []
    assert daemon.process is not None
    for step, batch in enumerate(_dataset(daemon)):
        got.append(batch["cls"].tolist())
        if step in {2, 20}:
            daemon.decode_workers()[0].kill()
    assert got == expected
    del batch
    daemon.wait_idle()
    assert daemon.metrics()["feedd_decode_worker_restarts_total"] >= 1
    assert daemon.stop() == 0


def test_killed_daemon_is_a_pause(nothing_shared: None, data: None, daemons: Callable[..., Daemon]) -> None:
    """A daemon killed in mid-epoch and started again on the same socket and cache continues with the next batch."""
    daemon = daemons()
    expected = _labels(daemon)
    got = []
    again = threading.Thread(target=daemon.start)
    for step, batch in enumerate(_dataset(daemon)):
        got.append(batch["cls"].tolist())
        if step == 5:
            children = psutil.Process(daemon.process.pid).children(recursive=True) if daemon.process else []
            daemon.kill()
            alive = psutil.wait_procs(children, timeout=PATIENT_S)[1]
            assert not alive, f"workers outlived the daemon: {alive}"
            again.start()
    del batch
    gc.collect()  # the errors of the lost connection hold frames in a cycle
    again.join()
    assert got == expected
    counters = daemon.metrics()
    assert counters.get("feedd_source_bytes_total", 0) == 0, "the cache did not survive"
    daemon.wait_idle()
    assert daemon.stop() == 0


@pytest.mark.parametrize("workers", [later(0), 1])
def test_killed_daemon_between_epochs_is_a_pause(
    nothing_shared: None, data: None, daemons: Callable[..., Daemon], workers: int
) -> None:
    """An epoch that begins while the daemon is away waits for it; so do DataLoader's workers, which open anew."""
    daemon = daemons()
    loader = DataLoader(_dataset(daemon), batch_size=None, num_workers=workers)
    assert sorted(label for batch in loader for label in batch["cls"].tolist()) == IDS
    daemon.kill()
    batches = iter(loader)
    daemon.start()
    assert sorted(label for batch in batches for label in batch["cls"].tolist()) == IDS
    del batches
    gc.collect()  # the errors of the lost connection hold frames in a cycle
    daemon.wait_idle(sessions=0 if workers else 1)
    assert daemon.stop() == 0


def test_interrupted_daemon_drains(nothing_shared: None, data: None, daemons: Callable[..., Daemon]) -> None:
    """SIGINT ends an idle daemon cleanly: exit code 0, socket gone, no child left."""
    daemon = daemons()
    assert len(_labels(daemon)) == len(IDS) // 4
    assert daemon.process is not None
    children = psutil.Process(daemon.process.pid).children(recursive=True)
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(PATIENT_S) == 0
    assert not psutil.wait_procs(children, timeout=PATIENT_S)[1]
    assert sorted(path.name for path in daemon.home.iterdir()) == ["cache", "feedd.log"]
