"""Keys with spaces, pluses, percents and the like, listed as AWS lists them, through a real daemon and the commands."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset
from tests.budget import later
from tests.e2e.shards import numbered
from tests.fakes import forks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

PREFIX = "train set+1/"
URL = f"s3://data/{PREFIX}"
SHARDS = ["a b.tar", "a+b.tar", "a%20b.tar", 'it\'s "quoted" & <tagged>;,?=.tar', "img#1.tar", "x//y .tar", "ü é.tar"]
COUNT = 5
FOLDERS = ("golden retriever", "golden+retriever", "golden%20retriever", "R&B <live>", "été #1?")


def put_shards(s3: S3Server) -> list[str]:
    """Put shards of odd names, and return their keys in the store's order."""
    keys = sorted((PREFIX + name for name in SHARDS), key=str.encode)
    for shard, key in enumerate(keys):
        s3.put("data", key, numbered(shard, COUNT))
    return keys


def feedd(s3: S3Server, *words: str) -> Any:
    """Run a command that prints JSON, and return that."""
    own = {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    done = forks.run([*words, "--json"], os.environ | own)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def numbers(data: FeedDataset) -> list[int]:
    """Return the samples' numbers in the order in which they come."""
    return [int(number) for batch in data for number in batch["cls"]]


def shards(daemon: Daemon, url: str, **options: Any) -> FeedDataset:
    """Open shards."""
    return FeedDataset(url, batch_size=4, fields={"cls": "int"}, copy=True, address=daemon.address, **options)


@pytest.mark.nightly
def test_shards_of_odd_names(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Each is planned, counted and read once, listed or named by a manifest."""
    keys = put_shards(s3)
    wanted = [shard * 1000 + ordinal for shard in range(len(keys)) for ordinal in range(COUNT)]
    s3.put("data", "list of shards.json", json.dumps([{"prefix": URL}, *(key[len(PREFIX) :] for key in keys)]).encode())
    plan = feedd(s3, "plan", URL, "--nodes", "1", "--keys")
    assert plan["keys"] == [[f"s3://data/{key}" for key in keys]]
    daemon = daemons()
    assert numbers(shards(daemon, URL)) == wanted
    assert numbers(shards(daemon, "manifest+s3://data/list of shards.json")) == wanted
    assert numbers(shards(daemon, f"{URL}a b.tar")) == wanted[:COUNT]
    feedd(s3, "index", URL)
    data = shards(daemons(name="told"), URL)
    assert len(data) == -(-len(wanted) // 4)
    assert sorted(numbers(data)) == wanted


@pytest.mark.parametrize("label", [later("folder"), "table:all labels+1.csv"])
def test_folders_of_odd_names(s3: S3Server, daemons: Callable[..., Daemon], label: str) -> None:
    """Each object is read, by its own key, and its folder or the table's row is its label."""
    wanted = {f"{name}/{number} {number:02d}": name for name in FOLDERS for number in range(20)}
    for key in wanted:
        s3.put("data", f"{PREFIX}{key}.jpg", key.encode())
    if label != "folder":
        rows = [f'"{key}.jpg","{name}"' for key, name in wanted.items()]
        s3.put("data", f"{PREFIX}all labels+1.csv", "\n".join(["file,label", *rows]).encode())
    fields = {"jpg": "bytes", "label": label}
    data = FeedDataset(URL, batch_size=8, fields=fields, keys=True, copy=True, address=daemons().address)
    classes = data.classes("label")
    assert classes == sorted(FOLDERS)
    got = {}
    for batch in data:
        for key, value, number in zip(batch["__key__"], batch["jpg"], batch["label"].tolist(), strict=True):
            assert bytes(value.numpy()).decode() == key
            got[key] = classes[number]
    assert got == wanted
