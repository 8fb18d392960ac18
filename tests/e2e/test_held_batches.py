"""Epochs that are kept whole, from S3 through a real daemon: the same values as with private copies."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from feedd_client import BatchesHeldError, FeedDataset, Ragged, ResourceError
from tests.e2e.shards import numbered
from tests.fakes.forks import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]
SLOTS = 4
STOP_S = 3.0
HOLDER = """
import sys
from feedd_client import FeedDataset
dataset = FeedDataset("s3://data/d/", batch_size=8, fields={"jpg": "image:32x32"}, address=sys.argv[1])
batch = next(iter(dataset))
dataset.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def _tars(s3: S3Server) -> dict[str, Any]:
    for shard in range(2):
        s3.put("data", f"d/{shard}.tar", numbered(shard, 64))
    return {"fields": {"jpg": "image:32x32", "cls": "int"}, "keys": True}


def _tokens(s3: S3Server) -> dict[str, Any]:
    for shard in range(2):
        s3.put("data", f"d/{shard}.bin", np.arange(10_000 + shard, dtype=np.uint16).tobytes())
    return {"fields": {"tokens": "tokens:uint16:129"}}


def _parquet(s3: S3Server) -> dict[str, Any]:
    for shard in range(2):
        sink = io.BytesIO()
        draws = np.random.default_rng(shard)
        texts = [f"text {number}" * (number % 7) for number in range(80)]
        lists = [list(range(number % 5)) for number in range(80)]
        pq.write_table(pa.table({"x": draws.random(80), "n": draws.integers(0, 99, 80), "t": texts, "l": lists}), sink)
        s3.put("data", f"d/{shard}.parquet", sink.getvalue())
    return {}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Ragged):
        return _same(one.values, other.values) and _same(one.offsets, other.offsets)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize("put", [_tars, _tokens, _parquet])
@pytest.mark.parametrize("share", [None, "group"])
def test_a_list_equals_the_copied_epoch(
    s3: S3Server, daemons: Callable[..., Daemon], put: Callable[[S3Server], dict[str, Any]], share: str | None
) -> None:
    """Three times as many batches as slots are held at once, for two epochs, and each is what it was when it came."""
    options = put(s3)
    daemon = daemons()

    def epochs(**more: Any) -> list[list[dict[str, Any]]]:
        dataset = FeedDataset(
            "s3://data/d/", batch_size=8, shuffle=True, prefetch=SLOTS, share=share, address=daemon.address,
            **{**options, **more},
        )  # fmt: skip
        return [list(dataset) for _ in range(2)]

    held, copied = epochs(), epochs(copy=True)
    assert len(held[0]) >= 3 * SLOTS
    for ours, theirs in zip(held, copied, strict=True):
        assert len(ours) == len(theirs)
        for batch, wanted in zip(ours, theirs, strict=True):
            assert batch.keys() == wanted.keys()
            assert all(_same(batch[name], wanted[name]) for name in wanted)
    del held, copied, ours, theirs, batch, wanted
    daemon.wait_idle(sessions=0)


def test_held_batches_have_a_limit(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A trainer that keeps everything is told so before it has taken all memory."""
    options = _tars(s3)
    daemon = daemons()
    dataset = FeedDataset(
        "s3://data/d/", batch_size=8, prefetch=SLOTS, copy_bytes=100_000, address=daemon.address, **options
    )
    with pytest.raises(BatchesHeldError, match="plus 3 in slots"):
        list(dataset)


@pytest.mark.parametrize("share", [None, "group"])
def test_memory_that_is_held_counts(s3: S3Server, daemons: Callable[..., Daemon], share: str | None) -> None:
    """A trainer closes its dataset and keeps a batch: the arena counts until the batch is dropped."""
    options = _tars(s3)
    daemon = daemons()
    dataset = FeedDataset("s3://data/d/", batch_size=8, share=share, address=daemon.address, **options)
    batch = next(iter(dataset))
    images = batch["jpg"]
    wanted, before = images.clone(), daemon.metrics()
    del batch
    dataset.close()
    time.sleep(0.3)  # a daemon that forgot the trainer would have done so by now
    after = daemon.metrics()
    assert after["feedd_serve_arena_bytes"] == before["feedd_serve_arena_bytes"] > images.nbytes
    assert after["feedd_serve_sessions"] == (0 if share is None else 1)  # others write to the arena of a group
    assert torch.equal(images, wanted)
    del images
    daemon.wait_idle(sessions=0)


def test_a_killed_trainer_frees_what_it_held(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """The memory of a trainer that is killed behind the close of its dataset counts no longer, at once."""
    _tars(s3)
    daemon = daemons()
    with Script(HOLDER, [daemon.address], daemon.home / "trainer.log") as trainer:
        assert trainer.stdout.readline() == b"closed\n"
        held = daemon.metrics()
        assert (held["feedd_serve_sessions"], held["feedd_serve_arena_bytes"] > 0) == (0, True)
        trainer.kill()
    daemon.wait_idle(sessions=0, timeout_s=2)


def test_memory_that_is_held_bounds_what_opens(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """With no room beside what a trainer holds, the next open says so; it succeeds once the batch is dropped."""
    for shard in range(2):
        s3.put("data", f"d/{shard}.tar", numbered(shard, 64))
    daemon = daemons(settings=("arena.size=40MiB",))
    options: dict[str, Any] = {
        "fields": {"jpg": "image:256x256"},
        "batch_size": 32,
        "prefetch": SLOTS,
        "address": daemon.address,
    }
    first = FeedDataset("s3://data/d/", **options)
    batch = next(iter(first))
    first.close()
    second = FeedDataset("s3://data/d/", open_timeout_s=4.0, **options)
    with pytest.raises(ResourceError, match="until its batches are dropped"):
        next(iter(second))
    del batch
    assert len([None for _ in FeedDataset("s3://data/d/", **options)]) == SLOTS


def test_a_daemon_stops_in_time_beside_held_memory(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A daemon that is told to stop abandons what closed sessions' trainers still map; the batch stays readable."""
    options = _tars(s3)
    daemon = daemons(name="own")
    dataset = FeedDataset("s3://data/d/", batch_size=8, address=daemon.address, **options)
    batch = next(iter(dataset))
    wanted = batch["jpg"].clone()
    dataset.close()
    started_s = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - started_s < STOP_S
    assert torch.equal(batch["jpg"], wanted)
