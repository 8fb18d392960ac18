"""Floats that NumPy has no type for: what arrives is the very number, and bits only where bits are asked for."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.codecs.codec_registry import make
from feedd.errors import BadRecipe, BadSample
from feedd.formats.format_registry import get
from feedd.recipe.encodings import parse_encoding
from feedd.recipe.low_precision import NARROW, item_bytes, widened
from feedd.recipe.params import DTYPES
from feedd.recipe.recipe import default_fields, needs_measure, parse_field, spec_of, with_encodings
from feedd.shard_index import ShardIndex
from tests.budget import budget

KINDS = {name: getattr(torch, name) for name in NARROW}


def _bits(name: str) -> np.ndarray:
    """Return every number of a type."""
    return np.arange(1 << 8 * item_bytes(name)).astype(NARROW[name])


def _oracle(bits: np.ndarray, name: str) -> np.ndarray:
    signed = torch.from_numpy(bits.view(f"int{8 * bits.itemsize}"))
    return signed.view(KINDS[name]).to(torch.float32).numpy()


def _index(stored: str, data: np.ndarray) -> ShardIndex:
    ends = np.array([1], np.int64)
    return ShardIndex(("x",), np.zeros((1, 1), np.int64), np.array([[data.nbytes]]), b"0", ends, (stored,))


@pytest.mark.parametrize("name", NARROW)
def test_every_number_is_torch_s(name: str) -> None:
    """Of all bits: the same float32, zeros with their signs, infinities and what is no number."""
    bits = _bits(name)
    found, wanted = widened(bits, name), _oracle(bits, name)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(wanted[wanted == 0]))


@pytest.mark.parametrize("name", NARROW)
def test_what_recipes_make_of_them(name: str) -> None:
    """The default, float, tensor and array give numbers; tensor of the type of their bits, and bytes, give those."""
    bits = _bits(name)[64:70]
    values, row = _oracle(bits, name), f"{name}[2,3]"
    (default,) = default_fields(("x",), (row,))
    assert spec_of(default) == spec_of(parse_field("x", "tensor:float32:2,3"))
    wanted = {"float": values, "tensor:float32:2,3": values, "array": values}
    wanted |= {f"tensor:{NARROW[name]}:6": bits, "bytes": bits.view(np.uint8)}
    for text, numbers in wanted.items():
        one = bits[:1] if text == "float" else bits
        stored = name if text == "float" else row
        (recipe,) = with_encodings((parse_field("x", text),), _index(stored, one))
        codec, spec = make(recipe), spec_of(recipe)
        (count,) = codec.measure(memoryview(one.tobytes())) or (1,) if text in {"float", "array"} else (len(numbers),)
        assert count == (1 if text == "float" else len(numbers))
        assert needs_measure(recipe) == (text == "array")  # bytes do not tell how many numbers they make
        out = np.empty(spec.shape if text not in {"array", "bytes"} else count, spec.dtype)
        codec.decode(memoryview(one.tobytes()), out, 0)
        np.testing.assert_array_equal(out.reshape(-1), numbers[: out.size])
        with pytest.raises(BadSample, match="expected"):
            codec.decode(memoryview(one.tobytes()[:-1]), out, 0)


@pytest.mark.parametrize("text", ["int", "tokens:uint32:3", "tokens:float32:3", "tensor:float16:3", "tensor:float64:3"])
def test_what_they_are_not(text: str) -> None:
    """A recipe of other numbers is refused, and told what can be read."""
    with pytest.raises(BadRecipe, match="bfloat16") as caught:
        with_encodings((parse_field("x", text),), _index("bfloat16" if text == "int" else "bfloat16[3]", np.zeros(3)))
    assert "float" in caught.value.hint


@settings(max_examples=budget(100), deadline=None)
@given(name=st.sampled_from(sorted(NARROW)), sides=st.lists(st.integers(1, 9), max_size=3))
def test_names(name: str, sides: list[int]) -> None:
    """A name of such numbers says what they become; what a recipe may name as a dtype stays NumPy's."""
    found = parse_encoding(f"{name}[{','.join(map(str, sides))}]" if sides else name)
    assert found is not None
    assert (found.dtype, found.shape, found.low_precision) == ("float32", tuple(sides), name)
    assert name not in DTYPES


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("protocol", [2, 4])
def test_torch_saves_them(name: str, protocol: int) -> None:
    """A tensor that torch.save wrote is one of those, and a part of it, too."""
    sink, values = io.BytesIO(), torch.arange(12, dtype=torch.float32).reshape(6, 2)
    torch.save({"x": values.to(KINDS[name])[1::2]}, sink, pickle_protocol=protocol)
    data = sink.getvalue()
    index = get("torch").index(memoryview(data), "s3://b/a.pt")
    assert index.encodings == (f"{name}[2]",)
    rows = [data[at : at + 2 * item_bytes(name)] for at in index.starts[0].tolist()]
    found = widened(np.frombuffer(b"".join(rows), np.uint8), name)
    assert found.tolist() == values.to(KINDS[name]).to(torch.float32)[1::2].flatten().tolist()


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_whole_numbers_without_a_sign(name: str) -> None:
    """What torch saves in the same way, but is one of NumPy's types."""
    sink, values = io.BytesIO(), np.arange(4).astype(name)
    torch.save(torch.from_numpy(values), sink)
    data = sink.getvalue()
    index = get("torch").index(memoryview(data), "s3://b/a.pt")
    assert index.encodings == (name,)
    found = [data[at : at + values.itemsize] for at in index.starts[0].tolist()]
    assert b"".join(found) == values.tobytes()
