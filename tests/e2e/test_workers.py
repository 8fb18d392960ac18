"""Decode workers of a real daemon: on the cores they were given, renewed when they have grown, and nobody notices."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from feedd_client import FeedDataset
from tests.fakes.tars import image_samples, tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
LIMIT_S = 60.0


def test_workers_keep_to_their_cores_and_are_renewed(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Pinned workers that grow with the first image are replaced by pinned ones, while epochs stay what they are."""
    s3.put("data", "i/0.tar", tar_bytes(image_samples(16, height=200, width=300)))
    core = max(os.sched_getaffinity(0))
    settings = (f"decode.cpus={core}", "decode.recycle_growth=2MiB")
    daemon = daemons(workers=2, settings=settings)
    first = sorted(worker.pid for worker in daemon.decode_workers())
    assert len(first) == 2
    dataset = FeedDataset(
        "s3://data/i/", batch_size=16, fields={"jpg": "image:32x32", "cls": "int"}, address=daemon.address, copy=True
    )
    (expected,) = dataset
    deadline = time.monotonic() + LIMIT_S
    while daemon.metrics()["feedd_decode_workers_recycled_total"] < 2:
        (batch,) = dataset
        assert batch["jpg"].equal(expected["jpg"])
        assert batch["cls"].equal(expected["cls"])
        assert time.monotonic() < deadline, daemon.log.read_text()[-3000:]
    while len(now := sorted(worker.pid for worker in daemon.decode_workers())) != 2 or set(now) & set(first):
        assert time.monotonic() < deadline, (first, now)
        time.sleep(0.05)
    assert all(os.sched_getaffinity(pid) == {core} for pid in now)
    seen = daemon.metrics()
    assert seen["feedd_decode_workers_wanted"] == 2
    assert seen["feedd_decode_worker_restarts_total"] == 0
    assert seen["feedd_decode_bad_samples_total"] == 0
