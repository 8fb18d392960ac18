"""Formats other than tar, from S3 through a real daemon to tensors."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import tests.fixtures
from feedd_client import BadRequestError, BadShardError, FeedDataset
from tests.fakes.recordio import MAGIC, dmlc, image_record, part, recordio
from tests.fakes.tars import tar_bytes
from tests.fakes.tfrecords import example, tfrecord
from tests.unit.formats.test_mds import mds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]


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


FIXTURES = Path(tests.fixtures.__file__).parent


@pytest.mark.parametrize("name", ["litdata", "litdata_zstd", "mds", "tfrecord_sequences"])
def test_what_other_libraries_wrote(s3: S3Server, daemons: Callable[..., Daemon], name: str) -> None:
    """Folders as the libraries leave them: numbers, text and arrays as they were written; without ``fields``, too."""
    for path in (FIXTURES / name / "data").iterdir():
        s3.put("data", f"x/{path.name}", path.read_bytes())
    expected = json.loads((FIXTURES / name / "expected.json").read_text())
    address = daemons().address
    dataset = FeedDataset("s3://data/x/", batch_size=2, fields=expected["fields"], address=address, copy=True)
    batches = list(dataset)
    for field, how in expected["fields"].items():
        got = [row for batch in batches for row in batch[field]]
        wanted = [sample[field] for sample in expected["samples"]]
        assert len(got) == len(wanted)
        if how in {"int", "str", "json"}:
            assert [row.item() if how == "int" else row for row in got] == wanted
        elif how in {"array", "npy"}:
            assert [row.tolist() for row in got] == [one["values"] for one in wanted]
    (whole,) = FeedDataset("s3://data/x/", batch_size=5, fields=None, address=address, copy=True)
    assert set(whole) >= expected["fields"].keys()
    if name not in {"tfrecord_sequences", "litdata_zstd"}:  # what lies beside tells the counts
        assert len(FeedDataset("s3://data/x/", batch_size=1, fields=None, uneven="drop", address=address)) == 5


def test_rows_that_litdata_wrote_as_arrow(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Where the URL says so they are columns; else an error tells how it is said."""
    for path in (FIXTURES / "litdata_arrow" / "data").iterdir():
        s3.put("data", f"x/{path.name}", path.read_bytes())
    address = daemons().address
    with pytest.raises(BadRequestError, match="Arrow") as caught:
        next(iter(FeedDataset("s3://data/x/", batch_size=5, fields=None, address=address)))
    assert "litdata-arrow+" in str(caught.value)
    (batch,) = FeedDataset("litdata-arrow+s3://data/x/", batch_size=5, fields=None, address=address, copy=True)
    assert batch["label"].tolist() == [0, 1, 2, 3, 4]
    assert list(batch["text"]) == [f"t{n}" for n in range(5)]


def test_recordio(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Images with labels, without their .idx; split records where the URL says so, and else an error that tells it."""
    tiny = (FIXTURES / "webdataset" / "data" / "000.tar").read_bytes()
    png = tiny[tiny.index(b"\x89PNG") :]
    png = png[: png.index(b"IEND") + 8]
    s3.put("data", "i/a.rec", recordio(*(image_record(png, [n], n) for n in range(4))))
    s3.put("data", "i/a.idx", b"0\t0\n")
    daemon = daemons()
    (batch,) = FeedDataset("s3://data/i/", batch_size=4, fields=None, address=daemon.address, copy=True)
    assert batch["label"].tolist() == [0, 1, 2, 3]
    assert batch["id"].tolist() == [0, 1, 2, 3]
    assert len(batch["image"]) == 4
    s3.put("data", "s/a.rec", recordio(b"whole") + dmlc(b"abcd" + MAGIC + b"e") + part(b"last"))
    with pytest.raises(BadShardError, match="several") as caught:
        next(iter(FeedDataset("s3://data/s/", batch_size=3, fields={"data": "bytes"}, address=daemon.address)))
    assert "recordio-join+" in str(caught.value)
    joined = FeedDataset(
        "recordio-join+s3://data/s/", batch_size=3, fields={"data": "bytes"}, address=daemon.address, copy=True
    )
    (batch,) = joined
    assert [bytes(row.numpy()) for row in batch["data"]] == [b"whole", b"abcd" + MAGIC + b"e", b"last"]


def test_formats_without_extensions(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """First bytes tell, or the URL; a name that no format has is refused with those there are, as is a known file."""
    s3.put("data", "n/part-0", tar_bytes([("a", {"txt": b"x"}), ("b", {"txt": b"y"})]))
    s3.put("data", "n/part-1", tfrecord(example(txt=b"z")))
    s3.put("data", "t/lines", b"one\ntwo\n")
    s3.put("data", "p/model.ckpt", b"PK\3\4")
    s3.put("data", "v/a.svm", b"1 1:0.5\n0 2:1\n")
    daemon = daemons()
    (batch,) = FeedDataset("s3://data/n/", batch_size=4, fields={"txt": "str"}, address=daemon.address, copy=True)
    assert list(batch["txt"]) == ["x", "y", "z"]
    (lines,) = FeedDataset("text+s3://data/t/", batch_size=4, fields=None, address=daemon.address, copy=True)
    assert list(lines["text"]) == ["one", "two"]
    (lines,) = FeedDataset("text+s3://data/v/", batch_size=4, fields=None, address=daemon.address, copy=True)
    assert list(lines["text"]) == ["1 1:0.5", "0 2:1"]
    for url, match in (
        ("gs+s3://data/t/", "recordio"),
        ("s3://data/p/", "PyTorch"),
        ("s3://data/v/", r"text\+s3://bucket/prefix/"),
        ("s3://data/t/", "begins with"),
    ):
        with pytest.raises(BadRequestError, match=match):
            next(iter(FeedDataset(url, batch_size=1, fields=None, address=daemon.address)))


def test_files_of_torch(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Tensors that torch.save wrote come as they went, also packed; a model is refused, and nothing of it is run."""
    images = torch.arange(6 * 2 * 3, dtype=torch.float32).reshape(6, 2, 3)
    for shard in range(2):
        sink = io.BytesIO()
        torch.save({"image": images[shard * 3 :][:3], "label": torch.arange(3) + 3 * shard, "epoch": 7}, sink)
        data = sink.getvalue()
        s3.put("data", f"t/{shard}.pt.gz" if shard else "t/0.pt", gzip.compress(data) if shard else data)
    model = io.BytesIO()
    torch.save(torch.nn.Linear(2, 3), model)
    s3.put("data", "m/model.pth", model.getvalue())
    daemon = daemons()
    (batch,) = FeedDataset("s3://data/t/", batch_size=6, fields=None, address=daemon.address, copy=True)
    assert batch["image"].equal(images)
    assert batch["label"].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(BadShardError, match=r"plain tensors, got torch\.nn"):
        next(iter(FeedDataset("s3://data/m/", batch_size=1, fields=None, address=daemon.address)))
