"""Tables and datasets of several splits, through a real daemon: their folder is refused, a list of files is read."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedd_client import BadRequestError, FeedDataset
from tests.fakes.tars import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]


def parquet(first: int) -> bytes:
    """Return a file of ten rows."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": list(range(first, first + 10))}), sink)
    return sink.getvalue()


def ids(url: str, daemon: Daemon) -> list[int]:
    """Return all rows of a dataset."""
    data = FeedDataset(url, batch_size=7, fields={"id": "int"}, uneven="allow", address=daemon.address, copy=True)
    return [one for batch in data for one in batch["id"].tolist()]


def commit(*actions: Mapping[str, object]) -> bytes:
    """Return one version of a Delta table's log."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in actions)


def test_a_delta_table_yields_no_deleted_row(s3: S3Server, tmp_path: Path, daemons: Callable[..., Daemon]) -> None:
    """Three files, one of them removed by the table: the folder is an error, a manifest of the live files is read."""
    log = {
        "00000000000000000000.json": commit(*({"add": {"path": f"{n}.parquet"}} for n in range(3))),
        "00000000000000000001.json": commit({"remove": {"path": "1.parquet", "dataChange": True}}),
    }
    files = {f"{n}.parquet": parquet(n * 10) for n in range(3)} | {f"_delta_log/{k}": v for k, v in log.items()}
    for name, data in files.items():
        s3.put("data", f"lake/t/{name}", data)
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).write_bytes(data)
    s3.put("data", "live.manifest", json.dumps([{"prefix": "s3://data/lake/t/"}, "0.parquet", "2.parquet"]).encode())
    daemon = daemons()
    live = [*range(10), *range(20, 30)]
    for url in ("s3://data/lake/t/", "s3://data/lake/", "parquet+s3://data/lake/t", str(tmp_path / "t")):
        with pytest.raises(BadRequestError, match="got a Delta table: the folder also holds files that") as caught:
            ids(url, daemon)
        assert "manifest+s3://" in str(caught.value)
    assert ids("manifest+s3://data/live.manifest", daemon) == live
    assert ids("s3://data/lake/t/{0,2}.parquet", daemon) == live
    assert ids(f"{tmp_path}/t/{{0,2}}.parquet", daemon) == live


def test_an_energon_dataset_is_read_split_by_split(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """The folder would mix validation into training, so it is an error; the shards of one split are read."""
    for shard in range(3):
        s3.put("data", f"e/shard_{shard}.tar", tar_bytes([(str(shard), {"id": str(shard).encode()})]))
    split = b"split_parts:\n  train:\n  - shard_{0..1}.tar\n  val:\n  - shard_2.tar\n"
    s3.put("data", "e/.nv-meta/split.yaml", split)
    s3.put("data", "e/.nv-meta/.info.json", b'{"shard_counts": {"shard_0.tar": 1}}')
    daemon = daemons()
    with pytest.raises(BadRequestError, match="got an Energon dataset: the folder holds the shards of all splits"):
        ids("s3://data/e/", daemon)
    assert ids("s3://data/e/shard_{0..1}.tar", daemon) == [0, 1]
