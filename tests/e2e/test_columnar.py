"""Columnar objects, from S3 through a real daemon to tensors: only the columns that are named are fetched."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING, Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import csv, ipc

from feedd_client import BadRequestError, FeedDataset, FeedError
from tests.fakes import forks
from tests.fakes.files import npy
from tests.unit.formats.test_strided import safetensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(180)]

STANDING: dict[str, Any] = {"settings": ("fetch.hedge_share=0",)}  # a slow machine asks for nothing twice
ROWS = 6_000
WANTED = ("c03", "c04", "c17", "c39")


def wide(shard: int) -> Any:
    """Return a table of 40 columns of numbers that do not compress."""
    source = np.random.default_rng(shard)
    return pa.table({f"c{number:02}": source.random(ROWS) for number in range(40)})


def put(s3: S3Server, key: str, table: Any, **options: Any) -> bytes:
    """Store a Parquet file; return its bytes."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    s3.put("data", key, sink.getvalue())
    return sink.getvalue()


def own_bytes(data: bytes, columns: tuple[str, ...]) -> int:
    """Return what columns take in a file."""
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in columns)


def body_bytes(s3: S3Server) -> int:
    """Return what the server has sent."""
    sent = s3.stats()["body_bytes"]
    assert isinstance(sent, int)
    return sent


