"""Records that cannot be read, among others that can: bad samples by policy, through a real daemon."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from feedd_client import BadRequestError, BadSampleError, FeedDataset
from tests.e2e.shards import jpeg, tar
from tests.fakes.tfrecords import example, tfrecord
from tests.unit.formats.test_strided import safetensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

BOM = b"\xef\xbb\xbf"


def _read(daemon: Daemon, prefix: str, fields: dict[str, Any] | None, **options: Any) -> Any:
    """Return the only batch of what lies there, with keys; bad samples are skipped unless said otherwise."""
    options = {"bad_samples": "skip", "keys": True, **options}
    url = f"s3://data/{prefix}/"
    (batch,) = FeedDataset(url, batch_size=32, fields=fields, address=daemon.address, copy=True, **options)
    return batch


def _reason(daemon: Daemon, prefix: str, fields: dict[str, Any]) -> str:
    with pytest.raises(BadSampleError) as caught:
        _read(daemon, prefix, fields, bad_samples="error")
    return str(caught.value)


def _keys(batch: Any) -> list[int]:
    return [int(key) for key in batch["__key__"]]


def test_json_of_other_tools(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A byte order mark is no part of JSON; another encoding, and what a client could not parse, is a bad sample."""
    texts = [b'{"a": 1}', BOM + b'{"a": 2}', '{"a": 3}'.encode("utf-16"), b"[" * 900 + b"]" * 900, b'{"a": NaN}']
    s3.put("data", "t/0.tar", tar([(str(number), {"json": text}) for number, text in enumerate(texts)]))
    s3.put("data", "l/0.jsonl", BOM + b'{"a": 1}\r\n{"a": 1, "a": 2}\r\n"\xff"\r\n')
    daemon = daemons()
    batch = _read(daemon, "t", {"json": "json"})
    assert (_keys(batch), str(batch["json"])) == ([0, 1, 4], "[{'a': 1}, {'a': 2}, {'a': nan}]")
    assert "UTF-16" in _reason(daemon, "t", {"json": "json"})
    assert list(_read(daemon, "l", None)["json"]) == [{"a": 1}, {"a": 2}]
    assert "UTF-8" in _reason(daemon, "l", {"json": "json"})
    daemon.wait_idle()


def test_numbers_that_numpy_has_no_type_for(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """They are what they stand for, unless somebody asks for their bits; integers they are not."""
    bits = np.array([[0, 0x3F80], [0xC020, 0x7F80]], np.uint16)
    s3.put("data", "bf/0.safetensors", safetensors({"x": bits, "y": bits[:, 1]}, x="BF16", y="BF16"))
    codes = np.array([0, 0x38, 0xC4], np.uint8)
    s3.put("data", "f8/0.safetensors", safetensors({"x": codes}, x="F8_E4M3"))
    daemon = daemons()
    whatever = _read(daemon, "bf", None)
    assert whatever["x"].tolist() == [[0.0, 1.0], [-2.5, float("inf")]]
    assert whatever["y"].tolist() == [1.0, float("inf")]
    asked = _read(daemon, "bf", {"y": "float", "x": "array"})
    assert (asked["y"].tolist(), [row.tolist() for row in asked["x"]]) == (
        [1.0, float("inf")],
        [[0.0, 1.0], [-2.5, float("inf")]],
    )
    assert _read(daemon, "bf", {"x": "tensor:uint16:2"})["x"].tolist() == bits.tolist()
    assert _read(daemon, "f8", None)["x"].tolist() == [0.0, 1.0, -3.0]
    with pytest.raises(BadRequestError, match=r"integers.*bfloat16"):
        _read(daemon, "bf", {"y": "int"})


@pytest.mark.parametrize("ready", [False, True])
def test_a_damaged_record_of_tensorflows(
    s3: S3Server, daemons: Callable[..., Daemon], ready: bool, tmp_path: Path
) -> None:
    """It is one bad sample that names its checksum and its place; all others are where they were."""
    records = [example(jpg=jpeg(n), cls=[n]) for n in range(6)]
    shard = bytearray(tfrecord(*records))
    at = sum(len(record) + 16 for record in records[:3]) + 12
    shard[at + 100] ^= 4
    s3.put("data", "t/0.tfrecord", bytes(shard))
    named = tmp_path / "bad.jsonl"
    daemon = daemons(settings=(f"quarantine.path={named}",))
    fields = {"jpg": "image:32x32", "cls": "int"}
    batch = _read(daemon, "t", fields, bad_samples="quarantine", decoded_cache=ready)
    assert (_keys(batch), batch["cls"].tolist()) == ([0, 1, 2, 4, 5], [0, 1, 2, 4, 5])
    (line,) = named.read_text().splitlines()
    told = json.loads(line)
    assert (told["ordinal"], told["key"]) == (3, "00000003")
    assert "checksum" in told["reason"]
    assert ready or told["offset"] == at
    assert "checksum" in _reason(daemon, "t", fields)
    daemon.wait_idle()


def test_bad_rows_of_text(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A value of another type and a row of another length are bad samples, each in its place."""
    s3.put("data", "c/0.csv", b"n,t\n0,a\n1,b\n")
    s3.put("data", "c/1.csv", b"n,t\n2,c\nthree,d\n4\n5,e,f\n6,g\n\xff,\xff\n8,h\n")
    daemon = daemons()
    batch = _read(daemon, "c", {"n": "int", "t": "str"})
    assert (batch["n"].tolist(), list(batch["t"])) == ([0, 1, 2, 6, 8], list("abcgh"))
    assert _keys(batch) == [0, 1, 0, 4, 6]
    assert list(_read(daemon, "c", {"t": "str"})["t"]) == list("abcdgh")
    assert "expected int64" in _reason(daemon, "c", {"n": "int"})
    assert "as many values" in _reason(daemon, "c", {"t": "str"})
    assert _read(daemon, "c", None)["n"].tolist() == [0, 1, 2, 6, 8]
    daemon.wait_idle()


def test_arrays_of_other_lengths(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Each set of arrays that go together is a dataset of its own length; those that do not are named with rows."""
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file["x"], file["other"] = np.arange(2), np.arange(7)
    s3.put("data", "h/0.h5", sink.getvalue())
    sink = io.BytesIO()
    np.savez(sink, x=np.arange(2), other=np.arange(7))
    s3.put("data", "n/0.npz", sink.getvalue())
    daemon = daemons()
    for prefix in "hn":
        for _ in range(2):
            assert _read(daemon, prefix, {"x": "int"})["x"].tolist() == [0, 1]
            assert _read(daemon, prefix, {"other": "int"})["other"].tolist() == [*range(7)]
        with pytest.raises(BadRequestError, match=r"(x of 2, other of 7|other of 7, x of 2)"):
            _read(daemon, prefix, None)
    daemon.wait_idle()
