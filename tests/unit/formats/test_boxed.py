"""Arrays that carry their shape, and pixels that carry their size, as MosaicML and LitData write them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.codecs.array import NpyCodec, pin_npy
from feedd.codecs.codec_registry import make
from feedd.errors import BadRecipe, BadSample
from feedd.formats.inline_headers import header_reader
from feedd.recipe.encodings import check_encoding
from feedd.recipe.params import params_of
from feedd.values import FieldRecipe, ObjectRef, ShardFile
from feedd.workers.calls import file_messages, pin_call
from feedd.workers.messages import PinRequest, encode
from tests.budget import budget

KINDS = ("mds", "mds:float32", "litdata:numpy", "litdata:tensor")


def boxed(kind: str, array: np.ndarray) -> bytes:
    """Return a float32 array as its writer lays it out."""
    if kind.startswith("litdata"):
        order, number = ("<", 9) if kind.endswith("numpy") else (">", 0)
        return struct.pack(f"{order}II{array.ndim}I", number, array.ndim, *array.shape) + array.tobytes()
    head = b"" if ":" in kind else b"\x22"
    return head + struct.pack(f"<B{array.ndim}H", array.ndim << 2 | 1, *array.shape) + array.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)], ids=str)
def test_shape_dtype_and_values(kind: str, shape: tuple[int, ...]) -> None:
    """The first one pins dtype and dimensions; any is decoded as it was."""
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    data = memoryview(boxed(kind, array))
    recipe = FieldRecipe("x", ("x",), "npy", pin_npy(data, header_reader(kind)), kind)
    check_encoding(recipe)
    codec = make(recipe)
    assert isinstance(codec, NpyCodec)
    assert codec.spec("x").dtype == "float32"
    assert codec.measure(data) == shape
    out = np.full(shape, 9, np.float32)
    codec.decode(data, out, 0)
    assert np.array_equal(out, array)


def test_a_worker_that_pins_is_told_how_the_array_is_stored() -> None:
    """Otherwise it would look for a .npy header."""
    file = ShardFile(ObjectRef("s3://b", "k", 40, "tag"), "/x", 0)
    recipe = FieldRecipe("x", ("x",), "npy", "{}", "litdata:numpy")
    packet = pin_call(file, recipe, 3, 20).packet(range(1), 7).payload
    assert packet == encode(PinRequest(7, file_messages((file,))[0][0], 3, 20, "litdata:numpy"))


@pytest.mark.parametrize("kind", KINDS)
def test_other_recipes_are_refused(kind: str) -> None:
    """Only ``npy`` reads the shape; the message says so."""
    for codec, params in (("tensor", '{"dtype":"float32","shape":[2]}'), ("image", "{}"), ("int", "{}")):
        with pytest.raises(BadRecipe) as caught:
            check_encoding(FieldRecipe("x", ("x",), codec, params, kind))
        assert "npy" in caught.value.hint
    check_encoding(FieldRecipe("x", ("x",), "bytes", "{}", kind))


@settings(max_examples=budget(200), deadline=None)
@given(kind=st.sampled_from(KINDS), data=st.binary(max_size=40), whole=st.booleans(), cut=st.integers(0, 40))
def test_no_bytes_do_harm(kind: str, data: bytes, cut: int, *, whole: bool) -> None:
    """Whatever lies there, it is an array of as many bytes as there are, or a BadSample."""
    text = boxed(kind, np.zeros((2, 3), np.float32))[:cut] + data if whole else data
    try:
        header = header_reader(kind)(memoryview(text))
    except BadSample:
        return
    assert header.data_at + header.dtype.itemsize * int(np.prod(header.shape, dtype=object)) == len(text)


def pixels(mode: str, array: np.ndarray) -> bytes:
    """Return an image as PIL's bytes, with their head."""
    return struct.pack("<III", array.shape[1], array.shape[0], len(mode)) + mode.encode() + array.tobytes()


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 4)])
@pytest.mark.parametrize("width", [4, 5])
def test_pixels(mode: str, channels: int, width: int) -> None:
    """Grey becomes RGB, alpha is dropped, rows need not be multiples of four bytes."""
    array = np.arange(3 * width * channels, dtype=np.uint8).reshape(3, width, channels)
    data = memoryview(pixels(mode, array))
    codec = make(FieldRecipe("x", ("x",), "image", "{}", "pil"))
    assert codec.measure(data) == (3, width, 3)
    out = np.empty((3, width, 3), np.uint8)
    codec.decode(data, out, 0)
    assert np.array_equal(out, np.repeat(array, 3, axis=2) if channels == 1 else array[:, :, :3])
    fitted = make(FieldRecipe("x", ("x",), "image", '{"size":[2,2]}', "pil"))
    small = np.empty((2, 2, 3), np.uint8)
    fitted.decode(data, small, 0)
    assert params_of(FieldRecipe("x", ("x",), "image", '{"size":[2,2]}')).spec("x").shape == small.shape


@settings(max_examples=budget(150), deadline=None)
@given(data=st.binary(max_size=60), head=st.tuples(*[st.integers(0, 2**32 - 1)] * 3))
def test_no_pixels_do_harm(data: bytes, head: tuple[int, int, int]) -> None:
    """Whatever lies there, it is an image or a BadSample, and nothing is allocated before that is known."""
    codec = make(FieldRecipe("x", ("x",), "image", "{}", "pil"))
    for text in (
        data,
        struct.pack("<III", *head) + data,
        struct.pack("<III", head[0] % 9, head[1] % 9, 1) + b"L" + data,
    ):
        try:
            height, width, _ = codec.measure(memoryview(text))
        except BadSample:
            continue
        assert height * width <= len(text)
