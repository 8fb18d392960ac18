"""``feedd pipe`` as a process, over a store: what unmodified readers of SageMaker's FIFOs get."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.budget import PATIENT_S
from tests.fakes import forks, pipe_readers
from tests.fakes.recordio import recordio
from tests.fakes.s3 import faults as fault
from tests.fakes.tfrecords import tfrecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

EPOCHS = 3


class Pipe:
    """A running ``feedd pipe``.

    Attributes:
        root: folder of the job.
    """

    def __init__(self, s3: S3Server, root: Path) -> None:
        self._s3, self.root = s3, root
        self._running: forks.Running | None = None

    def start(self, *arguments: str, **environment: str) -> Pipe:
        """Start the command."""
        env = {
            **os.environ,
            "AWS_ENDPOINT_URL": self._s3.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            **environment,
        }
        self._running = forks.Running(["pipe", "--root", str(self.root), *arguments], env)
        return self

    def fifo(self, epoch: int, channel: str = "train") -> Path:
        """Return the path of an epoch's FIFO, once it is there."""
        path = self.root / "input" / "data" / f"{channel}_{epoch}"
        deadline = time.monotonic() + PATIENT_S
        while not path.exists():
            assert time.monotonic() < deadline, f"no {path.name}"
            time.sleep(0.01)
        return path

    def end(self, number: int | None = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal, if one is given; return the exit code and what the command wrote to its standard error."""
        assert self._running is not None
        if number is not None:
            self._running.send_signal(number)
        _, err = self._running.communicate(PATIENT_S)
        assert self._running.returncode is not None
        return self._running.returncode, err

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._running is not None:
            self._running.__exit__()


@pytest.fixture
def pipe(s3: S3Server, tmp_path: Path) -> Iterator[Pipe]:
    """A pipe that a test starts."""
    found = Pipe(s3, tmp_path / "ml")
    yield found
    found.close()


# Formats: objects of about 1.5 MB together, more than a pipe holds, and what a reader gets of them.
def _records(number: int) -> list[bytes]:
    chance = random.Random(number)
    return [chance.randbytes(chance.randrange(1, 20_000)) for _ in range(40)]


def _lines(number: int) -> bytes:
    return b"".join(b"%d,%s\n" % (line, record.hex().encode()) for line, record in enumerate(_records(number)))


FORMATS: dict[str, tuple[Callable[[int], bytes], dict[str, str]]] = {
    "recordio": (lambda number: recordio(*_records(number)), {}),
    "tfrecord": (lambda number: b"".join(map(tfrecord, _records(number))), {}),
    "lines": (_lines, {}),
    "raw": (lambda number: b"".join(_records(number)), {}),
    "gzip": (_lines, {"CompressionType": "Gzip"}),
    "wrapped": (lambda number: b"".join(_records(number)), {"RecordWrapperType": "RecordIO"}),
}


def _stored(s3: S3Server, name: str) -> bytes:
    """Put the objects of a format, and return what an epoch must be."""
    content, settings = FORMATS[name]
    objects = [content(number) for number in range(4)]
    for number, data in enumerate(objects):
        s3.put("data", f"{name}/{number}", gzip.compress(data, 1) if "CompressionType" in settings else data)
    return recordio(*objects) if "RecordWrapperType" in settings else b"".join(objects)


# What a reader does with its channel, in EPOCHS epochs; each ends with a whole epoch.
def _late(pipe: Pipe, name: str, expected: bytes) -> None:
    pipe.fifo(0, name)
    for epoch in range(EPOCHS):
        time.sleep(0.5)
        assert pipe_readers.whole(pipe.fifo(epoch, name)) == expected


def _early(pipe: Pipe, name: str, expected: bytes) -> None:
    for epoch in range(EPOCHS - 1):
        count = 100 + epoch * 1_200_000
        assert pipe_readers.first_bytes(pipe.fifo(epoch, name), count) == expected[:count]
    assert pipe_readers.whole(pipe.fifo(EPOCHS - 1, name)) == expected


def _killed(pipe: Pipe, name: str, expected: bytes) -> None:
    for epoch in range(EPOCHS - 1):
        pipe_readers.killed(pipe.fifo(epoch, name), 1000)
    assert pipe_readers.whole(pipe.fifo(EPOCHS - 1, name)) == expected


def _without_blocking(pipe: Pipe, name: str, expected: bytes) -> None:
    for epoch in range(EPOCHS):
        assert pipe_readers.as_mlio(pipe.fifo(epoch, name)) == expected


def _skipping(pipe: Pipe, name: str, expected: bytes) -> None:
    for epoch in (1, 3, 4):
        assert pipe_readers.whole(pipe.fifo(epoch, name)) == expected


def _standing_still(pipe: Pipe, name: str, expected: bytes) -> None:
    with pipe.fifo(0, name).open("rb", buffering=0) as fifo:
        found = fifo.read(10) or b""
        time.sleep(1.5)  # the others go on
        found += b"".join(iter(lambda: fifo.read(1 << 16), b""))
    assert found == expected
    assert pipe_readers.whole(pipe.fifo(1, name)) == expected


READERS = (_late, _early, _killed, _without_blocking, _skipping, _standing_still)


@pytest.mark.parametrize(
    "turn", [0, *(pytest.param(turn, marks=pytest.mark.nightly) for turn in range(1, len(READERS)))]
)
def test_formats_and_readers(s3: S3Server, pipe: Pipe, turn: int) -> None:
    """Six channels of one job at once: each reader gets the bytes of its format, whatever it and the others do."""
    expected = {name: _stored(s3, name) for name in FORMATS}
    config = {name: {"TrainingInputMode": "Pipe", **settings} for name, (_, settings) in FORMATS.items()}
    folder = pipe.root / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "inputdataconfig.json").write_text(json.dumps(config))
    urls = {name: f"s3://data/{name}/" for name in FORMATS}
    pipe.start("--buffer", "24MiB", FEEDD_CHANNELS=json.dumps(urls))
    with ThreadPoolExecutor(len(FORMATS)) as threads:
        running = [
            threads.submit(READERS[(number + turn) % len(READERS)], pipe, name, expected[name])
            for number, name in enumerate(FORMATS)
        ]
        for one in running:
            one.result(90)
    code, err = pipe.end()
    assert code == 0, err
    assert "url_from" in err
    assert "$FEEDD_CHANNELS" in err
    assert not [*(pipe.root / "input" / "data").iterdir()]
    assert json.loads((folder / "inputdataconfig.json").read_text()) == config


def test_an_object_that_is_gone(s3: S3Server, pipe: Pipe) -> None:
    """The reader gets what comes before it; the command names the object and exits with 1. The store's faults go by."""
    for number in range(3):
        s3.put("data", f"train/{number}", bytes([number]) * 500_000)
    s3.script("data", "train/0", fault.slow_down(), fault.reset_in_body(1000))
    pipe.start("--channel", "train=s3://data/train/")
    pipe.fifo(0)
    assert pipe_readers.whole(pipe.fifo(0)) == b"".join(bytes([number]) * 500_000 for number in range(3))
    s3.script("data", "train/1", always=fault.missing())
    found = pipe_readers.whole(pipe.fifo(2))
    code, err = pipe.end(None)
    assert found == bytes([0]) * 500_000
    assert code == 1
    assert "feedd: error:" in err
    assert "[s3://data/train/1]" in err
    assert not [*(pipe.root / "input" / "data").iterdir()]


def test_two_nodes_of_a_job(s3: S3Server, tmp_path: Path) -> None:
    """Hosts, ShardedByS3Key and a seed from the job's files: the nodes read each object once in every epoch."""
    objects = {f"{number:02d}": bytes([number]) * (number + 1) for number in range(9)}
    for key, data in objects.items():
        s3.put("data", f"train/{key}", data)
    entry: dict[str, Any] = {
        "TrainingInputMode": "Pipe",
        "S3DataDistributionType": "ShardedByS3Key",
        "ShuffleConfig": {"Seed": 7},
        "S3Uri": "s3://data/train/",
    }
    nodes = []
    try:
        for host in ("algo-1", "algo-2"):
            node = Pipe(s3, tmp_path / host)
            folder = node.root / "input" / "config"
            folder.mkdir(parents=True)
            (folder / "inputdataconfig.json").write_text(json.dumps({"train": entry}))
            (folder / "resourceconfig.json").write_text(
                json.dumps({"current_host": host, "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0"})
            )
            nodes.append(node.start())
        for epoch in range(2):
            read = [pipe_readers.whole(node.fifo(epoch)) for node in nodes]
            assert sorted(read[0] + read[1]) == sorted(b"".join(objects.values()))
            assert abs(len(set(read[0])) - len(set(read[1]))) == 1
        for node in nodes:
            code, err = node.end()
            assert code == 0, err
    finally:
        for node in nodes:
            node.close()
