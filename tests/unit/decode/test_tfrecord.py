"""TFRecord: framing against its checksums, Examples against protobuf's own encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.decode.codecs.registry import make
from feedd.decode.formats.registry import format_for, get
from feedd.decode.formats.tfrecord import masked_crc
from feedd.decode.recipe import as_stored, default_fields, parse_field
from feedd.errors import BadRecipe, BadSample, BadShard
from tests.budget import budget
from tests.fakes.tfrecords import example, tfrecord


def read(shard: bytes) -> Any:
    """Return its index."""
    return get("tfrecord").index(memoryview(shard), "s3://b/x.tfrecord")


def field(shard: bytes, index: Any, name: str, sample: int) -> bytes | None:
    """Return the bytes of one field."""
    column = index.fields.index(name)
    size = int(index.sizes[column, sample])
    start = int(index.starts[column, sample])
    return None if size < 0 else shard[start : start + size]


def test_the_checksum_is_tensorflows() -> None:
    """The masked CRC-32C of known bytes is what TensorFlow writes: 32 zeros have CRC-32C 0x8A9136AA (RFC 3720)."""
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == (((crc >> 15 | crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("name", ["a.tfrecord", "A.TFRECORDS", "train.tfrecord-00003-of-01024"])
def test_files_are_known_by_their_names(name: str) -> None:
    """The usual extensions, also of numbered files."""
    assert format_for(f"s3://b/p/{name}") == "tfrecord"


_KINDS = st.dictionaries(st.sampled_from("abcdé"), st.sampled_from([0, 1, 2]), min_size=1)


@settings(max_examples=budget(60), deadline=None)
@given(data=st.data(), kinds=_KINDS)
def test_every_feature_is_where_the_index_says(data: st.DataObject, kinds: dict[str, int]) -> None:
    """Whatever Examples protobuf writes, each value is found again by the recipe that suits how it is stored."""
    values: list[st.SearchStrategy[Any]] = [
        st.binary(max_size=40),
        st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
    ]
    values.append(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=5))
    samples = data.draw(
        st.lists(st.fixed_dictionaries({}, optional={name: values[kind] for name, kind in kinds.items()}), min_size=1)
    )
    shard = tfrecord(*(example(**sample) for sample in samples))
    index = read(shard)
    assert index.sample_count == len(samples)
    recipes = {recipe.name: recipe for recipe in as_stored(default_fields(index.fields, index.stored), index)}
    for number, sample in enumerate(samples):
        for name in kinds:
            found = field(shard, index, name, number) if name in index.fields else None
            wanted = sample.get(name)
            if wanted is None or found is None:
                assert wanted is None
                assert found is None
                continue
            if isinstance(wanted, bytes):
                assert found == wanted
                continue
            codec = make(recipes[name])
            spec = codec.spec(name)
            out = np.empty(len(wanted), spec.dtype)
            codec.decode(memoryview(found), out, 0)
            assert out.tolist() == wanted


def test_a_list_of_one_is_a_number() -> None:
    """Labels are lists of one: int and float read them, and any other length is a bad sample."""
    shard = tfrecord(example(label=[7], score=[0.5]), example(label=[7, 8], score=[0.5, 1.0]))
    index = read(shard)
    label, score = as_stored((parse_field("label", "int"), parse_field("score", "float")), index)
    number, real = np.empty((), np.int64), np.empty((), np.float32)
    make(label).decode(memoryview(field(shard, index, "label", 0) or b""), number, 0)
    make(score).decode(memoryview(field(shard, index, "score", 0) or b""), real, 0)
    assert (int(number), float(real)) == (7, 0.5)
    for recipe, name, out in ((label, "label", number), (score, "score", real)):
        with pytest.raises(BadSample, match="expected"):
            make(recipe).decode(memoryview(field(shard, index, name, 1) or b""), out, 0)


def test_recipes_that_cannot_read_what_is_stored() -> None:
    """They are refused when the first shard is seen, with what would do."""
    index = read(tfrecord(example(label=[7], score=[0.5])))
    for name, text in (("label", "image"), ("score", "int"), ("score", "tensor:int32:1"), ("label", "str")):
        with pytest.raises(BadRecipe) as caught:
            as_stored((parse_field(name, text),), index)
        assert "array" in caught.value.hint


def test_records_that_are_no_examples_are_one_field() -> None:
    """They come as they are."""
    shard = tfrecord(b"\xff\xff raw", b"", b"more")
    index = read(shard)
    assert index.fields == ("data",)
    assert [field(shard, index, "data", n) for n in range(3)] == [b"\xff\xff raw", b"", b"more"]
    assert [index.key(n) for n in range(3)] == ["00000000", "00000001", "00000002"]


def test_damage_is_an_error_that_says_where() -> None:
    """Any flipped bit, and any cut that is not at a record's border, is told."""
    shard = tfrecord(example(a=[1]), example(a=[2]))
    border = len(shard) // 2
    for cut in range(1, len(shard)):
        if cut != border:
            with pytest.raises(BadShard, match="at byte"):
                read(shard[:cut])
    for bit in range(0, len(shard) * 8, 7):
        flipped = bytearray(shard)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadShard, match="at byte"):
            read(bytes(flipped))


@pytest.mark.parametrize("second", [example(a=b"x"), example(a=[0.5]), b"\x0a\xff"])
def test_one_schema_per_shard(second: bytes) -> None:
    """A feature that changes its type, or a record that is no Example among Examples, is an error."""
    with pytest.raises(BadShard):
        read(tfrecord(example(a=[1]), second))


@settings(max_examples=budget(100), deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_bytes_do_harm(framing: bytes, record: bytes) -> None:
    """Whatever a file or a record holds, it is an index within its bytes or a BadShard."""
    for shard in (framing, tfrecord(record), tfrecord(example(a=[1]), record)):
        try:
            index = read(shard)
        except BadShard:
            continue
        there = index.sizes >= 0
        assert ((index.starts + index.sizes)[there] <= len(shard)).all()
