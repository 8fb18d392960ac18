"""What users write about padding and filters, whatever it is: understood, or refused as a recipe."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.errors import BadRecipe, BadSample
from feedd.recipe.filters import filter_text, parse_filter, within
from feedd.recipe.padding import Pad, Padding, pad_text, padded, parse_pad
from feedd.recipe.recipe import parse_field, spec_of
from feedd.values import FieldKind, TensorSpec

_NUMBERS = st.one_of(st.integers(-(10**30), 10**30), st.floats(), st.booleans(), st.none())
_ANYTHING = st.recursive(
    st.one_of(_NUMBERS, st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5,
)
_PADS = st.dictionaries(st.sampled_from(["to", "value", "truncate", "mask", "lengths", "x"]), _ANYTHING, max_size=4)
_FILTERS = st.dictionaries(
    st.sampled_from(["field", "min_bytes", "max_width", "min", "max", "x"]), _ANYTHING, max_size=4
)


@given(
    given_pad=st.one_of(_PADS, _ANYTHING), codec=st.sampled_from(["bytes", "image", "str", "int", "npy", "image:raw"])
)
def test_any_pad_is_understood_or_refused(given_pad: object, codec: str) -> None:
    """Nothing but BadRecipe is raised, and what is understood says the same when it is read again."""
    with suppress(BadRecipe):
        recipe = parse_field("x", json.dumps({"decode": codec.split(":", maxsplit=1)[0], "pad": given_pad}))
        pad = parse_pad(recipe.pad)
        assert pad is not None
        assert pad_text("x", json.loads(recipe.pad)) == recipe.pad
        if codec != "npy":
            assert spec_of(recipe).kind is FieldKind.PADDED


@given(one=st.one_of(_FILTERS, _ANYTHING), values=st.lists(st.integers(-1, 1 << 40), max_size=3))
def test_any_filter_is_understood_or_refused(one: object, values: list[int]) -> None:
    """Nothing but BadRecipe is raised; bounds of any size can be compared with."""
    with suppress(BadRecipe):
        made = parse_filter(json.dumps(one))
        assert parse_filter(filter_text(made)) == made
        for bounds in (made.bytes, made.width, made.number):
            low, high = bounds
            expected = [(low is None or v >= low) and (high is None or v <= high) for v in values]
            assert within(np.array(values, np.int64), bounds).tolist() == expected


@given(text=st.text(max_size=20))
def test_any_text_is_no_filter(text: str) -> None:
    """Text that is no JSON object is refused."""
    with pytest.raises(BadRecipe):
        parse_filter(text)


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("uint8", 255, True),
        ("uint8", 256, False),
        ("uint8", -1, False),
        ("int16", -100, True),
        ("int64", 1 << 70, False),
        ("float16", -0.1, True),
        ("float16", 1e9, False),
        ("float32", 10**400, False),
        ("int32", 0.5, False),
        ("bool", 1, True),
        ("bool", 2, False),
    ],
)
def test_values_are_of_the_fields_type(dtype: str, value: float, fits: bool) -> None:
    """What the dtype cannot hold is refused where the dtype is known, not wrapped around."""
    spec = TensorSpec("x", FieldKind.RAGGED, dtype)
    if fits:
        assert padded(spec, Pad(value=value)).kind is FieldKind.PADDED
    else:
        with pytest.raises(BadRecipe):
            padded(spec, Pad(value=value))


class _Copy:
    """A codec that copies int16 values."""

    def decode(self, data: memoryview, out: np.ndarray[Any, Any], seed: int) -> None:
        """Copy."""
        assert out.flags.c_contiguous
        out[...] = np.frombuffer(data, np.int16).reshape(out.shape)


@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    room=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    truncate=st.booleans(),
)
def test_a_row_is_its_sample_and_the_value(shape: list[int], room: list[int], *, truncate: bool) -> None:
    """Whatever fits is at the head of the row, all else is the value; what is too long is cut or bad."""
    dims = tuple(room[: len(shape)])
    pad = Pad(8, -7, truncate=True) if truncate else Pad(value=-7)
    values = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
    row = np.full(dims, 99, np.int16)
    padding = Padding(pad, dims, np.dtype(np.int16))
    if shape[0] > dims[0] and not truncate:
        with pytest.raises(BadSample, match="at most"):
            padding.decode(_Copy(), memoryview(values.tobytes()), shape, row, 0)  # type: ignore[arg-type]  # all it uses
        return
    padding.decode(_Copy(), memoryview(values.tobytes()), shape, row, 0)  # type: ignore[arg-type]  # all it uses
    expected = np.full(dims, -7, np.int16)
    head = tuple(slice(0, min(pair)) for pair in zip(shape, dims, strict=True))
    expected[head] = values[head]
    assert np.array_equal(row, expected)
