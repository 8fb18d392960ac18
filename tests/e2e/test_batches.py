"""What batches are made of, from S3 through a real daemon to tensors: padding, filters, buckets, bad samples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from feedd_client import BadRequestError, DeviceLoader, FeedDataset, FeedError, Shuffle
from tests.fakes.tars import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]
URL = "s3://data/d/"


def _text(number: int) -> bytes:
    return bytes([97 + number % 26]) * (number * 7 % 41)


def _store(s3: S3Server, *bad: int, shards: int = 4, samples: int = 10) -> None:
    """Store numbered samples of various lengths; the labels of ``bad`` are broken."""
    for shard in range(shards):
        numbers = range(shard * samples, (shard + 1) * samples)
        made = [(f"{n:05}", {"cls": b"?" if n in bad else str(n).encode(), "bin": _text(n)}) for n in numbers]
        s3.put("data", f"d/{shard}.tar", tar_bytes(made))


def _check(batch: dict[str, Any], value: int = 0) -> None:
    """Make sure that every row holds what its label says, and the rest the value."""
    for label, row, mask in zip(batch["cls"].tolist(), batch["bin"], batch["bin_mask"], strict=True):
        text = _text(label)
        assert bytes(row[mask].tolist()) == text
        assert mask.tolist() == [n < len(text) for n in range(len(mask))]
        assert (row[~mask] == value).all()


def test_padded_fields(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """The same blocks through shared memory, inline and through a loader; each batch as wide as it must be."""
    _store(s3)
    daemon = daemons()
    fields: dict[str, Any] = {"cls": "int", "bin": {"decode": "bytes", "pad": {"to": [16, 32, 64], "value": 9}}}
    seen = []
    for batch in FeedDataset(URL, batch_size=5, fields=fields, shuffle=True, address=daemon.address):
        _check(batch, 9)
        longest = max(len(_text(n)) for n in batch["cls"].tolist())
        assert batch["bin"].shape == (5, next(n for n in (16, 32, 64) if n >= longest))
        assert batch["bin"].dtype == torch.uint8
        assert batch["bin_mask"].dtype == torch.bool
        seen += batch["cls"].tolist()
    assert sorted(seen) == list(range(40))
    whole: dict[str, Any] = {"cls": "int", "bin": {"decode": "bytes", "pad": {"to": "longest", "value": 9}}}
    for batch in DeviceLoader(FeedDataset(URL, batch_size=8, fields=whole, address=daemon.address), device="cpu"):
        _check(batch, 9)
        assert batch["bin"].shape[1] == max(len(_text(n)) for n in batch["cls"].tolist())
    singles = list(FeedDataset(URL, batch_size=None, fields=whole, address=daemon.address, copy=True))
    assert [int(one["bin_mask"].sum()) for one in singles] == [len(_text(n)) for n in range(40)]
    (batch,) = FeedDataset(URL, batch_size=40, fields={"cls": "int", "bin": "bytes"}, address=daemon.address, copy=True)
    for length in (None, 16):
        block, mask = batch["bin"].padded(9, length)
        width = 40 if length is None else length
        assert [bytes(row[own].tolist()) for row, own in zip(block, mask, strict=True)] == [
            _text(n)[:width] for n in range(40)
        ]
        assert (block[~mask] == 9).all()
    daemon.wait_idle()


def test_padded_fields_inline(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A client without shared memory gets the same."""
    _store(s3)
    daemon = daemons(tcp_only=True)
    fields: dict[str, Any] = {
        "cls": "int",
        "bin": {"decode": "bytes", "pad": {"truncate": True, "to": 12, "lengths": True}},
    }
    for batch in FeedDataset(URL, batch_size=7, fields=fields, address=daemon.address):
        assert batch["bin"].shape[1] == 12
        texts = [_text(n)[:12] for n in batch["cls"].tolist()]
        assert batch["bin_length"].tolist() == list(map(len, texts))
        assert [
            bytes(row[:size].tolist()) for row, size in zip(batch["bin"], batch["bin_length"], strict=True)
        ] == texts


