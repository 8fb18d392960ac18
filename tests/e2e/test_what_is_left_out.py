"""What a dataset leaves out, through a real daemon: users read it in the log and in stats(), operators in the log."""

from __future__ import annotations

import io
import json
import logging
import tarfile
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import ipc

from feedd_client import AccessDenied, BadRequestError, BadShardError, FeedDataset
from tests.fakes.files import parquet
from tests.fakes.tars import tar_bytes
from tests.unit.formats.test_mds import mds
from tests.unit.formats.test_strided import safetensors
from tests.unit.tables.test_arrays import hdf5

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

CHAT = pa.table(
    {
        "id": [1, 2],
        "messages": [[{"role": "user", "content": "hi"}], []],
        "meta": [{"a": 1, "b": "x"}, None],
        "tags": [["x", "y"], []],
        "scores": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
)


def arrow(table: Any) -> bytes:
    """Return an Arrow file."""
    sink = io.BytesIO()
    with ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def warned(records: list[logging.LogRecord]) -> list[str]:
    """Return what the client has logged at warning."""
    found = [r.getMessage() for r in records if r.name == "feedd_client" and r.levelno >= logging.WARNING]
    records.clear()
    return found


def left_out(daemon: Daemon, url: str) -> list[dict[str, Any]]:
    """Return the daemon's log lines about data that sessions over ``url`` leave out."""
    lines = [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == "data is left out or changed" and line["urls"] == [url]]


def read(url: str, daemon: Daemon, **more: Any) -> tuple[FeedDataset, set[str]]:
    """Read a dataset to its end; return it and the fields of its batches."""
    dataset = FeedDataset(url, batch_size=2, address=daemon.address, copy=True, **more)
    return dataset, {name for batch in dataset for name in batch}


@pytest.mark.parametrize(("name", "write"), [("parquet", parquet), ("arrow", arrow)])
def test_columns_that_nobody_can_read_are_named(
    name: str,
    write: Callable[[Any], bytes],
    s3: S3Server,
    daemons: Callable[..., Daemon],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One warning names them with their types, once per dataset; stats() counts them; by name they are an error."""
    for shard in range(2):
        s3.put("data", f"{name}/{shard}.{name}", write(CHAT))
    daemon, url = daemons(), f"s3://data/{name}/"
    dataset, fields = read(url, daemon)
    assert fields == {"id"}
    (said,) = warned(caplog.records)
    assert "messages: list<" in said
    assert "meta: struct<" in said
    notice = dataset.stats()["notices"]["unread-columns"]
    assert notice == {"text": said, "count": 4, "bytes": 0, "warns": True}
    assert len(list(dataset)) == 2
    assert warned(caplog.records) == []
    (line,) = left_out(daemon, url)
    assert (line["kind"], line["count"], line["level"]) == ("unread-columns", 4, "warning")
    named, _ = read(url, daemon, fields={"id": "int"})
    assert (named.stats()["notices"], warned(caplog.records)) == ({}, [])
    with pytest.raises(BadRequestError, match=r"got messages of type list<.*struct<role: string"):
        read(url, daemon, fields={"id": "int", "messages": "json"})


def test_a_large_file_of_which_only_the_footer_is_looked_at_tells_as_much(
    s3: S3Server, daemons: Callable[..., Daemon]
) -> None:
    """Columns are known from the footer; what cannot be read is told from there as well."""
    rows = 1 << 16
    numbers = np.random.default_rng(0).random(rows)
    table = pa.table({"x": numbers, "messages": pa.array([[{"role": "user"}]] * rows)})
    s3.put("data", "l/0.parquet", parquet(table))
    dataset, fields = read("s3://data/l/", daemons(), steps=2)
    assert fields == {"x"}
    counts = {kind: notice["count"] for kind, notice in dataset.stats()["notices"].items()}
    assert counts == {"unread-columns": 1, "narrowed-numbers": 1}


def test_arrays_and_encodings_that_nobody_can_read_are_named(
    s3: S3Server, daemons: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    """Pickled MDS columns, arrays of structs in HDF5 and reserved names in a tar are told alike."""
    s3.put("data", "m/0.mds", mds({"n": "int", "obj": "pkl"}, [{"n": bytes(8), "obj": b"\x80\x04N."}] * 2))
    pair = np.zeros(2, [("a", "i4"), ("b", "f8")])
    s3.put("data", "h/0.h5", hdf5({"x": np.arange(2), "pair": pair}))
    s3.put("data", "r/0.tar", tar_bytes([("0", {"cls": b"1", "__url__": b"x"})]))
    s3.put("data", "t/0.safetensors", safetensors({"x": np.zeros((2, 3), np.float32), "step": np.zeros((), np.int64)}))
    saved = io.BytesIO()
    torch.save({"x": torch.zeros(2, 3), "config": "text"}, saved)
    s3.put("data", "p/0.pt", saved.getvalue())
    bare = io.BytesIO()
    with tarfile.open(fileobj=bare, mode="w") as tar:
        for name in ("0.cls", "notes"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
    s3.put("data", "x/0.tar", bare.getvalue())
    daemon = daemons()
    cases = {
        "m/": ("pickled-columns", "obj", {"n"}),
        "h/": ("unread-columns", "pair: [('a'", {"x"}),
        "r/": ("reserved-names", "__url__", {"cls"}),
        "t/": ("unread-columns", "step: a tensor of I64 without dimensions", {"x"}),
        "p/": ("unread-columns", "config: str", {"x"}),
        "x/": ("unread-columns", "notes: a member of a tar without an extension", {"cls"}),
    }
    for prefix, (kind, name, expected) in cases.items():
        dataset, fields = read(f"s3://data/{prefix}", daemon)
        assert fields == expected, prefix
        (said,) = warned(caplog.records)
        assert name in said
        assert dataset.stats()["notices"][kind]["count"] == 1


def test_numbers_that_are_read_as_smaller_ones_are_told_to_the_user(
    s3: S3Server, daemons: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    """float64 columns that nobody named come as float32, which the client's log says; named ones come as asked for."""
    s3.put("data", "f/0.parquet", parquet(pa.table({"x": [0.1, 0.2], "n": [1, 2]})))
    daemon = daemons()
    dataset, _ = read("s3://data/f/", daemon)
    (said,) = warned(caplog.records)
    assert "read as float32" in said
    assert "(x)" in said
    assert dataset.stats()["notices"]["narrowed-numbers"]["count"] == 1
    dataset, _ = read("s3://data/f/", daemon, fields={"x": "float:float64"})
    assert (dataset.stats()["notices"], warned(caplog.records)) == ({}, [])


def test_hidden_folders_that_hold_shards_are_told_with_their_bytes(
    s3: S3Server, daemons: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    """Shards below a name with an underscore are a warning with count and bytes; other files are counted only."""
    tar = tar_bytes([("0", {"cls": b"1"})])
    for name in ("_a/0.tar", "_a/1.tar", "b/0.tar"):
        s3.put("data", f"u/{name}", tar)
    for name in ("_SUCCESS", "README.md"):
        s3.put("data", f"u/{name}", b"none")
    daemon = daemons()
    dataset, _ = read("s3://data/u/", daemon)
    (said,) = warned(caplog.records)
    assert "u/_a/0.tar" in said
    told = {kind: (one["count"], one["bytes"], one["warns"]) for kind, one in dataset.stats()["notices"].items()}
    assert told == {
        "hidden-shards": (2, 2 * len(tar), True),
        "hidden-files": (1, 4, False),
        "side-files": (1, 4, False),
    }
    (line,) = left_out(daemon, "s3://data/u/")
    assert (line["kind"], line["text"]) == ("hidden-shards", said)
    json.dumps(dataset.stats())


def test_validation_that_is_read_with_training_is_told(
    s3: S3Server, daemons: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    """A folder of several splits is read as the user named it, with a warning; one split, or named shards, has none."""
    for name in ("train/0.tar", "train/1.tar", "val/0.tar"):
        s3.put("data", f"s/{name}", tar_bytes([("0", {"cls": b"1"})]))
    daemon = daemons()
    dataset, _ = read("s3://data/s/", daemon)
    (said,) = warned(caplog.records)
    assert "s/val/0.tar" in said
    assert dataset.stats()["notices"]["splits-together"]["count"] == 1
    for url in ("s3://data/s/train/", "s3://data/s/{train,val}/0.tar"):
        dataset, _ = read(url, daemon)
        assert (dataset.stats()["notices"], warned(caplog.records)) == ({}, [])


def test_fields_that_only_later_shards_have_are_told(
    s3: S3Server, daemons: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    """The client warns once when a shard with another field is read; stats() has it from then on, in each pass."""
    for shard in range(40):
        more = {"txt": b"x"} if shard >= 30 else {}
        s3.put("data", f"v/{shard:02d}.tar", tar_bytes([("0", {"cls": b"1", **more})]))
    daemon = daemons()
    dataset = FeedDataset("s3://data/v/", batch_size=1, address=daemon.address, copy=True)
    for _ in range(2):
        assert {name for batch in dataset for name in batch} == {"cls"}
        assert dataset.stats()["notices"]["late-fields"]["count"] == 1
    (said,) = warned(caplog.records)
    assert "(txt, first in v/30.tar)" in said
    (line,) = left_out(daemon, "s3://data/v/")
    assert (line["kind"], line["count"], line["level"]) == ("late-fields", 1, "warning")


def test_tokens_behind_the_last_window_are_counted(
    s3: S3Server, daemons: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    """Tails of files are in stats(); a file shorter than a window is a warning, too."""
    for shard, count in enumerate((150, 129, 60)):
        s3.put("data", f"k/{shard}.bin", np.arange(count, dtype=np.uint16).tobytes())
    dataset, _ = read("s3://data/k/", daemons(), fields={"tokens": "tokens:uint16:65"})
    (said,) = warned(caplog.records)
    assert "k/2.bin: 60 tokens" in said
    told = {kind: (one["count"], one["bytes"], one["warns"]) for kind, one in dataset.stats()["notices"].items()}
    assert told == {"cut-tails": (1, 42, False), "short-files": (1, 120, True)}


@pytest.mark.parametrize(("name", "write"), [("parquet", parquet), ("arrow", arrow)])
def test_decimals_that_lose_their_point_are_told(
    name: str,
    write: Callable[[Any], bytes],
    s3: S3Server,
    daemons: Callable[..., Daemon],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Decimals come as whole numbers, named or not, and the user is told of each such column that is read."""
    s3.put(
        "data",
        f"decimals-{name}/0.{name}",
        write(pa.table({"price": [Decimal("12.34"), Decimal("0.50")], "n": [1, 2]})),
    )
    daemon, url = daemons(), f"s3://data/decimals-{name}/"
    for fields in (None, {"price": "int"}):
        dataset = FeedDataset(url, batch_size=2, fields=fields, address=daemon.address, copy=True)
        (batch,) = dataset
        assert batch["price"].tolist() == [1234, 50]
        (said,) = warned(caplog.records)
        assert "price: decimal128(4, 2)" in said
        assert dataset.stats()["notices"]["unscaled-decimals"]["count"] == 1
    dataset, _ = read(url, daemon, fields={"n": "int"})
    assert (dataset.stats()["notices"], warned(caplog.records)) == ({}, [])


def test_archived_and_empty_shards_are_told_when_a_dataset_opens(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """No batch comes, and no shard is fetched, before the error that names an archived shard or an empty one."""
    for shard in range(4):
        s3.put("data", f"a/{shard}.tar", tar_bytes([(f"{shard}", {"cls": b"1"})]))
    s3.archive("data", "a/2.tar", storage_class="GLACIER")
    daemon, url = daemons(), "s3://data/a/"
    dataset = FeedDataset(url, batch_size=2, address=daemon.address)
    with pytest.raises(AccessDenied, match=r"archived ones: 1, .* \(a/2.tar\)"):
        next(iter(dataset))
    assert not [request for request in s3.requests if request.op == "GET" and request.key != "a/2.tar"]
    s3.archive("data", "a/2.tar", storage_class="GLACIER", restore='ongoing-request="false"')
    assert read(url, daemon, fields={"cls": "int"})[1] == {"cls"}
    s3.put("data", "a/4.tar", b"")
    s3.requests.clear()
    with pytest.raises(BadShardError, match=r"got empty ones: 1 \(a/4.tar\)"):
        read(url, daemon, fields={"cls": "int"})
    assert [request.range for request in s3.requests if request.op == "GET"] == ["bytes=0-0"]  # of a/2.tar
