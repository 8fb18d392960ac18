"""Formats other than tar, from S3 through a real daemon to tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from feedd_client import BadRequestError, FeedDataset
from tests.fakes.tfrecords import example, tfrecord
from tests.unit.decode.test_mds import mds

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.bench.server.server import S3Server
    from tests.e2e.daemon import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_tfrecord(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Features arrive as what they are: labels as numbers, lists as ragged ones, bytes as text."""
    for shard in range(2):
        made = [
            example(label=[shard * 10 + n], scores=[n + 0.5] * n or [0.25], name=f"n{n}".encode(), ids=[n, -n])
            for n in range(5)
        ]
        s3.put("data", f"t/{shard}.tfrecord", tfrecord(*made))
    daemon = daemons()
    fields = {"label": "int", "scores": "array", "name": "str", "ids": "tensor:int64:2"}
    (batch,) = FeedDataset("s3://data/t/", batch_size=10, fields=fields, address=daemon.address, copy=True)
    assert batch["label"].tolist() == [*range(5), *range(10, 15)]
    assert [row.tolist() for row in batch["scores"]] == [[n + 0.5] * n or [0.25] for n in range(5)] * 2
    assert list(batch["name"]) == [f"n{n}" for n in range(5)] * 2
    assert batch["ids"].tolist() == [[n, -n] for n in range(5)] * 2
    with pytest.raises(BadRequestError, match="label"):
        next(iter(FeedDataset("s3://data/t/", batch_size=1, fields={"label": "image"}, address=daemon.address)))
    whatever = next(iter(FeedDataset("s3://data/t/", batch_size=2, fields=None, address=daemon.address)))
    assert [row.tolist() for row in whatever["label"]] == [[0], [1]]


def test_mds_and_json_lines(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Columns and lines, without a word about fields."""
    tokens = np.arange(6, dtype=np.uint8)
    columns = {"label": "int", "text": "str", "tokens": "ndarray:uint8:2,3"}
    samples = [
        {"label": np.int64(n).tobytes(), "text": f"t{n}".encode(), "tokens": (tokens + n).tobytes()} for n in range(3)
    ]
    s3.put("data", "m/shard.00000.mds", mds(columns, samples))
    s3.put("data", "j/a.jsonl", b'{"a": 1}\n\n{"a": [2]}\r\n')
    daemon = daemons()
    (batch,) = FeedDataset("s3://data/m/", batch_size=4, fields=None, address=daemon.address, copy=True)
    assert batch["label"].tolist() == [0, 1, 2]
    assert list(batch["text"]) == ["t0", "t1", "t2"]
    assert torch.equal(
        batch["tokens"], torch.stack([torch.arange(6, dtype=torch.uint8).view(2, 3) + n for n in range(3)])
    )
    (lines,) = FeedDataset("s3://data/j/", batch_size=4, fields=None, address=daemon.address, copy=True)
    assert list(lines["json"]) == [{"a": 1}, {"a": [2]}]
