"""``feedd files`` against an S3 server: whole files or none, whatever ends a run, and the samples that are streamed."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import struct
import tarfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from awscrt.checksums import crc32c

from feedd.cache import entry_layout
from feedd.values import ObjectRef
from feedd_client import FeedDataset, Topology
from tests.budget import PATIENT_S
from tests.e2e.shards import numbered
from tests.fakes import forks
from tests.fakes.s3 import faults
from tests.fakes.s3.checksums import Kept

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

URL = "s3://data/train/"
SHARDS = {f"{shard:02d}.tar": numbered(shard, 5 + shard, pad_bytes=20_000) for shard in range(6)}
LARGE = np.arange(9 << 18, dtype="<u4").tobytes()  # of 9 MiB: several parts
WAIT_S = 40.0


@pytest.fixture
def filled(s3: S3Server) -> S3Server:
    """Six shards, a large object and an empty one."""
    for name, data in {**SHARDS, "sub/large.bin": LARGE, "sub/empty": b""}.items():
        s3.put("data", f"train/{name}", data)
    return s3


def _started(s3: S3Server, root: Path, *arguments: str) -> forks.Running:
    own = {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return forks.Running(["files", "--root", str(root), "--channel", f"train={URL}", *arguments], os.environ | own)


def _files(s3: S3Server, root: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    with _started(s3, root, "--json", *arguments) as running:
        out, err = running.communicate(PATIENT_S)
        assert running.returncode is not None
        return running.returncode, json.loads(out or "{}").get("channels", {}).get("train", {}), err


def _there(root: Path) -> dict[str, bytes]:
    folder = root / "input/data/train"
    found = {}
    for one in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # a run renames it just now
            if one.is_file():
                found[str(one.relative_to(folder))] = one.read_bytes()
    return found


def _gets(s3: S3Server) -> list[str]:
    return sorted(request.key for request in s3.requests if request.op == "GET")


def test_files_and_streamed_samples_are_the_same(
    filled: S3Server, daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    """Each of two nodes gets as files what a trainer of that node gets as samples; files come out of the cache."""
    everything: dict[str, bytes] = {}
    daemon = daemons()
    for rank in range(2):
        url = [f"{URL}{name}" for name in SHARDS]
        topology = Topology(2, rank, 1, 0, 2, rank)
        dataset = FeedDataset(
            url,
            batch_size=4,
            fields={"cls": "int"},
            shuffle=False,
            address=daemon.address,
            topology=topology,
            uneven="allow",
        )
        streamed = [label for batch in dataset for label in batch["cls"].tolist()]
        dataset.close()
        node = ("--sharding", "key", "--nodes", "2", "--node-rank", str(rank), "--cache-dir", f"{daemon.home}/cache")
        before = len(_gets(filled))
        code, facts, said = _files(filled, tmp_path / str(rank), *node)
        assert (code, facts["copied"], facts["fetched"]) == (0, 3, 1), said
        assert {key for key in _gets(filled)[before:] if key in SHARDS} == set()
        files = _there(tmp_path / str(rank))
        labels = [
            int(member.read().decode())
            for name in sorted(files)
            if name.endswith(".tar")
            for member in _members(files[name])
        ]
        assert labels == streamed
        everything |= files
    assert everything == {**SHARDS, "sub/large.bin": LARGE, "sub/empty": b""}


@pytest.mark.parametrize("kept", [Kept("sha256"), Kept("crc32c"), None])
@pytest.mark.parametrize("size_bytes", [12, 300_000])
def test_a_copy_is_held_against_the_checksum_of_the_store(
    s3: S3Server, tmp_path: Path, kept: Kept | None, size_bytes: int
) -> None:
    """An entry of the cache with other bytes, whose own checksums match, is fetched if the store has a checksum."""
    good, planted = b"G" * size_bytes, b"E" * size_bytes
    etag = s3.put("data", "train/a.bin", good, kept)
    ref = ObjectRef("s3://data", "train/a.bin", size_bytes, etag)
    path = entry_layout.file_path(tmp_path / "cache", ref)
    path.parent.mkdir(parents=True)
    (tmp_path / "cache").chmod(0o755)
    block = entry_layout.block_bytes(size_bytes)
    pieces = [planted[at : at + block] for at in range(0, size_bytes, block)]
    sums = b"".join(struct.pack("<I", crc32c(piece)) for piece in pieces)
    head = bytes(entry_layout.pack_header(ref, bytes(16), bytes(16), sums))
    path.write_bytes(head.ljust(entry_layout.data_at(ref), b"\0") + planted)
    code, facts, said = _files(s3, tmp_path / "ml", "--cache-dir", str(tmp_path / "cache"))
    assert code == 0, said
    assert (facts["copied"], facts["fetched"]) == ((1, 0) if kept is None else (0, 1))
    assert _there(tmp_path / "ml") == {"a.bin": planted if kept is None else good}


def _members(data: bytes) -> list[Any]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [member for member in archive.getmembers() if member.name.endswith(".cls")]
        return [io.BytesIO(archive.extractfile(member).read()) for member in members]  # type: ignore[union-attr]  # they are files


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended(filled: S3Server, tmp_path: Path, number: signal.Signals) -> None:
    """Whole files stay, an unfinished one has no name, and the next run fetches the rest, and then nothing."""
    hang = faults.hang_in_body(1000)
    filled.script("data", "train/sub/large.bin", *[hang] * 8, always=hang)
    expected = {**SHARDS, "sub/empty": b""}
    with _started(filled, tmp_path) as running:
        deadline = time.monotonic() + WAIT_S
        while {name: data for name, data in _there(tmp_path).items() if "partial" not in name} != expected:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running.send_signal(number)
        _, said = running.communicate(PATIENT_S)
        assert running.returncode == (1 if number is signal.SIGINT else -number), said
    if number is signal.SIGINT:
        assert _there(tmp_path) == expected
        assert re.search(r"[67] of 8 files", said)  # a file is counted right after it gets its name
        assert said.endswith("feedd: stopped; run the command again to continue\n")
    filled.calm()
    filled.requests.clear()
    code, facts, said = _files(filled, tmp_path)
    assert (code, facts["present"], facts["fetched"]) == (0, 7, 1), said
    assert set(_gets(filled)) == {"train/sub/large.bin"}
    assert _there(tmp_path) == {**expected, "sub/large.bin": LARGE}
    assert not (tmp_path / "input/data/train/.feedd-partial").exists()
    filled.requests.clear()
    filled.put("data", "train/03.tar", SHARDS["04.tar"])
    filled.delete("data", "train/04.tar")
    code, facts, said = _files(filled, tmp_path)
    assert (code, facts["present"], facts["fetched"], facts["removed"]) == (0, 6, 1, 1), said
    assert set(_gets(filled)) == {"train/03.tar"}
    assert _there(tmp_path)["03.tar"] == SHARDS["04.tar"]


def test_what_a_store_does_wrong(filled: S3Server, tmp_path: Path) -> None:
    """A damaged body is fetched again; an object that is refused is named, and all others are there."""
    filled.script("data", "train/01.tar", faults.reset_in_body(5000), faults.short_body(10))
    filled.script("data", "train/02.tar", always=faults.denied())
    code, facts, said = _files(filled, tmp_path)
    assert code == 1
    assert [(one["object"], one["kind"]) for one in facts["failed"]] == [
        ("s3://data/train/02.tar", "permission-denied")
    ]
    assert "7 of 8 files" in said
    assert _there(tmp_path) == {
        name: data for name, data in {**SHARDS, "sub/large.bin": LARGE, "sub/empty": b""}.items() if name != "02.tar"
    }


def test_keys_that_are_no_files(filled: S3Server, tmp_path: Path) -> None:
    """The error names the object, before the first file is there."""
    for key, words in (("train/sub", "got both"), ("train/../x", "the name .. or .")):
        filled.put("data", key, b"x")
        code, _, said = _files(filled, tmp_path)
        assert code == 2
        assert words in said
        assert f"[s3://data/{key}]" in said
        assert not (tmp_path / "input").exists()
        filled.delete("data", key)
