"""Datasets on web servers and on the Hugging Face Hub, through a real daemon and the commands."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from feedd_client import FeedDataset
from tests.fakes import forks
from tests.fakes.hub import threaded_hub
from tests.fakes.tars import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.hub import FakeHub
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that the daemon and the commands use."""
    with threaded_hub() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield found


def shard(number: int) -> bytes:
    """Return a tar of two samples."""
    return tar_bytes([(f"{at:03d}", {"cls": str(at).encode()}) for at in (2 * number, 2 * number + 1)])


def test_web_servers_and_the_hub(s3: S3Server, hub: FakeHub, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """Braces, lists, manifests and prefixes give the samples in order; commands read the same URLs."""
    for number in range(4):
        s3.put("data", f"w-{number}.tar", shard(number))
        hub.put(f"train/h-{number}.tar", shard(number))
    s3.put("data", "list.json", json.dumps([{"prefix": f"{s3.url}/data/"}, "w-2.tar", "w-1.tar"]).encode())
    daemon = daemons()

    def labels(urls: str | list[str]) -> list[int]:
        fields = {"cls": "int"}
        found = FeedDataset(urls, batch_size=2, fields=fields, shuffle=False, address=daemon.address, copy=True)
        return [int(label) for batch in found for label in batch["cls"]]

    web, root = f"{s3.url}/data", "hf://datasets/owner/name"
    assert labels(f"{web}/w-{{0..3}}.tar") == list(range(8))
    assert labels([f"{web}/w-3.tar", f"{web}/w-0.tar"]) == [6, 7, 0, 1]
    assert labels(f"manifest+{web}/list.json") == [4, 5, 2, 3]
    assert labels(f"{root}/train/") == list(range(8))
    hub.put("train/h-4.tar", shard(9))
    assert labels(f"{root}@{hub.commit_of('train/h-3.tar')}/train/h-{{1,3}}.tar") == [2, 3, 6, 7]
    assert {headers.get("Authorization") for server, _, headers in hub.requests if server == "cdn"} == {None}

    def feedd(*words: str) -> str:
        done = forks.run(words, dict(os.environ))
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    counts = tmp_path / "counts.json"
    assert json.loads(feedd("index", f"{root}/train/", "--json", "--out", str(counts)))["samples"] == 10
    assert "sha256" in feedd("check", f"{root}/train/")
