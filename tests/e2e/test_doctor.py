"""``feedd doctor`` beside real jobs: each cause gets its name."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset
from tests.budget import PATIENT_S
from tests.e2e.shards import numbered
from tests.fakes.forks import run
from tests.fakes.s3.faults import late

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

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
    options = {"prefetch": 2} | options
    dataset = FeedDataset(
        "s3://data/train/", batch_size=BATCH, fields={"cls": "int"}, address=daemon.address, **options
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
        thread.join(PATIENT_S)
        dataset.close()
    assert not thread.is_alive()


def _doctor(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(["doctor", "--address", daemon.address, *arguments], os.environ, 90)


def _verdict(daemon: Daemon, *arguments: str) -> dict[str, Any]:
    done = _doctor(daemon, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.usefixtures("data")
def test_a_job_that_is_fed_is_told_so(daemons: Callable[..., Daemon]) -> None:
    """A step that is longer than its batch takes: not the input, as text and as JSON.

    The first epoch fills the cache: a store on a busy machine is late, and a trainer that waits for it is not fed.
    """
    daemon = daemons()
    cached = threading.Event()

    def step(number: int) -> None:
        if number >= SHARDS * SAMPLES // BATCH:
            cached.set()
            time.sleep(0.2)

    with _training(daemon, step, share="job-1"):
        assert cached.wait(PATIENT_S)
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


def test_an_epoch_that_fits_into_the_slots_is_no_pause(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Its batches are sent at once; the trainer is then busy with them for 8 s, which is no evaluation."""
    s3.put("data", "train/000.tar", numbered(0, 40 * BATCH))
    daemon = daemons()
    with _training(daemon, lambda _: time.sleep(0.2), prefetch=48):
        time.sleep(1.5)
        told = _verdict(daemon, "--seconds", "2")
    assert told["verdict"] == "healthy", told


def test_a_slow_store_is_named_with_its_knob(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Requests wait for their first byte: latency, and more parts in flight against it."""
    data.script("data", "*", always=late(0.5))
    daemon = daemons(settings=("fetch.parts_in_flight=1", "fetch.hedge_share=0"))
    with _training(daemon, lambda _: None):
        time.sleep(1)
        told = _verdict(daemon, "--seconds", "4")
    assert told["verdict"] == "s3_latency", told
    assert told["knob"] == {"option": "fetch.parts_in_flight", "from": "1", "to": "2"}
    assert (
        1.0 <= told["gain"]["predicted"] / told["gain"]["now"] <= 2.001
    )  # both are rounded; less where other processes take the cores
    waits, *others = told["evidence"]
    assert waits["what"] == "time that the trainer waits for a batch"
    assert waits["value"] > 0.5
    assert any(one["unit"] == "s" and 0.4 < one["value"] < 2 for one in others)


@pytest.mark.nightly
@pytest.mark.usefixtures("data")
def test_a_trainer_that_pauses_is_told_so(daemons: Callable[..., Daemon]) -> None:
    """Every twentieth step takes a second: pauses, and what the job gains without them."""
    daemon = daemons()
    with _training(daemon, lambda number: time.sleep(1.2 if number % 20 == 19 else 0.05)):
        time.sleep(1.5)
        told = _verdict(daemon, "--seconds", "5")
    assert told["verdict"] == "evaluation", told
    assert told["gain"]["predicted"] > 1.2 * told["gain"]["now"]


def _doctor_of_url(s3: S3Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    store = {"AWS_ENDPOINT_URL": s3.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret"}
    command = [sys.executable, "-m", "feedd", "doctor", "s3://data/train/", "--batch-size", str(BATCH), *arguments]
    env = os.environ | store | {"AWS_DEFAULT_REGION": "us-east-1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENT_S, check=False)


def test_data_is_measured_without_a_trainer(data: S3Server) -> None:
    """A stand-in meets the slow store, and the same batches come faster when their shards are cached."""
    data.script("data", "*", always=late(0.5))
    done = _doctor_of_url(
        data,
        *("--fields", '{"cls": "int"}', "--seconds", "2", "--what-if", "cached", "--json"),
        *("--set", "fetch.parts_in_flight=1", "--set", "fetch.hedge_share=0"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "s3_latency", found
    room = found["what_if"]
    assert room["case"] == "cached"
    assert room["best"] > 3 * room["now"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["decoded", "local"])
def test_head_room_is_measured_otherwise(data: S3Server, case: str) -> None:
    """From decoded images, or from a local copy, as text."""
    done = _doctor_of_url(data, "--fields", '{"jpg": "image:32x32"}', "--seconds", "2", "--what-if", case)
    assert done.returncode == 0, done.stderr
    assert f"what if {case}" in done.stdout


@pytest.mark.nightly
@pytest.mark.usefixtures("data")
def test_what_keeps_data_from_being_opened_is_said(s3: S3Server) -> None:
    """A field that is no image, and a field that is not there: one line, and no traceback."""
    done = _doctor_of_url(s3, "--fields", '{"cls": "image"}', "--seconds", "2")
    assert done.returncode == 1
    assert "expected a JPEG" in done.stderr
    done = _doctor_of_url(s3, "--fields", '{"nothing": "int"}', "--seconds", "2")
    assert done.returncode == 1
    assert "feedd: error: " in done.stderr
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr
