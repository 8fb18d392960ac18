"""``feedd://``: the objects of a bucket as files, through the daemon, with a real S3 server."""

from __future__ import annotations

import errno
import io
import os
import pickle
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import safetensors.torch
import torch

from feedd_client.errors import DaemonUnreachable
from feedd_client.filesystem import FeedFileSystem
from tests.budget import PATIENT_S
from tests.e2e.shards import numbered
from tests.fakes.s3 import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

SETTINGS = ('security.allow_urls=["s3://data/", "s3://other/yes/"]',)
STANDING = {"settings": SETTINGS}
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

SHARD = numbered(0, 4, pad_bytes=1000)
LARGE = np.arange(
    21 << 18, dtype="<u4"
).tobytes()  # of 21 MiB: several pieces of a read, and above what is cached as a whole


@pytest.fixture
def files(s3: S3Server, daemons: Callable[..., Daemon]) -> Iterator[FeedFileSystem]:
    """A file system over some objects."""
    fsspec.register_implementation("feedd", FeedFileSystem, clobber=True)
    for key, data in {
        "train/a.tar": SHARD,
        "train/b/1.txt": b"one",
        "train/b/2.txt": b"two",
        "train/b.txt": b"",
        "large.bin": LARGE,
    }.items():
        s3.put("data", key, data)
    daemon = daemons(settings=SETTINGS)
    found = fsspec.filesystem("feedd", address=daemon.address, skip_instance_cache=True)
    yield found
    found.close()


def _get_count(s3: S3Server, key: str) -> int:
    return sum(1 for request in s3.requests if request.op == "GET" and request.key == key)


def test_names(files: FeedFileSystem) -> None:
    """ls, info, find, glob, walk and exists tell what there is; objects and folders may have one name."""
    assert files.ls("feedd://data", detail=False) == ["data/large.bin", "data/train"]
    listed = {entry["name"]: (entry["type"], entry["size"]) for entry in files.ls("data/train/")}
    assert listed == {
        "data/train/a.tar": ("file", len(SHARD)),
        "data/train/b.txt": ("file", 0),
        "data/train/b": ("directory", 0),
    }
    assert files.ls("data/train/a.tar", detail=False) == ["data/train/a.tar"]
    assert files.find("data/train") == [f"data/train/{name}" for name in ("a.tar", "b.txt", "b/1.txt", "b/2.txt")]
    assert files.find("data/train/b.txt") == ["data/train/b.txt"]
    assert files.glob("feedd://data/train/*/?.txt") == ["data/train/b/1.txt", "data/train/b/2.txt"]
    assert [sorted(names) for _, _, names in files.walk("data/train")] == [["a.tar", "b.txt"], ["1.txt", "2.txt"]]
    assert files.info("data/train/b")["type"] == "directory"
    assert all(map(files.isdir, ("data", "data/train")))
    assert files.isfile("data/large.bin")
    assert not any(map(files.exists, ("data/train/b/3.txt", "data/trai")))
    for missing in ("data/none", "data/none/", "data/train/a.tar/x"):
        with pytest.raises(FileNotFoundError, match="s3://data/"):
            files.info(missing)
    with pytest.raises(OSError, match="expected feedd://bucket"):
        files.ls("feedd://")


def test_bytes(files: FeedFileSystem, s3: S3Server) -> None:
    """Ranges of a large object cost what they have; a small one is fetched once, and then comes out of the cache."""
    assert files.cat_file("data/large.bin", 1 << 20, (1 << 20) + 100) == LARGE[1 << 20 :][:100]
    assert files.cat_file("data/large.bin", -7) == LARGE[-7:]
    assert files.cat_file("data/large.bin", 5, 2) == b""
    assert _get_count(s3, "large.bin") == 2
    assert files.cat("data/large.bin") == LARGE
    with files.open("data/large.bin") as file:
        assert file.read(10) == LARGE[:10]
        file.seek(-10, io.SEEK_END)
        assert file.read() == LARGE[-10:]
        file.seek(15 << 20)
        assert file.read(6 << 20) == LARGE[15 << 20 :]
    s3.requests.clear()
    for _ in range(3):
        opened = fsspec.open("feedd://data/train/a.tar", address=files.storage_options["address"])
        with opened as file, tarfile.open(fileobj=file) as archive:
            assert archive.getnames()[0] == "00000000.cls"
    assert _get_count(s3, "train/a.tar") == 1
    assert files.cat(["data/train/b/1.txt", "data/train/b/2.txt", "data/train/b.txt"]) == {
        "data/train/b/1.txt": b"one",
        "data/train/b/2.txt": b"two",
        "data/train/b.txt": b"",
    }
    copy = pickle.loads(pickle.dumps(files))
    assert copy.read_text("data/train/b/1.txt") == "one"
    copy.close()


def test_a_file_is_one_version(files: FeedFileSystem, s3: S3Server) -> None:
    """An object that is replaced while it is open is an error, and no mixture; opened again it is the new one."""
    before = files.ukey("data/large.bin")
    with files.open("data/large.bin", block_size=1 << 20) as file:
        assert file.read(5) == LARGE[:5]
        s3.put("data", "large.bin", LARGE[::-1])
        file.seek(10 << 20)
        with pytest.raises(OSError) as changed:  # noqa: PT011 - its number is looked at
            file.read(5)
        assert changed.value.errno == errno.ESTALE
    assert files.ukey("data/large.bin") != before
    assert files.cat_file("data/large.bin", 0, 9) == LARGE[::-1][:9]