def test_policies(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Skipped, replaced or named in a file: counted, and every good sample comes in its place."""
    bad = (3, 4, 17, 39)
    _store(s3, *bad)
    daemon = daemons(settings=("quarantine.path=bad.jsonl",))
    fields = {"cls": "int", "bin": "bytes"}
    good = [n for n in range(40) if n not in bad]

    def dataset(**options: Any) -> FeedDataset:
        return FeedDataset(URL, batch_size=5, fields=fields, address=daemon.address, copy=True, **options)

    for options in ({}, {"bad_samples": "error"}, {"bad_samples": "skip", "max_bad_samples": 3}):
        with pytest.raises(FeedError, match="000"):
            list(dataset(**options))
    skipped = dataset(bad_samples="skip")
    assert [n for batch in skipped for n in batch["cls"].tolist()] == good
    assert skipped.stats()["bad_samples"] == 4
    replaced = dataset(bad_samples="replace", keys=True)
    made = list(replaced)
    assert [batch["cls"].tolist() for batch in made[:2]] == [[0, 1, 2, 0, 0], [5, 6, 7, 8, 9]]
    assert [batch["cls"].shape[0] for batch in made] == [5] * 8
    assert [n for batch in made for n in batch["cls"][batch["__valid__"]].tolist()] == good
    for batch in made:
        assert [batch["bin"].bytes(row) for row in range(5)] == [_text(n) for n in batch["cls"].tolist()]
        assert [int(key) for key in batch["__key__"]] == batch["cls"].tolist()
    assert replaced.stats()["bad_samples"] == 4
    named = dataset(bad_samples="quarantine")
    assert [n for batch in named for n in batch["cls"].tolist()] == good
    lines = [json.loads(line) for line in (daemon.home / "cache" / "bad.jsonl").read_text().splitlines()]
    first = [one for one in lines if one["epoch"] == 0]
    found = sorted((one["url"], one["ordinal"], one["key"], one["field"]) for one in first)  # batches end in any order
    assert found == [(f"s3://data/d/{n // 10}.tar", n % 10, f"{n:05}", "cls") for n in bad]
    assert all(one["offset"] > 0 and "integer" in one["reason"] for one in first)
    daemon.wait_idle(sessions=3)


def test_filters(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """What does not meet the conditions is left out and counted; steps and a state taken between them are the same."""
    _store(s3)
    daemon = daemons()
    wanted = [{"field": "bin", "min_bytes": 10, "max_bytes": 30}, {"field": "cls", "max": 35}]

    def dataset() -> FeedDataset:
        fields = {"cls": "int"}
        return FeedDataset(URL, batch_size=8, fields=fields, filter=wanted, shuffle=True, address=daemon.address)

    whole = dataset()
    steps = [batch["cls"].tolist() for batch in whole]
    kept = [n for n in range(36) if 10 <= len(_text(n)) <= 30]
    assert sorted(n for step in steps for n in step) == kept
    assert len(steps) == 5
    assert whole.stats()["filtered_samples"] == 40 - len(kept)
    assert whole.stats()["bad_samples"] == 0
    none = FeedDataset(
        URL, batch_size=None, fields={"cls": "int"}, filter={"field": "cls", "min": 39}, address=daemon.address
    )
    assert [int(one["cls"]) for one in none] == [39]
    stopped = dataset()
    passing = iter(stopped)
    for _ in range(2):
        next(passing)
    resumed = dataset()
    resumed.load_state_dict(stopped.state_dict())
    assert [batch["cls"].tolist() for batch in resumed] == steps[2:]
    assert daemon.metrics()["feedd_pipeline_filtered_samples_total"] >= 40 - len(kept)
    with pytest.raises(BadRequestError, match="nothing"):
        next(iter(FeedDataset(URL, batch_size=8, shuffle=Shuffle(bucket_by="nothing"), address=daemon.address)))
    with pytest.raises(BadRequestError, match="min_bytes"):
        next(iter(FeedDataset(URL, batch_size=8, filter={"field": "bin", "size": 1}, address=daemon.address)))


def test_buckets(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Batches of similar lengths: each sample once, far less padding, and a run goes on at any step on a new daemon."""
    _store(s3, shards=8, samples=25)
    daemon = daemons()
    fields: dict[str, Any] = {"cls": "int", "bin": {"decode": "bytes", "pad": {}}}

    def dataset(bucket_by: str | None, address: str) -> FeedDataset:
        shuffle = Shuffle(window_shards=4, bucket_by=bucket_by)
        return FeedDataset(URL, batch_size=10, fields=fields, shuffle=shuffle, seed=5, address=address, copy=True)

    def wasted(batches: list[dict[str, Any]]) -> float:
        return float(np.mean([1 - batch["bin_mask"].float().mean() for batch in batches if batch["bin_mask"].numel()]))

    bucketed = list(dataset("bin", daemon.address))
    plain = list(dataset(None, daemon.address))
    for made in (bucketed, plain):
        assert sorted(n for batch in made for n in batch["cls"].tolist()) == list(range(200))
    assert wasted(bucketed) < wasted(plain) / 3
    steps = [batch["cls"].tolist() for batch in bucketed]
    stopped = dataset("bin", daemon.address)
    passing = iter(stopped)
    for _ in range(13):
        next(passing)
    resumed = dataset("bin", daemons("other").address)
    resumed.load_state_dict(stopped.state_dict())
    assert [batch["cls"].tolist() for batch in resumed] == steps[13:]
