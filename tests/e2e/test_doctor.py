"""``feedd doctor`` beside real jobs: each cause gets its name."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset
from tests.e2e.shards import numbered
from tests.fakes.s3.faults import late

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SHARDS, SAMPLES, BATCH = 64, 12, 4


@pytest.fixture
def data(s3: S3Server) -> S3Server:
    """Shards of a megabyte, as doctor finds smaller ones too small."""
    for shard in range(SHARDS):
        s3.put("data", f"train/{shard:03d}.tar", numbered(shard, SAMPLES, pad_bytes=100_000))
    return s3


@contextmanager
def _training(daemon: Daemon, step: Callable[[int], object], **options: Any) -> Iterator[FeedDataset]:
    """Read batches in a thread, epoch after epoch; ``step`` gets the number of each."""
    dataset = FeedDataset(
        "s3://data/train/", batch_size=BATCH, fields={"cls": "int"}, address=daemon.address, prefetch=2, **options
    )
    stop = threading.Event()

    def train() -> None:
        count = itertools.count()
        while not stop.is_set():
            for _ in dataset:
                step(next(count))
                if stop.is_set():
                    return

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield dataset
    finally:
        stop.set()
        thread.join(60)
        dataset.close()
    assert not thread.is_alive()


def _doctor(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "feedd", "doctor", "--address", daemon.address, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def _verdict(daemon: Daemon, *arguments: str) -> dict[str, Any]:
    done = _doctor(daemon, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.usefixtures("data")
def test_a_job_that_is_fed_is_told_so(daemons: Callable[..., Daemon]) -> None:
    """A step that is longer than its batch takes: not the input, as text and as JSON."""
    daemon = daemons()
    with _training(daemon, lambda _: time.sleep(0.2), share="job-1"):
        time.sleep(2)
        told = _verdict(daemon, "--seconds", "3", "--job", "job-1")
        assert told["verdict"] == "healthy", told
        assert told["gain"]["predicted"] is None
        assert 2 < told["gain"]["now"] < 6
        text = _doctor(daemon, "--seconds", "2").stdout
        assert "not the input: batches are there when the trainer asks" in text
        other = _doctor(daemon, "--seconds", "2", "--job", "job-2")
        assert other.returncode == 1
        assert "expected a trainer that takes batches, got none [job-2]" in other.stderr


def test_a_slow_store_is_named_with_its_knob(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Requests wait for their first byte: latency, and more parts in flight against it."""
    data.script("data", "*", always=late(0.5))
    daemon = daemons(settings=("fetch.parts_in_flight=1", "fetch.hedge_share=0"))
    with _training(daemon, lambda _: None):
        time.sleep(1)
        told = _verdict(daemon, "--seconds", "4")
    assert told["verdict"] == "s3_latency", told
    assert told["knob"] == {"option": "fetch.parts_in_flight", "from": "1", "to": "2"}
    assert 1.0 <= told["gain"]["predicted"] / told["gain"]["now"] <= 2.0  # less where other processes take the cores
    waits, *others = told["evidence"]
    assert waits["what"] == "time that the trainer waits for a batch"
    assert waits["value"] > 0.5
    assert any(one["unit"] == "s" and 0.4 < one["value"] < 2 for one in others)


@pytest.mark.usefixtures("data")
def test_a_trainer_that_pauses_is_told_so(daemons: Callable[..., Daemon]) -> None:
    """Every twentieth step takes a second: pauses, and what the job gains without them."""
    daemon = daemons()
    with _training(daemon, lambda number: time.sleep(1.2 if number % 20 == 19 else 0.05)):
        time.sleep(1.5)
        told = _verdict(daemon, "--seconds", "5")
    assert told["verdict"] == "evaluation", told
    assert told["gain"]["predicted"] > 1.2 * told["gain"]["now"]
