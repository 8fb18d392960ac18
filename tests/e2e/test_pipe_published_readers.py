"""The published packages of SageMaker, unmodified, beside ``feedd pipe``. Each needs a Python of its own.

``SAGEMAKER_TENSORFLOW_PYTHON`` names a Python 3.10 with ``sagemaker-tensorflow==2.14.0.1.20.0``,
``tensorflow-cpu==2.14.1`` and ``numpy<2``. ``SAGEMAKER_TRAINING_PYTHON`` names one with ``sagemaker-training==5.1.4``.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.test_pipe import Pipe
from tests.fakes.recordio import part, recordio
from tests.fakes.tfrecords import tfrecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture
def pipe(s3: S3Server, tmp_path: Path) -> Iterator[Pipe]:
    """A pipe that a test starts."""
    found = Pipe(s3, tmp_path / "ml")
    yield found
    found.close()


def _run(variable: str, script: str, *arguments: str, **environment: str) -> Any:
    """Run a script with the Python that a variable names, and return the JSON of its last line."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"needs {variable}, a Python with the packages that the first lines of this file name")
    env = {"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    done = subprocess.run(
        [python, "-c", script, *arguments], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


_PIPE_MODE_DATASET = """
import hashlib, json, os, sys
from sagemaker_tensorflow import PipeModeDataset

root = sys.argv[1]
folders = {"pipe_dir": f"{root}/input/data", "config_dir": f"{root}/input/config", "state_dir": f"{root}/state"}
os.makedirs(folders["state_dir"], exist_ok=True)

def dataset(channel, format):
    return PipeModeDataset(channel=channel, record_format=format, **folders)

def digest(records):
    count, found = 0, hashlib.sha256()
    for record in records:
        count += 1
        values = record.numpy()
        for value in [values] if isinstance(values, bytes) else values.ravel():
            found.update(b"%d:" % len(value) + value)
    return [count, found.hexdigest()]

result = {}
records = dataset("records", "RecordIO")
result["records"] = [digest(records) for _ in range(3)]           # an iterator for each epoch
result["early"] = [digest(records.take(5)), digest(records)]      # closed early, then a whole epoch
result["repeated"] = digest(records.repeat(2))                    # two epochs in one iterator
formats = {"split": "RecordIO", "examples": "TFRecord", "lines": "TextLine", "wrapped": "RecordIO"}
for channel, format in formats.items():
    result[channel] = [digest(dataset(channel, format)) for _ in range(2)]
result["augmented"] = [digest(dataset("augmented", "RecordIO").batch(2)) for _ in range(2)]
print(json.dumps(result))
"""


def _digest(records: list[bytes]) -> list[Any]:
    found = hashlib.sha256()
    for record in records:
        found.update(b"%d:" % len(record) + record)
    return [len(records), found.hexdigest()]


def _in_thirds(record: bytes) -> bytes:
    """Return a record in three parts, cut anywhere, as SageMaker's writers split them."""
    low, high = len(record) // 3, len(record) // 3 * 2
    pieces = (record[:low], record[low:high], record[high:])
    return b"".join(part(piece, kind) for kind, piece in enumerate(pieces, 1))


def _entry(name: str, **settings: Any) -> dict[str, Any]:
    return {"TrainingInputMode": "Pipe", "S3Uri": f"s3://data/{name}", **settings}


def test_pipe_mode_dataset(s3: S3Server, pipe: Pipe) -> None:
    """Records of each format are equal, over epochs, early ends, repeats, and pairs of an augmented manifest."""
    chance = random.Random(0)
    records = [chance.randbytes(chance.randrange(1, 20_000)) for _ in range(300)]
    lines = [record[:50].hex().encode() for record in records]
    for number in range(3):
        mine = slice(number * 100, number * 100 + 100)
        s3.put("data", f"records/{number}", recordio(*records[mine]))
        s3.put("data", f"split/{number}", b"".join(map(_in_thirds, records[mine])))
        s3.put("data", f"examples/{number}", b"".join(map(tfrecord, records[mine])))
        s3.put("data", f"lines/{number}", b"".join(line + b"\n" for line in lines[mine]))
    for number in range(10):
        s3.put("data", f"objects/{number}", records[number])
    manifest = [{"source-ref": f"s3://data/objects/{number}", "class": number} for number in range(10)]
    s3.put("data", "manifest", "\n".join(map(json.dumps, manifest)).encode())
    config = {name: _entry(f"{name}/") for name in ("records", "split", "examples", "lines")}
    config["wrapped"] = _entry("objects/", RecordWrapperType="RecordIO")
    config["augmented"] = _entry(
        "manifest",
        RecordWrapperType="RecordIO",
        S3DataType="AugmentedManifestFile",
        AttributeNames=["source-ref", "class"],
    )
    folder = pipe.root / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "inputdataconfig.json").write_text(json.dumps(config))
    pipe.start().fifo(0, "augmented")
    got = _run("SAGEMAKER_TENSORFLOW_PYTHON", _PIPE_MODE_DATASET, str(pipe.root))
    code, err = pipe.end()
    assert code == 0, err
    assert got["records"] == [_digest(records)] * 3
    assert got["early"] == [_digest(records[:5]), _digest(records)]
    assert got["repeated"] == _digest(records * 2)
    assert got["split"] == [_digest(records)] * 2
    assert got["examples"] == [_digest(records)] * 2
    assert got["lines"] == [_digest(lines)] * 2
    assert got["wrapped"] == [_digest(records[:10])] * 2
    pairs = [value for number in range(10) for value in (records[number], str(number).encode())]
    count, found = _digest(pairs)
    assert got["augmented"] == [[count // 2, found]] * 2


_ENVIRONMENT = """
import json
from sagemaker_training import environment

found = environment.Environment()
print(json.dumps({
    "channels": sorted(found.channel_input_dirs.items()),
    "config": found.input_data_config,
    "hosts": found.hosts,
    "host": found.current_host,
    "variables": {k: v for k, v in found.to_env_vars().items() if k in ("SM_CHANNELS", "SM_CHANNEL_TRAIN", "SM_HOSTS")},
}))
"""


def test_the_training_toolkit(s3: S3Server, pipe: Pipe) -> None:
    """``Environment()`` finds the channel that ``feedd pipe`` serves, its folder and the hosts, and so does feedd."""
    s3.put("data", "train/0", b"data")
    folder = pipe.root / "input" / "config"
    folder.mkdir(parents=True)
    hosts = {"current_host": "algo-1", "hosts": ["algo-1", "algo-2"], "network_interface_name": "lo"}
    (folder / "resourceconfig.json").write_text(json.dumps(hosts))
    (folder / "hyperparameters.json").write_text("{}")
    pipe.start("--channel", "train=s3://data/train/", "--sharding", "key").fifo(0)
    found = _run("SAGEMAKER_TRAINING_PYTHON", _ENVIRONMENT, SAGEMAKER_BASE_DIR=str(pipe.root))
    code, err = pipe.end()
    assert code == 0, err
    assert found["channels"] == [["train", str(pipe.root / "input" / "data" / "train")]]
    assert found["config"]["train"]["TrainingInputMode"] == "Pipe"
    assert found["config"]["train"]["S3DistributionType"] == "ShardedByS3Key"
    assert (found["hosts"], found["host"]) == (["algo-1", "algo-2"], "algo-1")
    assert json.loads(found["variables"]["SM_CHANNELS"]) == ["train"]
    assert "0 of 2" in err
