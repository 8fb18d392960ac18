"""Compressed shards, from S3 through a real daemon to tensors."""

from __future__ import annotations

import bz2
import gzip
import lzma
from typing import TYPE_CHECKING

import pytest
import torch
import zstandard

from feedd_client import FeedDataset
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.bench.server.server import S3Server
    from tests.e2e.daemon import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PACKED = {
    "tar": bytes,
    "tar.gz": lambda data: gzip.compress(data[:7000]) + gzip.compress(data[7000:]),
    "tgz": gzip.compress,
    "tar.zst": zstandard.compress,
    "tar.bz2": bz2.compress,
    "tar.xz": lzma.compress,
}
FIELDS = {"jpg": "image:32x32:random", "cls": "int"}


def _epochs(daemon: Daemon, kind: str, epochs: int) -> list[list[dict[str, torch.Tensor]]]:
    dataset = FeedDataset(
        f"s3://data/{kind}/", batch_size=7, fields=FIELDS, shuffle=True, seed=3, address=daemon.address, copy=True
    )
    taken = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        taken.append(list(dataset))
    return taken


def test_compressed_shards_give_the_same_batches(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """However the same shards are packed, batches are equal; the second epoch fetches nothing."""
    for kind, pack in PACKED.items():
        for shard in range(4):
            s3.put("data", f"{kind}/{shard:03d}.{kind}", pack(numbered(shard, 10)))
    daemon = daemons(workers=2)
    expected = _epochs(daemon, "tar", 2)
    for kind in PACKED:
        first = _epochs(daemon, kind, 1)
        fetched_bytes = daemon.metrics()["feedd_source_bytes_total"]
        both = _epochs(daemon, kind, 2)
        assert daemon.metrics()["feedd_source_bytes_total"] == fetched_bytes
        for taken, wanted in ((first, expected[:1]), (both, expected)):
            for batches, others in zip(taken, wanted, strict=True):
                for batch, other in zip(batches, others, strict=True):
                    assert torch.equal(batch["jpg"], other["jpg"]), kind
                    assert torch.equal(batch["cls"], other["cls"]), kind
    daemon.wait_idle(sessions=0)
    assert daemon.metrics()["feedd_pipeline_made_shards_total"] == 4 * (len(PACKED) - 1)
