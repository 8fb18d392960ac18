"""Bad input, each through a real daemon: one clear error that names the object, and the daemon lives on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset, FeedError, StoreError
from tests.e2e.shards import jpeg, numbered, tar
from tests.fakes.s3 import faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

STANDING = {"settings": ("fetch.attempts=2",)}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

GOOD = {"jpg": "image:32x32", "cls": "int"}


def _read(daemon: Daemon, url: str = "s3://data/train/", **options: Any) -> list[int]:
    dataset = FeedDataset(url, batch_size=4, address=daemon.address, **{"fields": GOOD, **options})
    return [label for batch in dataset for label in batch["cls"].tolist()]


def _fails(daemon: Daemon, *words: str, **options: Any) -> str:
    with pytest.raises(FeedError) as caught:
        _read(daemon, **options)
    text = str(caught.value)
    for word in words:
        assert word in text, (word, text)
    return text


@pytest.fixture
def daemon(s3: S3Server, daemons: Callable[..., Daemon]) -> Daemon:
    """A daemon over one good prefix."""
    for shard in range(2):
        s3.put("data", f"train/{shard}.tar", numbered(shard, 6))
    return daemons(**STANDING)


@pytest.fixture
def own(daemon: Daemon, daemons: Callable[..., Daemon]) -> Daemon:
    """The same, for tests that ask what it fetches and says."""
    return daemons("own", **STANDING)


def test_what_is_not_there(s3: S3Server, daemon: Daemon) -> None:
    """A missing bucket, an empty prefix and a malformed URL are told apart and named; good data still reads."""
    _fails(daemon, "nobody", url="s3://nobody/train/")
    _fails(daemon, "s3://data/nothing/", url="s3://data/nothing/")
    _fails(daemon, "ftp://", url="ftp://data/train/")
    _fails(daemon, "did you mean s3://data/train/?", url="data/train/")
    _fails(daemon, "a shell command", "specify the objects", url="pipe:aws s3 cp s3://data/train/0.tar -")
    assert len(_read(daemon)) == 12
    daemon.wait_idle()


def test_denied_and_unreachable(s3: S3Server, own: Daemon, daemons: Callable[..., Daemon]) -> None:
    """A key without permission names the key; an endpoint nobody listens on names the endpoint."""
    s3.script("data", "train/0.tar", *[faults.denied()] * 8)
    _fails(own, "s3://data/train/0.tar")
    other = daemons("other", endpoint="http://127.0.0.1:9", settings=("fetch.attempts=2",))
    _fails(other, "127.0.0.1:9")


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("no-tar", b"this is not a tar file at all, whatever its name says" * 40),
        ("truncated", numbered(0, 6)[:3000]),
        ("empty", b""),
    ],
)
def test_broken_shards(s3: S3Server, daemon: Daemon, name: str, payload: bytes) -> None:
    """A shard that is no tar, or ends early, is an error that names it."""
    s3.put("data", f"{name}/0.tar", payload)
    _fails(daemon, f"s3://data/{name}/0.tar", url=f"s3://data/{name}/")
    assert len(_read(daemon)) == 12
    daemon.wait_idle()


def test_fields_that_are_not_there(s3: S3Server, daemon: Daemon) -> None:
    """An unknown field lists what there is; an unknown codec lists the codecs."""
    text = _fails(daemon, "png", fields={"png": "image:32x32"})
    assert "jpg" in text
    assert "cls" in text
    assert "image" in _fails(daemon, "imaeg", fields={"jpg": "imaeg:32x32"})


def test_bad_samples_and_the_failure_budget(s3: S3Server, daemon: Daemon) -> None:
    """A corrupt JPEG and a sample without a wanted field end the run by default, and are dropped within the budget."""
    samples = [(f"k{i}", {"jpg": jpeg(i), "cls": str(i).encode()}) for i in range(8)]
    samples[3] = ("k3", {"jpg": jpeg(3)[:200], "cls": b"3"})
    samples[5] = ("k5", {"jpg": jpeg(5)})
    s3.put("data", "bad/0.tar", tar(samples))
    _fails(daemon, "s3://data/bad/0.tar", "k3", url="s3://data/bad/")
    _fails(daemon, "k5", url="s3://data/bad/", max_bad_samples=1)
    assert _read(daemon, url="s3://data/bad/", max_bad_samples=2) == [0, 1, 2, 4, 6, 7]
    assert daemon.metrics()["feedd_decode_bad_samples_total"] >= 2
    daemon.settle()


def test_object_replaced_under_us(s3: S3Server, daemon: Daemon) -> None:
    """An object that changed is read in its new version by the next run, never as a mix with the cached old one."""
    s3.put("data", "moving/0.tar", numbered(0, 6))
    s3.put("data", "moving/1.tar", numbered(1, 6))
    assert _read(daemon, url="s3://data/moving/") == [0, 1, 2, 3, 4, 5, 1000, 1001, 1002, 1003, 1004, 1005]
    s3.put("data", "moving/1.tar", numbered(9, 6))
    assert _read(daemon, url="s3://data/moving/1.tar") == [9000, 9001, 9002, 9003, 9004, 9005]
    daemon.wait_idle()


def test_a_store_that_says_nothing(s3: S3Server, own: Daemon, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent store is the store's error, not the daemon's; the trainer is told what it waits for meanwhile."""
    monkeypatch.setattr("feedd_client.waiting.FIRST_S", 0.2)
    s3.script("data", "", op="LIST", always=faults.hang())
    caplog.set_level("WARNING", "feedd_client")
    with pytest.raises(StoreError, match="no answer while listing s3://data/train/"):
        _read(own, open_timeout_s=3.0)
    waits = [record.getMessage() for record in caplog.records if "still opening" in record.getMessage()]
    assert waits, caplog.text
    assert "still opening s3://data/train/ after" in waits[0]
    assert "listing s3://data/train/" in waits[0]
    failed = [line for line in own.log.read_text().splitlines() if '"open failed"' in line]
    assert len(failed) == 1
    assert "store-unavailable" in failed[0]
    s3.calm()
    assert len(_read(own)) == 12
