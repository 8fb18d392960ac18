"""``feedd pack``: small objects become shards that feedd and other libraries read, however often the run is killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset
from tests.bench.peers import find_peers
from tests.budget import PATIENT_S, later
from tests.fakes import forks
from tests.unit.pack.packing import folder, shards

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

FILES = 120
TARGET = "s3://out/packed/"


def _pack(s3: S3Server, *arguments: str) -> forks.Running:
    own: Mapping[str, str] = {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return forks.Running(["pack", *arguments], {**os.environ, **own})


def _ended(process: forks.Running) -> tuple[int, str, str]:
    with process:
        said, complained = process.communicate(timeout=PATIENT_S)
        assert process.returncode is not None
        return process.returncode, said, complained


def _packed(s3: S3Server, *arguments: str) -> dict[str, Any]:
    code, said, complained = _ended(_pack(s3, "--format", "tar", "--shard-size", "1MiB", "--json", *arguments))
    assert code == 0, complained
    found: dict[str, Any] = json.loads(said)
    return found


def test_feedd_reads_what_was_packed(s3: S3Server, tmp_path: Path, daemons: Callable[..., Daemon]) -> None:
    """Two parts pack a folder into a bucket; the number of steps is known at the open, and all samples arrive."""
    files = folder(tmp_path / "in")
    s3.create_bucket("out")
    first = _packed(s3, str(tmp_path / "in"), TARGET, "--part", "0/2", "--seed", "1")
    assert first["manifest"] is None
    last = _packed(s3, str(tmp_path / "in"), TARGET, "--part", "1/2", "--seed", "1")
    assert first["part"] + last["part"] == last["shards"] == len(last["manifest"]["shards"])
    fields = {"jpg": "bytes", "cls": "int"}
    daemon = daemons(workers=1)
    dataset = FeedDataset(TARGET, batch_size=8, fields=fields, keys=True, address=daemon.address)
    assert len(dataset) == FILES // 8
    found = {
        key: (bytes(image.numpy()), label)
        for batch in dataset
        for key, image, label in zip(batch["__key__"], batch["jpg"], batch["cls"].tolist(), strict=True)
    }
    dataset.close()
    assert found == {name[:-4]: (data, int(name[len("class-")])) for name, data in files.items()}
    daemon.wait_idle()


@pytest.mark.parametrize("format_name", [later(name) for name in ("mds", "tfrecord", "parquet", "lmdb", "recordio")])
def test_feedd_reads_every_format(
    s3: S3Server, tmp_path: Path, daemons: Callable[..., Daemon], format_name: str
) -> None:
    """The counts are known at the open, and every sample arrives with its label, whatever the format."""
    files = folder(tmp_path / "in")
    s3.create_bucket("out")
    _packed(s3, str(tmp_path / "in"), TARGET, "--format", format_name)
    names = ("image", "label") if format_name == "recordio" else ("jpg", "cls")
    kinds = {names[0]: "bytes", names[1]: "float" if format_name == "recordio" else "int"}
    daemon = daemons(workers=1)
    dataset = FeedDataset(TARGET, batch_size=8, fields=kinds, shuffle=False, address=daemon.address)
    assert len(dataset) == FILES // 8
    found = [
        (bytes(image.numpy()), int(label))
        for batch in dataset
        for image, label in zip(batch[names[0]], batch[names[1]].tolist(), strict=True)
    ]
    dataset.close()
    assert found == [(data, int(name[len("class-")])) for name, data in sorted(files.items())]
    daemon.wait_idle()


@pytest.mark.parametrize("kill_count", [3, later(50)])
def test_kills_change_no_byte(s3: S3Server, tmp_path: Path, kill_count: int) -> None:
    """Runs that are killed at any moment leave nothing that the last run does not use or remove."""
    folder(tmp_path / "in", each=FILES * kill_count // 6)
    whole = tmp_path / "whole"
    began_s = time.monotonic()
    _packed(s3, str(tmp_path / "in"), str(whole))
    took_s = time.monotonic() - began_s
    draw = random.Random(kill_count)
    killed_count = 0
    out = tmp_path / "out-0"
    for number in range(kill_count):
        if (out / "_feedd_pack.json").exists():
            assert shards(out) == shards(whole)
            out = tmp_path / f"out-{number}"
        with _pack(s3, str(tmp_path / "in"), str(out), "--format", "tar", "--shard-size", "1MiB") as process:
            time.sleep(draw.uniform(0, took_s))
            killed_count += process.poll() is None
            process.send_signal(signal.SIGKILL)
    assert killed_count > kill_count // 2
    for target in tmp_path.glob("out-*"):
        code, said, complained = _ended(
            _pack(s3, str(tmp_path / "in"), str(target), "--format", "tar", "--shard-size", "1MiB")
        )
        assert code == 0, complained
        assert shards(target) == shards(whole)
        manifest = json.loads((target / "_feedd_pack.json").read_bytes())
        assert manifest == json.loads((whole / "_feedd_pack.json").read_bytes())
        assert said.split() == [word for one in manifest["shards"] for word in (one["sha256"], one["name"])]
        assert not (target / ".feedd_pack").exists()


def test_wrong_arguments_are_named(s3: S3Server, tmp_path: Path) -> None:
    """A wrong flag is a usage error with what was expected; a missing source is an error of the store."""
    folder(tmp_path / "in", each=2)
    source, out = str(tmp_path / "in"), str(tmp_path / "out")
    for arguments, code, said in (
        ((source, out, "--format", "zip"), 2, "expected one of tar, tfrecord, recordio, mds, parquet, lmdb"),
        ((source, out, "--format", "tar", "--part", "4/4"), 2, "expected a part I/N, with I from 0 to N - 1"),
        ((source, out, "--format", "tar", "--shard-size", "1KiB"), 2, "expected 1MiB to 1GiB"),
        ((source, f"{source}/out", "--format", "tar"), 2, "expected a destination outside of the source"),
        ((f"{source}-none", out, "--format", "tar"), 1, "in-none"),
    ):
        got, _, complained = _ended(_pack(s3, *arguments))
        assert got == code
        assert said in " ".join(complained.replace("│", "").split())
    assert not (tmp_path / "out").exists()


_READ = """
import sys, warnings
kind, folder = sys.argv[1:]
found = {}
if kind == "webdataset":
    import webdataset
    from pathlib import Path
    urls = sorted(map(str, Path(folder).glob("shard-*.tar")))
    for sample in webdataset.WebDataset(urls, shardshuffle=False):
        found[sample["__key__"]] = (sample["jpg"], int(sample["cls"]))
