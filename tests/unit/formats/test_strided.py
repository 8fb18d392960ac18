"""Arrays read where they lie: .npy and safetensors."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadShard
from feedd.formats.format_registry import format_for, get
from feedd.recipe.low_precision import NARROW
from tests.budget import budget
from tests.fakes.files import npy

TYPES = {"float32": "F32", "int64": "I64", "bool": "BOOL", "uint16": "U16", "float64": "F64"}


def safetensors(arrays: dict[str, Any], **types: str) -> bytes:
    """Return a file as its format's text has it."""
    header: dict[str, Any] = {"__metadata__": {"made": "by hand"}}
    at = 0
    for name, array in arrays.items():
        kind = types.get(name) or TYPES[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values())


def read(name: str, shard: bytes) -> dict[str, list[Any]]:
    """Return every field's values."""
    index = get(name).index(memoryview(shard), "s3://b/shard")
    found: dict[str, list[Any]] = {}
    for column, field in enumerate(index.fields):
        dtype = index.encoding_of(column).split("[")[0]
        dtype = NARROW.get(dtype, dtype)
        found[field] = [
            np.frombuffer(shard, dtype, int(size) // np.dtype(dtype).itemsize, int(start)).tolist()
            for start, size in zip(index.starts[column], index.sizes[column], strict=True)
        ]
    return found


def test_rows_of_npy_are_samples() -> None:
    """Of one dimension or several; the name of the field is data."""
    array = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    assert read("npy", npy(array))["data"] == array.reshape(4, -1).tolist()
    assert read("npy", npy(np.arange(3)))["data"] == [[0], [1], [2]]
    assert get("npy").index(memoryview(npy(array)), "u").encodings == ("float32[3,2]",)
    assert get("npy").index(memoryview(npy(np.zeros((0, 2)))), "u").sample_count == 0


@pytest.mark.parametrize(
    "array",
    [
        np.array({}, object),
        np.array([{}], object),
        np.array(3),
        np.array(["a"]),
        np.arange(4, dtype=">i4"),
        np.asfortranarray(np.zeros((3, 2))),
    ],
)
def test_other_arrays_are_refused(array: Any) -> None:
    """Objects, text, single numbers, and what does not lie row by row."""
    sink = io.BytesIO()
    np.save(sink, array, allow_pickle=True)
    with pytest.raises(BadShard):
        get("npy").index(memoryview(sink.getvalue()), "s3://b/a.npy")


def test_rows_of_tensors_are_samples() -> None:
    """Every tensor is a field, but one without dimensions; bfloat16 is said to be that."""
    arrays: dict[str, Any] = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 4),
        "Label": np.arange(3),
        "flag": np.array([True, False, True]),
        "brain": np.arange(3, dtype=np.uint16),
        "one": np.array(5),
    }
    shard = safetensors(arrays, brain="BF16")
    found = read("safetensors", shard)
    assert found == {
        "x": arrays["x"].tolist(),
        "label": [[0], [1], [2]],
        "flag": [[True], [False], [True]],
        "brain": [[0], [1], [2]],
    }
    index = get("safetensors").index(memoryview(shard), "s3://b/a.safetensors")
    assert index.encoding_of(index.fields.index("brain")) == "bfloat16"
    assert format_for("s3://b/a.safetensors") == "safetensors"
    assert read("safetensors", safetensors({})) == {}


def test_tensors_that_do_not_go_together_are_named() -> None:
    """A first dimension that differs is an error."""
    with pytest.raises(BadShard, match="'y'"):
        read("safetensors", safetensors({"x": np.zeros(3), "y": np.zeros(2)}))


SEEDS = {
    "npy": npy(np.arange(24, dtype=np.float32).reshape(4, 3, 2)),
    "safetensors": safetensors({"x": np.arange(12, dtype=np.float32).reshape(3, 4), "y": np.arange(3)}),
}


@settings(max_examples=budget(200), deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(SEEDS)))
def test_no_bytes_do_harm(data: st.DataObject, kind: str) -> None:
    """A shard damaged anywhere is an index within its bytes, or refused."""
    whole = bytearray(SEEDS[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        index = get(kind).index(memoryview(bytes(whole)), "s3://b/shard")
    except BadShard:
        return
    assert (index.sizes >= 0).all()
    assert (index.starts >= 0).all()
    assert (index.starts + index.sizes <= len(whole)).all()


@pytest.mark.parametrize("shape", [(24_000_000, 0), (1 << 40, 3, 0)])
def test_rows_without_bytes_are_refused(shape: tuple[int, ...]) -> None:
    """A header of some bytes that names millions of empty rows is a bad shard, and takes no memory for them."""
    sink = io.BytesIO()
    np.lib.format.write_array_header_1_0(sink, {"descr": "<f4", "fortran_order": False, "shape": shape})
    tensor = {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 0]}
    text = json.dumps({"x": tensor}).encode()
    for name, shard in (("npy", sink.getvalue()), ("safetensors", len(text).to_bytes(8, "little") + text)):
        tracemalloc.start()
        try:
            with pytest.raises(BadShard, match=r"rows of at least one byte|cells"):
                get(name).index(memoryview(shard), "s3://b/shard")
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
    assert read("npy", npy(np.zeros((0, 3), np.float32))) == {"data": []}
