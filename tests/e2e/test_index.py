"""``feedd index``: counted once, and every run after that knows its steps before the first shard is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from feedd.bench.server import faults as fault
from feedd_client import FeedDataset, FeedError, Topology
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from feedd.bench.server.server import S3Server
    from tests.e2e.daemon import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

COUNTS = [5, 9, 1, 7, 12, 6]
URL = "s3://data/train/"
INDEX = "train/_feedd_index.json"


@pytest.fixture
def filled(s3: S3Server) -> S3Server:
    """Six shards of 40 samples together."""
    for shard, count in enumerate(COUNTS):
        s3.put("data", f"train/{shard:02d}.tar", numbered(shard, count, pad_bytes=100))
    return s3


def _stored(s3: S3Server) -> bytes:
    found = s3._objects.find("data", INDEX)
    assert found is not None
    assert found.data is not None
    return found.data


def _index(s3: S3Server, *arguments: str, url: str = URL) -> tuple[int, dict[str, Any], str]:
    environment: Mapping[str, str] = {
        **os.environ,
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    words = [sys.executable, "-m", "feedd", "index", url, "--json", *arguments]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def _dataset(daemon: Daemon, rank: int = 0, **options: Any) -> FeedDataset:
    settings: dict[str, Any] = {"batch_size": 4, "fields": {"cls": "int"}, "shuffle": True}
    topology = Topology(2, rank, 2, rank, 1, 0)
    return FeedDataset(URL, address=daemon.address, topology=topology, **settings | options)


def test_steps_are_known_where_there_is_an_index(filled: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Counted: two ranks have 5 full batches each by themselves, len() says so; filled up it is the same 40 samples."""
    code, facts, said = _index(filled)
    assert (code, facts["samples"], facts["counted"], facts["failed"]) == (0, 40, 6, []), said
    assert json.loads(_stored(filled))["sample_count"] == COUNTS
    daemon = daemons(workers=1)
    datasets = [_dataset(daemon, rank) for rank in range(2)]
    assert [len(dataset) for dataset in datasets] == [5, 5]
    taken = [label for dataset in datasets for batch in dataset for label in batch["cls"].tolist()]
    assert sorted(taken) == [shard * 1000 + n for shard, count in enumerate(COUNTS) for n in range(count)]
    padded = [_dataset(daemon, rank, batch_size=3, uneven="pad", sharding="sample") for rank in range(2)]
    assert [len(dataset) for dataset in padded] == [7, 7]
    marks = [(batch["cls"], batch["__valid__"]) for dataset in padded for batch in dataset]
    assert sum(int(valid.sum()) for _, valid in marks) == 40
    assert sum(len(labels) for labels, _ in marks) == 42
    for dataset in (*datasets, *padded):
        dataset.close()
    daemon.wait_idle()


def test_only_what_changed_is_counted_again(filled: S3Server) -> None:
    """A second run reads nothing; a replaced shard is read, and --check tells before that."""
    assert _index(filled)[0] == 0
    before = len(filled.requests)
    code, facts, _ = _index(filled)
    assert (code, facts["counted"], facts["known"]) == (0, 0, 6)
    assert not [one for one in filled.requests[before:] if one.method == "GET" and one.key.endswith(".tar")]
    filled.put("data", "train/03.tar", numbered(3, 2, pad_bytes=100))
    code, facts, said = _index(filled, "--check")
    assert (code, facts["known"]) == (1, 5)
    assert "5 of 6 shards known" in said
    code, facts, _ = _index(filled)
    assert (code, facts["counted"], facts["samples"]) == (0, 1, 35)


def test_a_busy_store_and_a_narrower_url(filled: S3Server) -> None:
    """A refusal of the PUT is tried again; a URL of some of the objects is no folder, and the index stays whole."""
    filled.script("data", INDEX, fault.slow_down(), op="PUT")
    assert _index(filled)[0] == 0
    kept = _stored(filled)
    code, _, said = _index(filled, url=f"{URL}0")
    assert code == 2
    assert "expected a folder" in said
    assert _stored(filled) == kept


def test_a_shard_that_cannot_be_read_is_named(filled: S3Server) -> None:
    """The others are counted and written all the same; the exit code says that something is missing."""
    filled.put("data", "train/04.tar", b"no tar " * 1000)
    code, facts, said = _index(filled)
    assert code == 1
    assert facts["known"] == 5
    assert "train/04.tar" in said
    assert len(json.loads(_stored(filled))["key"]) == 5


def test_what_other_tools_counted_is_enough(filled: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A sizes.json beside the shards tells the steps; a wrong one is named when the shard is read, and counted past."""
    sizes = {f"{shard:02d}.tar": count for shard, count in enumerate(COUNTS)}
    filled.put("data", "train/sizes.json", json.dumps(sizes).encode())
    daemon = daemons(workers=1)
    datasets = [_dataset(daemon, rank) for rank in range(2)]
    assert [len(dataset) for dataset in datasets] == [5, 5]
    assert sum(len(batch["cls"]) for dataset in datasets for batch in dataset) == 40
    wrong = daemons("wrong", workers=1)
    filled.put("data", "train/sizes.json", json.dumps(sizes | {"04.tar": 20}).encode())
    misled = _dataset(wrong)
    with pytest.raises(FeedError, match=r"expected 20 samples, as s3://data/train/sizes.json says, got 12"):
        list(misled)
    code, facts, said = _index(filled)
    assert (code, facts["samples"], facts["counted"]) == (0, 40, 6), said
    again = _dataset(wrong)
    assert len(again) == 5
    for dataset in (*datasets, misled, again):
        dataset.close()
    for one in (daemon, wrong):
        one.wait_idle()