else:
    from streaming import StreamingDataset
    from streaming.base.format.mds.encodings import _encodings, Bytes
    _encodings["jpeg"] = Bytes  # these are no pictures
    for sample in StreamingDataset(local=folder, shuffle=False, batch_size=1, validate_hash="sha256"):
        found[sample["__key__"]] = (sample["jpg"], int(sample["cls"]))
import hashlib
for key in sorted(found):
    print("sample", key, hashlib.sha256(found[key][0]).hexdigest(), found[key][1])
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "format_name"), [("webdataset", "tar"), ("streaming", "mds")])
def test_other_libraries_read_what_was_packed(s3: S3Server, tmp_path: Path, kind: str, format_name: str) -> None:
    """The libraries whose formats these are find every sample, with its key and its label."""
    peers = find_peers()
    if peers is None:
        pytest.skip("needs the peers of the benches: .venv/bin/python -m tests.bench.setup_peers")
    files = folder(tmp_path / "in")
    _packed(s3, str(tmp_path / "in"), str(tmp_path / "out"), "--format", format_name)
    environment = {**os.environ, **peers.environment}
    command = [str(peers.python), "-c", _READ, kind, str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENT_S)
    assert done.returncode == 0, done.stderr
    wanted = [
        f"sample {name[:-4]} {hashlib.sha256(data).hexdigest()} {name[len('class-')]}"
        for name, data in sorted(files.items())
    ]
    assert [line for line in done.stdout.splitlines() if line.startswith("sample ")] == wanted
