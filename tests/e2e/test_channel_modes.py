"""SageMaker's input modes over one channel: File, FastFile and Pipe give the samples that a trainer gets."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import struct
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset, Topology
from feedd_client.filesystem import FeedFileSystem
from tests.budget import PATIENT_S
from tests.e2e.shards import numbered
from tests.e2e.test_pipe import Pipe
from tests.fakes import forks, pipe_readers
from tests.fakes.recordio import recordio
from tests.fakes.tfrecords import example, tfrecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HOSTS = ("algo-1", "algo-2")
NODE = 1
SAMPLES = 5


def _chained(data: bytes, head: str, tail_bytes: int, align_bytes: int = 1) -> Iterator[bytes]:
    """Yield records that their lengths precede."""
    at, size = 0, struct.calcsize(head)
    while at < len(data):
        length = struct.unpack_from(head, data, at)[-1]
        yield data[at + size : at + size + length]
        at += size + length + -length % align_bytes + tail_bytes


def _members(data: bytes) -> Iterator[bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as archive:
        for member in archive:
            if member.name.endswith(".cls"):
                yield archive.extractfile(member).read()  # type: ignore[union-attr]  # it is a file


# Each format: its ending, an object, what a script reads from bytes of whole objects, and what the trainer gets.
FORMATS: dict[str, tuple[str, Callable[[int], bytes], Callable[[bytes], Iterator[bytes]], str, str]] = {
    "recordio": (
        ".rec",
        lambda number: recordio(*(b"%d" % (number * 100 + at) for at in range(SAMPLES))),
        lambda data: _chained(data, "<II", 0, 4),
        "data",
        "bytes",
    ),
    "tfrecord": (
        ".tfrecord",
        lambda number: b"".join(tfrecord(example(n=[number * 100 + at])) for at in range(SAMPLES)),
        lambda data: _chained(data, "<Q4x", 4),
        "n",
        "int",
    ),
    "lines": (
        ".txt",
        lambda number: b"".join(b"%d\n" % (number * 100 + at) for at in range(SAMPLES)),
        lambda data: iter(data.splitlines()),
        "text",
        "str",
    ),
    "tar": (".tar", lambda number: numbered(number, SAMPLES), _members, "cls", "int"),
}


def _job(root: Path, mode: str) -> Path:
    """Write the files of a job on the second of two hosts, with a channel for each format; return its folder."""
    folder = root / "input" / "config"
    folder.mkdir(parents=True)
    channels = {
        name: {"TrainingInputMode": mode, "S3DistributionType": "ShardedByS3Key", "S3Uri": f"s3://data/{name}/"}
        for name in FORMATS
    }
    (folder / "inputdataconfig.json").write_text(json.dumps(channels))
    hosts = {"current_host": HOSTS[NODE], "hosts": HOSTS, "network_interface_name": "eth0"}
    (folder / "resourceconfig.json").write_text(json.dumps(hosts))
    return root


def _trained(daemon: Daemon, name: str) -> list[Any]:
    """Return what a trainer of this node gets."""
    _, _, _, field, recipe = FORMATS[name]
    dataset = FeedDataset(
        f"{'recordio-raw+' if name == 'recordio' else ''}s3://data/{name}/",
        batch_size=1,
        fields={field: recipe},
        shuffle=False,
        address=daemon.address,
        topology=Topology(2, NODE, 1, 0, 2, NODE),
        uneven="allow",
    )
    found = [batch[field][0] for batch in dataset]
    dataset.close()
    return found


def test_all_modes_give_the_same_samples(s3: S3Server, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """A node of two reads the same records of four formats as files, through feedd://, from FIFOs, and as batches."""
    for name, (ending, content, *_) in FORMATS.items():
        for number in range(5):
            s3.put("data", f"{name}/{number}{ending}", content(number))
    own = {"AWS_ENDPOINT_URL": s3.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    region = {"AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    files = _job(tmp_path / "file", "File")
    pipe = Pipe(s3, _job(tmp_path / "pipe", "Pipe")).start()
    try:
        with forks.Running(["files", "--root", str(files)], os.environ | own | region) as running:
            daemon = daemons()
            _, said = running.communicate(PATIENT_S)
            assert running.returncode == 0, said
        through_pipe = {name: pipe_readers.whole(pipe.fifo(0, name)) for name in FORMATS}
        assert pipe.end(signal.SIGTERM)[0] == 0
    finally:
        pipe.close()
    fast: Any = FeedFileSystem(address=daemon.address, skip_instance_cache=True)
    for name, (_, content, records, *_) in FORMATS.items():
        expected = list(itertools.chain.from_iterable(records(content(number)) for number in (1, 3)))
        assert len(expected) == 2 * SAMPLES
        folder = files / "input" / "data" / name
        assert (
            list(itertools.chain.from_iterable(records(one.read_bytes()) for one in sorted(folder.iterdir())))
            == expected
        )
        keys = sorted(fast.find(f"data/{name}"))[NODE :: len(HOSTS)]
        assert [key.rpartition("/")[2] for key in keys] == sorted(one.name for one in folder.iterdir())
        assert list(itertools.chain.from_iterable(records(fast.cat_file(key)) for key in keys)) == expected
        assert list(records(through_pipe[name])) == expected
        assert [_as_stored(name, one) for one in _trained(daemon, name)] == expected
    fast.close()


def _as_stored(name: str, value: Any) -> bytes:
    """Return a value of a batch as its record in the object."""
    if name == "tfrecord":
        return example(n=[int(value)])
    if isinstance(value, str):
        return value.encode()
    return b"%d" % int(value) if name == "tar" else bytes(value)
