"""SequenceExample: feature lists as the values of all their steps, and how many each step has."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.codecs.codec_registry import make
from feedd.errors import BadRecipe, BadSample
from feedd.recipe.encodings import check_encoding
from feedd.recipe.recipe import needs_measure
from feedd.values import FieldRecipe
from tests.budget import budget
from tests.fakes.reading import read
from tests.fakes.tfrecords import Example, example, tfrecord


def _message(number: int, body: bytes) -> bytes:
    assert len(body) < 1 << 14
    size = bytes([len(body)]) if len(body) < 128 else bytes([len(body) & 127 | 128, len(body) >> 7])
    return bytes([number << 3 | 2]) + size + body


def _feature(value: list[float] | list[int] | list[bytes]) -> bytes:
    made = Example()
    feature = made.features.feature["x"]
    if value and isinstance(value[0], bytes):
        feature.byteslist.value.extend(value)
    elif value and isinstance(value[0], float):
        feature.floatlist.value.extend(value)
    elif value:
        feature.int64list.value.extend(value)
    encoded: bytes = feature.SerializeToString()
    return encoded


def feature_list(*steps: list[float] | list[int] | list[bytes]) -> bytes:
    """Return an encoded FeatureList."""
    return b"".join(_message(1, _feature(step)) for step in steps)


def sequence(context: bytes, **lists: bytes) -> bytes:
    """Return an encoded SequenceExample."""
    entries = [_message(1, _message(1, name.encode()) + _message(2, body)) for name, body in lists.items()]
    return context + _message(2, b"".join(entries))


def test_values_and_lengths() -> None:
    """Numbers of all steps one after another, bytes too; beside them how many each step has, or how long each is."""
    one = sequence(
        example(label=[3]),
        x=feature_list([1.5, 2.5], [], [3.5]),
        ids=feature_list([1, -1], [300]),
        frames=feature_list([b"ab"], [b"", b"cde"]),
    )
    (sample,) = read(tfrecord(one), "tfrecord")
    assert sample["x"].tolist() == [1.5, 2.5, 3.5]
    assert sample["x.lengths"].tolist() == [2, 0, 1]
    assert sample["ids"].tolist() == [1, -1, 300]
    assert sample["ids.lengths"].tolist() == [2, 1]
    assert sample["frames"].tobytes() == b"abcde"
    assert sample["frames.lengths"].tolist() == [2, 0, 3]
    assert sample["label"].tolist() == [3]


def test_steps_of_another_kind_are_bad_samples() -> None:
    """A list whose first step has floats and whose second has integers is told when it is decoded."""
    with pytest.raises(BadSample, match="steps of float32"):
        read(tfrecord(sequence(b"", x=feature_list([1.5], [1]))), "tfrecord", {"x": "array"})


def test_steps_of_numbers_that_do_not_fit_are_bad_samples() -> None:
    """Floats that the recipe's integers cannot hold are told as such, without a warning of NumPy."""
    codec = make(FieldRecipe("x", ("x",), "array", '{"dtype":"int64"}', "float32[][]"))
    for number in (1e30, float("nan"), 0.5):
        with pytest.raises(BadSample, match="numbers that fit int64"):
            codec.decode(memoryview(feature_list([number])), np.zeros(1, np.int64), 0)


def test_recipes_that_do_not_fit() -> None:
    """One number is not what a list of steps is; a tensor of so many values may be."""
    for codec in ("int", "float", "image", "str"):
        with pytest.raises(BadRecipe):
            check_encoding(FieldRecipe("x", ("x",), codec, encoding="float32[][]"))
    fixed = FieldRecipe("x", ("x",), "tensor", '{"dtype":"float32","shape":[2,2]}', "float32[][]")
    check_encoding(fixed)
    assert not needs_measure(fixed)
    out = np.empty((2, 2), np.float32)
    make(fixed).decode(memoryview(feature_list([1.0, 2.0], [3.0, 4.0])), out, 0)
    assert out.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(BadSample, match="4 numbers"):
        make(fixed).decode(memoryview(feature_list([1.0])), out, 0)


@settings(max_examples=budget(150), deadline=None)
@given(data=st.binary(max_size=60), kind=st.sampled_from(["float32[][]", "varint[][]", "bytes[][]", "lengths[][]"]))
def test_no_bytes_do_harm(data: bytes, kind: str) -> None:
    """Whatever a field holds, it is values or a BadSample."""
    lists = feature_list([struct.unpack("<f", b"\1\2\3\4")[0]], [1.0])
    recipe = FieldRecipe("x", ("x",), "array", '{"dtype":"int64"}', kind)
    for text in (data, lists[: len(data)], bytes(a ^ b for a, b in zip(lists, data, strict=False))):
        try:
            (count,) = make(recipe).measure(memoryview(text))
            assert 0 <= count <= 8 * len(text) + 8
        except BadSample:
            pass
