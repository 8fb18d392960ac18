"""Shards told by their first bytes, and files that are recognised and refused."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.errors import BadShard, Unsupported
from feedd.formats import format_registry as registry
from feedd.formats.refused import REFUSED
from tests.fakes.recordio import recordio
from tests.fakes.tars import tar_bytes
from tests.fakes.tfrecords import example, tfrecord
from tests.unit.formats.test_mds import mds

SHARDS = {
    "tar": tar_bytes([("a", {"txt": b"x"})]),
    "recordio": recordio(b"abc"),
    "tfrecord": tfrecord(example(label=[1])),
    "mds": mds({"text": "str"}, [{"text": b"abc"}]),
    "jsonl": b'{"a": 1}\n{"a": 2}\n',
}


def _zip(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"x")
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


FILES = {
    "a PyTorch checkpoint": _zip("archive/data.pkl", "archive/data/0"),
    "a pickle": pickle.dumps({"a": [1, 2]}),
    "a zip": _zip("a.npy"),
    "a .npy array": _npy(),
    "gzip": gzip.compress(b"x"),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "Parquet": b"PAR1" + bytes(100),
    "an FFCV file": b"\x02\x00\x02\x00\x00\x00\x00\x00\x80\x00" + bytes(100),
}


@pytest.mark.parametrize("name", SHARDS)
def test_shards_without_an_extension_are_read(name: str) -> None:
    """A name that says nothing leads to the first bytes, and to the same index as the format gives."""
    assert registry.format_for("s3://b/shard-0001") == "auto"
    data = memoryview(SHARDS[name])
    assert registry.sniff(data) == name
    found, wanted = registry.get("auto").index(data, "s3://b/x"), registry.get(name).index(data, "s3://b/x")
    assert (found.fields, found.starts.tolist(), found.encodings) == (
        wanted.fields,
        wanted.starts.tolist(),
        wanted.encodings,
    )


@pytest.mark.parametrize("what", FILES)
def test_files_are_refused_by_what_they_are(what: str) -> None:
    """The message names it, and the hint says what to do instead."""
    with pytest.raises(Unsupported, match=what) as caught:
        registry.get("auto").index(memoryview(FILES[what]), "s3://b/x")
    assert caught.value.hint
    assert caught.value.object == "s3://b/x"


def test_names_are_refused_before_anything_is_fetched() -> None:
    """Every refused ending that no format has is told by the name alone."""
    known = {extension for extensions in registry.extensions().values() for extension in extensions}
    for refusal in REFUSED:
        for extension in refusal.extensions:
            if extension not in known:
                with pytest.raises(Unsupported, match=refusal.what):
                    registry.format_for(f"s3://b/a{extension}")


@given(data=st.binary(max_size=700))
def test_noise_is_refused(data: bytes) -> None:
    """Whatever it is, it is an index, BadShard or Unsupported."""
    with suppress(BadShard, Unsupported):
        registry.get("auto").index(memoryview(data), "s3://b/x")
