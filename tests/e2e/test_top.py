"""``feedd top`` and the web page beside a real job with bad samples."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset
from tests.budget import PATIENT_S
from tests.e2e.runs import wait_until
from tests.e2e.shards import jpeg, tar
from tests.fakes.forks import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TORN = jpeg(1, 200, 200)[:900]
EVIL = b"<script>alert(1)</script>"
EVIL_KEY = "x<img src=x>"


def _top(daemon: Daemon, *arguments: str) -> str:
    done = run(["top", "--address", daemon.address, *arguments], os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _get(url: str) -> tuple[int, str, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENT_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, "", b""


@pytest.fixture
def data(s3: S3Server) -> S3Server:
    """One shard with two samples that no decoder takes."""
    samples = [(f"{number:03}", {"jpg": jpeg(number), "cls": b"1"}) for number in range(30)]
    samples[7] = ("torn", {"jpg": TORN, "cls": b"1"})
    samples[11] = (EVIL_KEY, {"jpg": EVIL, "cls": b"1"})
    s3.put("data", "train/0.tar", tar(samples))
    return s3


@pytest.mark.usefixtures("data")
def test_a_job_is_seen_in_both(daemons: Callable[..., Daemon]) -> None:
    """Progress, rates and bad samples in the terminal and on the page; a sample's own bytes as a picture or as text."""
    daemon = daemons()
    stop = threading.Event()
    dataset = FeedDataset(
        "s3://data/train/", batch_size=5, fields={"jpg": "image:32x32"}, bad_samples="replace", address=daemon.address
    )

    def train() -> None:
        while not stop.is_set():
            for _ in dataset:
                stop.wait(0.05)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        page = _top(daemon, "--url").strip()
        view: dict[str, Any] = {}

        def measured() -> bool:
            view.update(json.loads(_get(f"{page}view.json")[2]))
            return bool(view["verdict"] and view["cache"]["folders"]) and len(view["bad_samples"]) == 2

        wait_until(measured, "a verdict, a folder and bad samples")
        (job,) = view["jobs"]
        assert (job["name"], job["steps"], job["urls"]) == ("data/train", 6, ["s3://data/train/"])
        assert 1 < job["batches_per_s"] < 25
        assert view["ranks"][0]["waits"]
        assert view["cache"]["folders"][0]["url"] == "s3://data/train/"
        by_key = {one["key"]: one for one in view["bad_samples"]}
        assert by_key["torn"]["outcome"] == "replaced"
        assert _get(f"{page}samples/{by_key['torn']['id']}") == (200, "image/jpeg", TORN)
        status, kind, dumped = _get(f"{page}samples/{by_key[EVIL_KEY]['id']}")
        assert (status, kind) == (200, "text/plain; charset=utf-8")
        assert b"alert(1)" in dumped
        anonymous = page.rpartition("/")[0].rpartition("/")[0]
        assert "data/train" not in _get(f"{anonymous}/view.json")[2].decode()
        assert _get(f"{anonymous}/samples/{by_key['torn']['id']}")[0] == 404
        text = _top(daemon, "--once")
        assert "data/train" in text
        assert "torn jpg replaced" in text
        assert "decode" in text
    finally:
        stop.set()
        thread.join(PATIENT_S)
        dataset.close()
    assert page.split("/")[3] not in daemon.log.read_text()
