"""The decoded cache, from S3 through a real daemon to tensors: the same batches, nothing made or fetched again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from feedd_client import DatasetChanged, FeedDataset, Ragged, Shuffle
from tests.budget import later
from tests.e2e.shards import jpeg, numbered, tar

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

EXTENSION_CONVERTERS = "feedd_pipeline_made_shards_total"
FETCHED = "feedd_source_bytes_total"
FIELDS = {"jpg": "image:32x32", "cls": "int"}


def dataset(daemon: Daemon, url: str = "s3://data/t/", **changes: Any) -> FeedDataset:
    """Return the pictures with the decoded cache, as a user writes it."""
    asked: dict[str, Any] = {
        "batch_size": 7,
        "fields": FIELDS,
        "shuffle": True,
        "seed": 3,
        "keys": True,
        "decoded_cache": True,
    }
    return FeedDataset(url, address=daemon.address, copy=True, **(asked | changes))


def made(daemon: Daemon) -> float:
    """Return how many shards it has made."""
    return daemon.metrics().get(EXTENSION_CONVERTERS, 0)


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Make sure that batches are equal."""
    assert len(one) == len(other)
    for batch, wanted in zip(one, other, strict=True):
        assert batch.keys() == wanted.keys()
        for name, value in batch.items():
            if isinstance(value, Ragged):
                assert all(map(torch.equal, value, wanted[name])), name
            elif isinstance(value, torch.Tensor):
                assert torch.equal(value, wanted[name]), name
            else:
                assert value == wanted[name]


@pytest.mark.parametrize(
    "image",
    [
        later("image:32x32"),
        "image",
        later({"decode": "image", "size": [32, 32], "augment": ["flip"], "transforms": ["channels_first"]}),
        {"decode": "image", "transforms": [{"op": "resize", "size": 40}, {"op": "random_resized_crop", "size": 32}]},
    ],
)
def test_batches_are_equal(s3: S3Server, daemons: Callable[..., Daemon], image: Any) -> None:
    """In every epoch; after the first nothing is fetched and nothing made, and a new daemon begins where it ended."""
    for shard in range(4):
        s3.put("data", f"t/{shard:03d}.tar", numbered(shard, 20))
    daemon = daemons(workers=2)
    fields = {**FIELDS, "jpg": image}
    plain, ready = dataset(daemon, fields=fields, decoded_cache=False), dataset(daemon, fields=fields)
    wanted = [list(plain) for _ in range(3)]
    assert made(daemon) == 0
    same(list(ready), wanted[0])
    assert made(daemon) == 4
    fetched_bytes = daemon.metrics()[FETCHED]
    same(list(ready), wanted[1])
    assert (made(daemon), daemon.metrics()[FETCHED]) == (4, fetched_bytes)
    plain.close()
    ready.close()
    daemon.wait_idle()
    assert daemon.stop() == 0
    daemon.start()
    again = dataset(daemon, fields=fields)
    again.set_epoch(2)
    same(list(again), wanted[2])
    again.close()
    daemon.wait_idle()
    assert (made(daemon), daemon.metrics().get(FETCHED, 0)) == (0, 0)


def test_bad_samples(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """They are counted and named as without; where each is an error it is the same one."""
    broken = {"jpg": jpeg(1)[:-30], "cls": b"1"}
    samples = [
        ("a", {"jpg": jpeg(0), "cls": b"0"}),
        ("b", broken),
        ("c", {"cls": b"2"}),
        ("d", {"jpg": jpeg(3), "cls": b"3"}),
    ]
    s3.put("data", "t/000.tar", tar(samples))
    daemon = daemons()
    found = []
    for ready in (False, True):
        pictures = dataset(daemon, bad_samples="replace", decoded_cache=ready)
        found.append(list(pictures))
        assert pictures.stats()["bad_samples"] == 2
        with pytest.raises(Exception, match="jpg") as caught:
            list(dataset(daemon, decoded_cache=ready, shuffle=False))
        found[-1].append({"error": f"{type(caught.value).__name__}"})
    same(found[0], found[1])


def test_eviction_and_little_room(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Ready shards make room as others do and are made anew; what has no room stays encoded. Batches do not know."""
    for shard in range(4):
        s3.put("data", f"t/{shard:03d}.tar", numbered(shard, 100))  # 0.4 MB; 4 x 0.4 MB of rows
        s3.put("data", f"u/{shard:03d}.tar", numbered(shard, 10, pad_bytes=180_000))
    daemon = daemons(cache_size="6MiB")
    one = Shuffle(window_shards=1)
    wanted = list(dataset(daemon, decoded_cache=False, shuffle=one))
    pictures = dataset(daemon, shuffle=one)
    same(list(pictures), wanted)
    pictures.set_epoch(0)
    list(dataset(daemon, "s3://data/u/", decoded_cache=False, shuffle=one))
    same(list(pictures), wanted)
    assert made(daemon) > 4
    for daemon in (daemons("small", cache_size="3MiB"), daemons("off", settings=("cache.decoded=off",))):
        same(list(dataset(daemon, shuffle=one)), wanted)
        assert not made(daemon)


def test_another_version_of_an_object(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Its rows are made anew; a run of the old one is told."""
    s3.put("data", "t/000.tar", tar([("a", {"jpg": jpeg(0), "cls": b"0"})]))
    daemon = daemons()
    old = dataset(daemon)
    (first,) = list(old)
    s3.put("data", "t/000.tar", tar([("a", {"jpg": jpeg(9), "cls": b"0"})]))
    old.close()
    daemon.wait_idle()
    daemon.stop()
    daemon.start()
    with pytest.raises(DatasetChanged):
        list(old)
    (second,) = list(dataset(daemon))
    (wanted,) = list(dataset(daemon, decoded_cache=False))
    assert torch.equal(second["jpg"], wanted["jpg"])
    assert not torch.equal(first["jpg"], second["jpg"])


def test_a_random_cut_is_another_run(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """It cuts from smaller images, whether they are kept or not: the same batches with any cache, and a state knows."""
    s3.put("data", "t/000.tar", numbered(0, 14))
    fields = {"jpg": "image:32x32:random", "cls": "int"}
    allowed, off = daemons(), daemons("off", settings=("cache.decoded=off",))
    ready = dataset(allowed, fields=fields)
    batches = list(ready)
    same(batches, list(dataset(off, fields=fields)))
    plain = dataset(allowed, fields=fields, decoded_cache=False)
    assert not torch.equal(next(iter(plain))["jpg"], batches[0]["jpg"])
    state = ready.state_dict()
    plain.load_state_dict(state)
    with pytest.raises(DatasetChanged):
        next(iter(plain))
    again = dataset(allowed, fields=fields)
    again.load_state_dict(state)
    assert len(list(again)) == 2
    assert (made(allowed), made(off)) == (1, 0)
