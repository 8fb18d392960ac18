"""``feedd index --manifest`` and ``frozen+`` URLs: a run opens without a listing, and keeps its version."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset, FeedError
from tests.budget import PATIENT_S
from tests.e2e.shards import numbered
from tests.fakes import forks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

COUNTS = [5, 9, 1, 7, 12, 6]
URL = "s3://data/train/"
FROZEN = f"frozen+{URL}"
FOLDER = "train/_feedd_manifest/"


@pytest.fixture
def filled(s3: S3Server) -> S3Server:
    """Six shards of 40 samples together, and a folder that holds the same."""
    for shard, count in enumerate(COUNTS):
        for folder in ("train", "train-copy"):
            s3.put("data", f"{folder}/{shard:02d}.tar", numbered(shard, count, pad_bytes=100))
    return s3


def _stored(s3: S3Server, key: str) -> bytes:
    found = s3._objects.find("data", key)
    assert found is not None
    assert found.data is not None
    return found.data


def _index(s3: S3Server, *arguments: str, url: str = URL) -> tuple[int, dict[str, Any], str]:
    own = {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with forks.Running(["index", url, "--json", "--set", "decode.workers=1", *arguments], {**os.environ, **own}) as run:
        said, complained = run.communicate(timeout=PATIENT_S)
        assert run.returncode is not None
        return run.returncode, json.loads(said or "{}"), complained


def _dataset(daemon: Daemon, url: str = FROZEN, **options: Any) -> FeedDataset:
    settings: dict[str, Any] = {"batch_size": 4, "fields": {"cls": "int"}, "shuffle": True}
    return FeedDataset(url, address=daemon.address, **settings | options)


def _labels(batches: Any) -> list[int]:
    return [label for batch in batches for label in batch["cls"].tolist()]


def test_parts_count_and_the_last_one_freezes(filled: S3Server) -> None:
    """Parts run in any order and again; each reads its own shards, and only a run that knows all counts freezes."""
    code, facts, said = _index(filled, "--part", "1/2", "--manifest")
    assert (code, facts["counted"], facts["left"], facts["manifest"]) == (0, 3, 0, None), said
    assert "part-00001-of-00002.json" in said
    assert "the last part to end writes s3://data/train/_feedd_index.json" in said
    read = {one.key for one in filled.requests if one.op == "GET" and one.key.endswith(".tar")}
    assert read == {"train/01.tar", "train/03.tar", "train/05.tar"}
    code, facts, said = _index(filled, "--part", "0/2", "--manifest")
    assert (code, facts["counted"], facts["samples"]) == (0, 3, 40), said
    assert facts["manifest"] | {"bytes": 0} == {
        "url": f"s3://data/{FOLDER}00000001.feedd",
        "objects": 6,
        "bytes": 0,
        "new": True,
    }
    assert _index(filled, "--manifest", url=f"{URL[:-1]}-copy/")[0] == 0
    for name in ("_feedd_index.json", "_feedd_manifest/00000001.feedd"):
        assert _stored(filled, f"train/{name}") == _stored(filled, f"train-copy/{name}"), (
            "parts write what one run writes"
        )
    again = _index(filled, "--part", "0/2", "--manifest")[1]["manifest"]
    assert (again["new"], again["url"]) == (False, facts["manifest"]["url"])
    code, _, said = _index(filled, "--part", "2/2")
    assert code == 2
    assert "expected a part I/N" in said


def test_a_run_opens_with_two_requests_and_keeps_its_version(filled: S3Server, daemons: Callable[..., Daemon]) -> None:
    """The order is that of the listed folder; after an append, another daemon goes on with the run's version."""
    assert _index(filled, "--manifest")[0] == 0
    daemon = daemons(workers=1)
    before = len(filled.requests)
    frozen = _dataset(daemon)
    assert len(frozen) == 10
    asked = [(one.op, one.key) for one in filled.requests[before:] if not one.key.endswith(".tar")]
    assert len(asked) == 2, asked
    assert asked[1] == ("GET", f"{FOLDER}00000001.feedd")
    batches = iter(frozen)
    first = _labels([next(batches) for _ in range(3)])
    state = frozen.state_dict()
    rest = _labels(batches)
    listed = _dataset(daemon, URL)
    assert _labels(listed) == first + rest
    listed.load_state_dict(state)
    assert _labels(listed) == rest  # one fingerprint

    filled.put("data", "train/06.tar", numbered(6, 8, pad_bytes=100))
    code, facts, said = _index(filled, "--check", "--manifest")
    assert (code, facts["manifest"]["added"], facts["manifest"]["changed"]) == (1, 1, 0), said
    assert "train/06.tar" in said
    assert _index(filled, "--manifest")[1]["manifest"]["url"].endswith("00000002.feedd")
    other = daemons("other", workers=1)
    resumed, fresh, pinned = (
        _dataset(other),
        _dataset(other),
        _dataset(other, f"{FROZEN}_feedd_manifest/00000001.feedd"),
    )
    resumed.load_state_dict(state)
    assert _labels(resumed) == rest
    assert len(_labels(fresh)) == 48
    assert _labels(pinned) == first + rest
    for dataset in (frozen, listed, resumed, fresh, pinned):
        dataset.close()
    daemon.wait_idle()
    other.wait_idle()


def test_what_is_wrong_is_named(filled: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A folder without a manifest, a damaged one, and an object that changed since."""
    daemon = daemons("empty", workers=1)  # a cached shard of the frozen version would be read
    without = _dataset(daemon)
    with pytest.raises(FeedError, match="expected a frozen manifest, got none"):
        list(without)
    assert _index(filled, "--manifest")[0] == 0
    filled.put("data", "train/03.tar", numbered(3, 2, pad_bytes=100))
    changed = _dataset(daemon)
    with pytest.raises(FeedError, match=r"expected etag .* got .*train/03\.tar"):
        list(changed)
    stored = filled._objects.find("data", f"{FOLDER}00000001.feedd")
    assert stored is not None
    assert stored.data is not None
    filled.put("data", f"{FOLDER}00000002.feedd", stored.data[:-40] + b"x" * 40)
    damaged = _dataset(daemon)
    with pytest.raises(FeedError, match=r"it is damaged.*00000002\.feedd"):
        list(damaged)
    for dataset in (without, changed, damaged):
        dataset.close()
    daemon.wait_idle()
