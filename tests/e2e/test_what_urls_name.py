"""What a URL names, through a real daemon: what lies beside data, what names do not say, and lists in one URL."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import ipc

from feedd_client import BadRequestError, FeedDataset, FeedError
from tests.e2e.shards import jpeg
from tests.fakes import forks
from tests.fakes.tars import tar_bytes
from tests.fakes.tfrecords import example, tfrecord

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server


def parquet(values: list[int]) -> bytes:
    """Return a file of one column."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": values}), sink)
    return sink.getvalue()


def arrow(values: list[int]) -> bytes:
    """Return a file of one column."""
    table, sink = pa.table({"a": values}), io.BytesIO()
    with ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def hdf5(values: list[int]) -> bytes:
    """Return a file of one array."""
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file["a"] = np.array(values)
    return sink.getvalue()


def npz(values: list[int]) -> bytes:
    """Return a file of one array."""
    sink = io.BytesIO()
    np.savez(sink, a=np.array(values))
    return sink.getvalue()


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]


def feedd(s3: S3Server, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    own = {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return forks.run(words, {**os.environ, **own})


def test_what_lies_beside_shards_is_passed_over(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A folder as TFDS and Spark leave it gives its records and nothing else; an unknown object is still an error."""
    for shard in range(2):
        made = [example(label=[shard * 3 + n]) for n in range(3)]
        s3.put("data", f"t/d-train.tfrecord-0000{shard}-of-00002", tfrecord(*made))
    beside = {
        "_SUCCESS": b"",
        ".d-train.tfrecord-00000-of-00002.crc": b"crc\0\1\2\3",
        ".DS_Store": b"\0\0\0\1Bud1",
        "README.md": b"# read me",
        "dataset_info.json": b'{"name": "d"}',
        "features.json": b'{"type": "x"}',
        "label.labels.txt": b"cat\ndog\n",
        "_temporary/0/d-train.tfrecord-00000-of-00002": b"half of i",
        "part-00007": b"",
    }
    for name, data in beside.items():
        s3.put("data", f"t/{name}", data)
    daemon = daemons()
    fields = {"label": "int"}
    for url in ("s3://data/t/", "tfrecord+s3://data/t/d-train"):
        (batch,) = FeedDataset(url, batch_size=10, fields=fields, address=daemon.address, copy=True)
        assert batch["label"].tolist() == [0, 1, 2, 3, 4, 5]
    done = feedd(s3, "index", "s3://data/t/", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["shards"], facts["samples"], facts["passed_over"]) == (2, 6, len(beside))
    assert sum(notice["count"] for notice in facts["notices"].values()) == len(beside)
    hidden = f"feedd: warning: {facts['notices']['hidden-shards']['text']}"
    assert hidden in done.stderr.splitlines()
    assert hidden in feedd(s3, "plan", "s3://data/t/", "--nodes", "1").stderr.splitlines()
    s3.put("data", "u/data.xyz", bytes(1 << 20))
    s3.put("data", "u/d.tfrecord", tfrecord(example(label=[1])))
    with pytest.raises(BadRequestError, match=r"data\.xyz"):
        list(FeedDataset("s3://data/u/", batch_size=10, fields=fields, address=daemon.address))


def test_what_lies_beside_samples_is_passed_over(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Files of file managers and of jobs beside images are no samples, and names with an underscore are."""
    for name in ("a.jpg", "_b.jpg", "_c/d.jpg"):
        s3.put("data", f"i/{name}", jpeg(1))
    for name in (".DS_Store", "Thumbs.db", "_SUCCESS", "._a.jpg", ".ipynb_checkpoints/a.jpg", "_delta_log/0.parquet"):
        s3.put("data", f"i/{name}", b"" if name == "_SUCCESS" else b"no picture")
    fields = {"jpg": "image:16x16"}
    (batch,) = FeedDataset("s3://data/i/", batch_size=4, fields=fields, keys=True, address=daemons().address)
    assert sorted(batch["__key__"]) == ["_b", "_c/d", "a"]


def test_a_folder_of_files(tmp_path_factory: pytest.TempPathFactory, daemons: Callable[..., Daemon]) -> None:
    """On a file system it is the same."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "a.tar").write_bytes(tar_bytes([("a", {"cls": b"1"})]))
    for name in (".b.tar.crc", "_SUCCESS", "LICENSE", "a.tar.sha256"):
        (folder / name).write_bytes(b"none")
    (batch,) = FeedDataset(str(folder), batch_size=4, fields={"cls": "int"}, address=daemons().address, copy=True)
    assert batch["cls"].tolist() == [1]


def test_tables_whose_names_say_nothing(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """First bytes tell what a job has left under the names of its parts, or the URL does."""
    made: dict[str, Callable[[list[int]], bytes]] = {
        "parquet": parquet,
        "arrow": arrow,
        "hdf5": hdf5,
        "npz": npz,
        "csv": lambda values: b"a\n" + b"".join(b"%d\n" % value for value in values),
        "tsv": lambda values: b"a\tb\n" + b"".join(b"%d\t1\n" % value for value in values),
    }
    for name, make in made.items():
        for part in range(2):
            s3.put("data", f"{name}/part-0000{part}", make([part * 2, part * 2 + 1]))
            s3.put("data", f"{name}.gz/part-0000{part}", gzip.compress(make([part * 2, part * 2 + 1])))
        s3.put("data", f"{name}/_SUCCESS", b"")
    address = daemons().address
    for name in made:
        urls = [f"{name}+s3://data/{name}/", f"{name}.gz+s3://data/{name}.gz/"]
        if name in {"parquet", "arrow", "hdf5", "npz"}:
            urls.append(f"s3://data/{name}/")
        for url in urls:
            (batch,) = FeedDataset(url, batch_size=4, fields={"a": "int"}, address=address, copy=True)
            assert batch["a"].tolist() == [0, 1, 2, 3], url
    done = feedd(s3, "index", "s3://data/parquet/", "--json")
    assert json.loads(done.stdout)["samples"] == 4, done.stderr


def test_compressed_under_another_name(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """It is read where the URL says so, or no name says anything else; else the error tells what to write."""
    records = tfrecord(*(example(label=[n]) for n in range(3)))
    tar = tar_bytes([(str(n), {"label": b"%d" % n}) for n in range(3)])
    s3.put("data", "g/a.tfrecord", gzip.compress(records))
    s3.put("data", "z/a.tfrecord", zlib.compress(records))
    s3.put("data", "t/a.tar", gzip.compress(tar))
    s3.put("data", "s/a.tar", zstandard.compress(tar))
    s3.put("data", "n/part-0", gzip.compress(tar))
    s3.put("data", "l/a.jsonl", gzip.compress(b'{"label": 1}\n' * 3))
    s3.put("data", "c/a.csv", gzip.compress(b"label\n" + b"1\n" * 100))
    address = daemons().address

    def read(url: str, how: str = "int") -> list[int]:
        field = "json" if how == "json" else "label"
        (batch,) = FeedDataset(url, batch_size=3, fields={field: how}, address=address, copy=True)
        return [int(value["label"] if how == "json" else value) for value in batch[field]]

    for url, name in (
        ("s3://data/g/", "tfrecord.gz"),
        ("s3://data/z/", "tfrecord.zlib"),
        ("s3://data/t/", "tar.gz"),
        ("s3://data/s/", "tar.zst"),
        ("s3://data/l/", "jsonl.gz"),
        ("s3://data/c/", "csv.gz"),
    ):
        with pytest.raises(FeedError) as caught:
            read(url, "json" if name == "jsonl.gz" else "int")
        assert f"{name}+s3://" in str(caught.value), url
        if name.startswith("jsonl"):
            assert read(f"{name}+{url}", "json") == [1, 1, 1]
        elif not name.startswith("csv"):
            assert read(f"{name}+{url}") == [0, 1, 2]
    assert read("gz+s3://data/t/") == [0, 1, 2]
    assert read("s3://data/n/") == [0, 1, 2]


def test_lists_in_one_url(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """URLs as WebDataset's users write them give their shards in that order, in a trainer and on the command line."""
    for number in range(4):
        s3.put("data", f"t/{number:03d}.tar", tar_bytes([("a", {"cls": b"%d" % number})]))
    s3.put("data", "v/{a,b}.tar", tar_bytes([("a", {"cls": b"9"})]))
    address = daemons().address

    def read(url: str) -> list[int]:
        (batch,) = FeedDataset(url, batch_size=9, fields={"cls": "int"}, address=address, copy=True)
        return batch["cls"].tolist()  # type: ignore[no-any-return]  # a tensor

    url = "s3://data/t/{002..001}.tar::s3://data/{t/000,t/003,t/000}.tar"
    assert read(url) == [2, 1, 0, 3, 0]
    assert read("s3://data/v/{a,b}.tar") == [9]
    with pytest.raises(BadRequestError, match="at most 100000 others"):
        read("s3://data/t/{0..9999999}.tar")
    done = feedd(s3, "plan", url, "--nodes", "1", "--keys")
    assert [line.rpartition("/")[2] for line in done.stdout.split()[1::2]] == [
        f"{number:03d}.tar" for number in (2, 1, 0, 3, 0)
    ]


def test_text_between_other_signs(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """What spreadsheets write is read as columns, with fields and without, and counted; a name says it, too."""
    s3.put("data", "s/0.csv", "Größe;n\nx, y;1\n".encode())
    s3.put("data", "s/1.csv", "Größe;n\nz;2\n".encode())
    s3.put("data", "p/part-0", b"a|b\n1|2\n")
    address = daemons().address
    for fields in (None, {"größe": "str", "n": "int"}):
        (batch,) = FeedDataset("s3://data/s/", batch_size=4, fields=fields, address=address, copy=True)
        assert (list(batch["größe"]), batch["n"].tolist()) == (["x, y", "z"], [1, 2])
    (batch,) = FeedDataset("csv-pipe+s3://data/p/", batch_size=4, fields=None, address=address, copy=True)
    assert (batch["a"].tolist(), batch["b"].tolist()) == ([1], [2])
    assert json.loads(feedd(s3, "index", "s3://data/s/", "--json").stdout)["samples"] == 2
    with pytest.raises(BadRequestError, match="names that can be read by default"):
        next(iter(FeedDataset("csv-pipe+s3://data/s/", batch_size=4, fields=None, address=address)))