def test_damage_and_refusals(files: FeedFileSystem, s3: S3Server) -> None:
    """A broken body is fetched again; what rules or store do not allow is a PermissionError; nothing is written."""
    s3.script("data", "large.bin", faults.reset_in_body(1000), faults.short_body(10))
    assert files.cat_file("data/large.bin", 0, 9 << 20) == LARGE[: 9 << 20]
    s3.put("other", "yes/a", b"yes")
    s3.put("other", "no/a", b"no")
    assert files.cat("other/yes/a") == b"yes"
    for refused in (files.info, files.cat_file, files.exists, files.ls):
        with pytest.raises(PermissionError, match="that you may read"):
            refused("other/no/a")
    s3.script("data", "train/b/1.txt", op="*", always=faults.denied())
    with pytest.raises(PermissionError):
        files.cat("data/train/b/1.txt")
    for write in (files.mkdir, files.makedirs, files.rmdir, files.rm, files.touch):
        with pytest.raises(OSError, match="read-only"):
            write("data/train/b/2.txt")
    with pytest.raises(OSError, match="read-only"):
        files.pipe("data/new", b"x")
    with pytest.raises(OSError, match="read-only"):
        files.mv("data/train/b/2.txt", "data/x")


def test_model_weights(files: FeedFileSystem, s3: S3Server) -> None:
    """Torch and safetensors get what they get from files."""
    state = {"w": torch.arange(300_000, dtype=torch.float32), "b": torch.ones(3)}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    s3.put("data", "t/model.pt", buffer.getvalue())
    with files.open("data/t/model.pt") as file:
        loaded: dict[str, Any] = torch.load(file, weights_only=True)
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    s3.put("data", "t/model.safetensors", safetensors.torch.save(state))
    loaded = safetensors.torch.load(files.cat_file("data/t/model.safetensors"))
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


_ARROW = """
import sys
import pyarrow.fs, pyarrow.parquet
from feedd_client.filesystem import FeedFileSystem

files = FeedFileSystem(sys.argv[1])
arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files))
assert arrow.get_file_info("data/t").type == pyarrow.fs.FileType.Directory
print(pyarrow.parquet.read_table("data/t", filesystem=arrow, columns=["x"])["x"].to_pylist() == list(range(200_000)))
"""


@pytest.mark.nightly
def test_arrow(files: FeedFileSystem, s3: S3Server) -> None:
    """Pyarrow reads a folder of Parquet files through its handler for fsspec, and fetches the columns that it needs."""
    table = pa.table({"x": list(range(200_000)), "y": [os.urandom(64) for _ in range(200_000)]})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="none")
    s3.put("data", "t/x.parquet", buffer.getvalue())
    before = int(str(s3.stats()["body_bytes"]))
    address = files.storage_options["address"]  # a process of its own: pyarrow's threads outlive a test
    done = subprocess.run(
        [sys.executable, "-c", _ARROW, address], capture_output=True, text=True, timeout=PATIENT_S, check=True
    )
    assert done.stdout == "True\n"
    assert int(str(s3.stats()["body_bytes"])) - before < len(buffer.getvalue()) - (4 << 20)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_distributed_checkpoint(files: FeedFileSystem, s3: S3Server, tmp_path: Path) -> None:
    """torch.distributed.checkpoint loads through its reader for fsspec, which opens ``feedd://`` by itself."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415 - takes a while
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader  # noqa: PLC0415 - takes a while

    state = {"w": torch.arange(1000, dtype=torch.float32)}
    dcp.save(state, checkpoint_id=tmp_path)  # type: ignore[attr-defined]  # exported, but not by name
    for path in tmp_path.iterdir():
        s3.put("data", f"dcp/{path.name}", path.read_bytes())
    found = {"w": torch.zeros(1000)}
    dcp.load(  # type: ignore[attr-defined]  # exported, but not by name
        found, storage_reader=FsspecReader("feedd://data/dcp", address=files.storage_options["address"])
    )
    assert torch.equal(found["w"], state["w"])
    fsspec.filesystem("feedd", address=files.storage_options["address"]).close()  # the one that the reader has made


def test_a_daemon_that_is_replaced(files: FeedFileSystem, daemons: Callable[..., Daemon]) -> None:
    """A read waits for the next daemon at the same address; without one it ends with an error that names it."""
    daemon = daemons("other", settings=SETTINGS)
    mine = FeedFileSystem(daemon.address, reconnect_timeout_s=30.0, skip_instance_cache=True)
    with mine.open("data/large.bin", block_size=1 << 20) as file:
        assert file.read(5) == LARGE[:5]
        daemon.kill()
        daemon.start()
        file.seek(10 << 20)
        assert file.read(5) == LARGE[10 << 20 :][:5]
    daemon.kill()
    mine.close()
    late = FeedFileSystem(daemon.address, reconnect_timeout_s=0.3, skip_instance_cache=True)
    with pytest.raises(DaemonUnreachable, match=daemon.address):
        late.info("data/large.bin")
