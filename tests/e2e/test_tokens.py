"""Files of tokens, from S3 through a real daemon to tensors."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from feedd_client import FeedDataset, FeedError, Shuffle
from tests.fakes.megatron import megatron
from tests.fakes.tfrecords import example, tfrecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]
WINDOW = 65


def rows_of(dataset: FeedDataset) -> np.ndarray:
    """Return all rows of an epoch, in order of their first two tokens."""
    rows = np.concatenate([batch["tokens"].numpy().copy() for batch in dataset])
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]


def test_nanogpt_files_shuffled(s3: S3Server, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """Each window that nanoGPT would cut at multiples of its block size comes once an epoch; steps are known ahead."""
    expected = []
    for shard in range(3):
        tokens = (np.arange(20_000 + 77 * shard) + shard * 20_100).astype(np.uint16)
        path = tmp_path / f"{shard}.bin"
        tokens.tofile(path)
        s3.put("data", f"t/{shard}.bin", path.read_bytes())
        mapped = np.memmap(path, np.uint16, "r")
        expected += [mapped[at : at + WINDOW] for at in range(0, len(mapped) - WINDOW + 1, WINDOW - 1)]
    rows = np.stack(expected)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    daemon = daemons()
    fields = {"tokens": f"tokens:uint16:{WINDOW}"}
    dataset = FeedDataset(
        "s3://data/t/", batch_size=9, fields=fields, shuffle=Shuffle(window_shards=2), address=daemon.address, copy=True
    )
    for _ in range(2):
        batches = list(dataset)
        assert len(batches) == len(dataset) == -(-len(rows) // 9)
    whole = FeedDataset("s3://data/t/", batch_size=9, fields=fields, address=daemon.address, uneven="allow", seed=5)
    assert (rows_of(whole) == rows).all()
    assert batches[0]["tokens"].dtype == torch.uint16


def test_other_files_of_tokens(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """llm.c's header, .npy, Megatron's index beside: the same windows of each, padded at the end where asked."""
    tokens = np.arange(150, dtype=np.uint16)
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, len(tokens)
    s3.put("data", "llmc/0.bin", head.tobytes() + tokens.tobytes())
    file = io.BytesIO()
    np.save(file, tokens)
    s3.put("data", "npy/0.npy", file.getvalue())
    index, ids = megatron([range(100), range(100, 150)], "uint16")
    s3.put("data", "mega/0.idx", index)
    s3.put("data", "mega/0.bin", ids)
    daemon = daemons()
    recipe = {"decode": "tokens", "dtype": "uint16", "count": WINDOW, "last": "pad", "fill": 999}
    padded = np.stack([np.arange(at, at + WINDOW) for at in (0, 64, 128)])
    padded[padded >= len(tokens)] = 999
    for url in ("tokens-llmc+s3://data/llmc/", "tokens-npy+s3://data/npy/", "s3://data/mega/"):
        dataset = FeedDataset(
            url, batch_size=4, fields={"tokens": json.dumps(recipe)}, address=daemon.address, uneven="allow", copy=True
        )
        (batch,) = dataset
        assert batch["tokens"].tolist() == padded.tolist()


def test_what_cannot_be_cut_is_said_at_open(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A recipe of another type than the data, and a header read as tokens."""
    tokens = np.arange(150, dtype=np.uint16)
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, len(tokens)
    s3.put("data", "llmc/0.bin", head.tobytes() + tokens.tobytes())
    index, ids = megatron([range(100), range(100, 150)], "int32")
    s3.put("data", "mega/0.idx", index)
    s3.put("data", "mega/0.bin", ids)
    daemon = daemons()
    for url, message in (("s3://data/llmc/", r"tokens-llmc\+"), ("s3://data/mega/", "int32")):
        with pytest.raises(FeedError, match=message):
            next(iter(FeedDataset(url, batch_size=1, fields={"tokens": "tokens:uint16:9"}, address=daemon.address)))


def test_documents_packed(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Documents of any length come as rows of one length, with what a mask and positions are made of."""
    documents = [list(range(100 * n, 100 * n + size)) for n, size in enumerate((5, 3, 9, 2))]
    s3.put("data", "d/0.tfrecord", tfrecord(*(example(ids=one) for one in documents)))
    daemon = daemons()
    recipe = {"decode": "array", "pack": {"length": 8, "how": "bins", "fill": -100}}
    dataset = FeedDataset("s3://data/d/", batch_size=4, fields={"ids": recipe}, address=daemon.address, copy=True)
    (batch,) = dataset
    assert batch["ids"].shape == (3, 8)
    assert batch["ids"].dtype == torch.int64
    assert batch["ids.document"].dtype == batch["ids.position"].dtype == torch.int32
    for number, document in enumerate(documents):
        assert batch["ids"][batch["ids.document"] == number].tolist() == document
    assert (batch["ids"][batch["ids.document"] < 0] == -100).all()


def test_one_dataset_cut_in_two_ways(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Windows of two lengths over the same files, side by side on one daemon."""
    s3.put("data", "t/0.bin", np.arange(1000, dtype=np.uint16).tobytes())
    daemon = daemons()
    datasets = [
        FeedDataset("s3://data/t/", batch_size=1, fields={"tokens": f"tokens:uint16:{n}"}, address=daemon.address)
        for n in (101, 51)
    ]
    passes = [iter(dataset) for dataset in datasets]
    firsts = [next(one)["tokens"].tolist() for one in passes]
    assert firsts == [[list(range(101))], [list(range(51))]]
    assert [len(dataset) for dataset in datasets] == [9, 19]