def test_of_40_columns_4_are_fetched(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Bytes on the wire are those of the columns, batches are what pyarrow reads, the second epoch fetches nothing."""
    tables = [wide(shard) for shard in range(3)]
    files = [put(s3, f"p/{shard}.parquet", table, row_group_size=2_000) for shard, table in enumerate(tables)]
    daemon = daemons(**STANDING)
    list(FeedDataset("s3://data/p/0.parquet", batch_size=1000, fields={"c00": "float"}, address=daemon.address))
    before = body_bytes(s3)
    dataset = FeedDataset(
        "s3://data/p/",
        batch_size=500,
        fields=dict.fromkeys(WANTED, "tensor:float64:1"),
        address=daemon.address,
        copy=True,
    )
    batches = list(dataset)
    fetched = body_bytes(s3) - before
    own = sum(own_bytes(data, WANTED) for data in files)
    assert own < fetched <= 1.1 * own
    for name in WANTED:
        values = torch.cat([batch[name] for batch in batches]).squeeze(1)
        assert torch.equal(values, torch.from_numpy(np.concatenate([table[name].to_numpy() for table in tables])))
    before = body_bytes(s3)
    requests = s3.stats()["requests"]
    dataset.set_epoch(1)
    assert [batch["c39"].shape[0] for batch in dataset] == [batch["c39"].shape[0] for batch in batches]
    assert body_bytes(s3) == before
    assert s3.stats()["requests"] == requests
    other = FeedDataset("s3://data/p/", batch_size=500, fields={"c01": "float"}, address=daemon.address, copy=True)
    values = torch.cat([batch["c01"] for batch in other])
    assert torch.equal(values, torch.from_numpy(np.concatenate([t["c01"].to_numpy() for t in tables])).float())


def test_every_kind_of_column(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Without a word about fields, from Parquet, Arrow and CSV alike; a hole is a sample without the field."""
    table = pa.table(
        {
            "Label": pa.array([1, 2, 3], pa.int16()),
            "text": ["a", "grün", ""],
            "ids": pa.array([[1, 2], [], [3]], pa.list_(pa.int32())),
            "vector": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
            "raw": [b"\0", b"", b"abc"],
        }
    )
    put(s3, "a/0.parquet", table)
    sink = io.BytesIO()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    s3.put("data", "b/0.arrow", sink.getvalue())
    daemon = daemons(**STANDING)
    for prefix in "ab":
        (batch,) = FeedDataset(f"s3://data/{prefix}/", batch_size=3, fields=None, address=daemon.address, copy=True)
        assert batch["label"].tolist() == [1, 2, 3]
        assert list(batch["text"]) == ["a", "grün", ""]
        assert [row.tolist() for row in batch["ids"]] == [[1, 2], [], [3]]
        assert batch["ids"].values.dtype == torch.int32
        assert batch["vector"].tolist() == [[1.0, 2.0]] * 3
        assert [bytes(row.tolist()) for row in batch["raw"]] == [b"\0", b"", b"abc"]
    sink = io.BytesIO()
    csv.write_csv(pa.table({"n": [1, 2], "t": ["x", "y,z"]}), sink)
    s3.put("data", "c/0.csv", sink.getvalue())
    (batch,) = FeedDataset("s3://data/c/", batch_size=2, fields={"n": "int", "t": "str"}, address=daemon.address)
    assert (batch["n"].tolist(), list(batch["t"])) == ([1, 2], ["x", "y,z"])


def test_arrays(s3: S3Server, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """Files of arrays: each row is a sample, whichever library wrote them; LMDB's values are samples of one field."""
    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(4)
    sink = io.BytesIO()
    np.savez_compressed(sink, x=x, y=y)
    s3.put("data", "npz/0.npz", sink.getvalue())
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file["x"], file["y"], file["other"] = x, y, np.arange(9)
    s3.put("data", "h5/0.h5", sink.getvalue())
    s3.put("data", "st/0.safetensors", safetensors({"x": x, "y": y}))
    s3.put("data", "npy/0.npy", npy(x))
    with lmdb.open(str(tmp_path / "data.mdb"), subdir=False, map_size=1 << 20) as env, env.begin(write=True) as change:
        for number in range(4):
            change.put(b"%08d" % number, b"v" * number)
    s3.put("data", "mdb/data.mdb", (tmp_path / "data.mdb").read_bytes())
    s3.put("data", "mdb/lock.mdb", bytes(64))
    daemon = daemons(**STANDING)

    def read(prefix: str, fields: dict[str, str], **options: Any) -> Any:
        (batch,) = FeedDataset(
            prefix if "+" in prefix else f"s3://data/{prefix}/",
            batch_size=4,
            fields=fields,
            address=daemon.address,
            copy=True,
            **options,
        )
        return batch

    for prefix in ("npz", "h5", "st"):
        batch = read(prefix, {"x": "tensor:float32:3", "y": "int"})
        assert (batch["x"].tolist(), batch["y"].tolist()) == (x.tolist(), y.tolist())
    assert read("npy+s3://data/npy/", {"data": "tensor:float32:3"})["data"].tolist() == x.tolist()
    batch = read("mdb", {"data": "str"}, keys=True)
    assert (list(batch["data"]), batch["__key__"][3]) == (["", "v", "vv", "vvv"], "00000003")


def test_rows_are_counted_by_footers(s3: S3Server) -> None:
    """``feedd index`` reads no column to count the rows of Parquet."""
    files = [put(s3, f"p/{shard}.parquet", wide(shard)) for shard in range(3)]
    environment = {**os.environ, "AWS_ENDPOINT_URL": s3.url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    done = forks.run(["index", "s3://data/p/", "--json"], {**environment, "AWS_REGION": "us-east-1"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples"] == 3 * ROWS
    assert body_bytes(s3) < sum(map(len, files)) / 20


def test_columns_that_are_not_there_are_named(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A misspelt column is refused at open with a list of those there are; so is one that can be no field."""
    table = pa.table({"label": [1], "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    put(s3, "p/0.parquet", table)
    daemon = daemons(**STANDING)
    for field in ("lable", "m"):
        with pytest.raises(BadRequestError, match=f"got {field}.*there are label"):
            next(iter(FeedDataset("s3://data/p/", batch_size=1, fields={field: "int"}, address=daemon.address)))
    s3.put("data", "bad/0.parquet", b"PAR1 is not enough PAR1")
    with pytest.raises(Exception, match=r"bad/0\.parquet.*") as caught:
        next(iter(FeedDataset("s3://data/bad/", batch_size=1, fields={"a": "int"}, address=daemon.address)))
    assert "footer" in str(caught.value)


def test_text_has_the_same_types_in_every_shard(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Whole numbers in one, others in the next, none in the last; a value that is none is named, with its object."""
    for shard, text in enumerate((b"id,x\n01,1\n", b"id,x\n02,2.5\n", b"id,x\n03,\n")):
        s3.put("data", f"csv/{shard}.csv", text)
    daemon = daemons(**STANDING)
    dataset = FeedDataset(
        "s3://data/csv/", batch_size=3, fields={"id": "str"}, address=daemon.address, copy=True, shuffle=False
    )
    (batch,) = dataset
    assert list(batch["id"]) == ["01", "02", "03"]
    s3.put("data", "csv/3.csv", b"id,x\n04,n.a.\n")
    for second, expected in (("1", [1.0, 2.5]), ("3", None)):
        urls = ["s3://data/csv/0.csv", f"s3://data/csv/{second}.csv"]
        numbers = FeedDataset(urls, batch_size=2, fields={"x": "float"}, address=daemon.address, copy=True)
        if expected is None:
            with pytest.raises(FeedError, match=r"column 'x'.*invalid value 'n.a.'.*s3://data/csv/3.csv"):
                list(numbers)
        else:
            assert [batch["x"].tolist() for batch in numbers] == [expected]
