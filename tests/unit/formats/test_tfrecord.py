"""TFRecord: framing against its checksums, Examples against protobuf's own encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.codecs.codec_registry import make
from feedd.errors import BadRecipe, BadSample, BadShard
from feedd.formats.format_registry import format_for, get
from feedd.formats.missing_reasons import missing_reason
from feedd.formats.tfrecord import masked_crc
from feedd.recipe.recipe import default_fields, parse_field, with_encodings
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
    recipes = {recipe.name: recipe for recipe in with_encodings(default_fields(index.fields, index.encodings), index)}
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
    label, score = with_encodings((parse_field("label", "int"), parse_field("score", "float")), index)
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
            with_encodings((parse_field(name, text),), index)
        assert "array" in caught.value.hint


def test_records_that_are_no_examples_are_one_field() -> None:
    """They come as they are."""
    shard = tfrecord(b"\xff\xff raw", b"", b"more")
    index = read(shard)
    assert index.fields == ("data",)
    assert [field(shard, index, "data", n) for n in range(3)] == [b"\xff\xff raw", b"", b"more"]
    assert [index.key(n) for n in range(3)] == ["00000000", "00000001", "00000002"]


def test_damage_is_told() -> None:
    """A cut that is not at a record's border, and a flipped bit of a length, is an error that says where.

    Any other flipped bit is a bad sample that says where, and the other sample is as it was.
    """
    shard = tfrecord(example(a=[1]), example(a=[2]))
    border = len(shard) // 2
    for cut in range(1, len(shard)):
        if cut != border:
            with pytest.raises(BadShard, match="at byte"):
                read(shard[:cut])
    for bit in range(0, len(shard) * 8, 7):
        flipped = bytearray(shard)
        flipped[bit // 8] ^= 1 << bit % 8
        if bit // 8 % border < 12:
            with pytest.raises(BadShard, match="at byte"):
                read(bytes(flipped))
            continue
        index = read(bytes(flipped))
        bad = bit // 8 // border
        assert index.fields == ("a",)
        assert [field(shard, index, "a", sample) for sample in (bad, 1 - bad)] == [None, b"\x02\x01"[bad : bad + 1]]
        told = missing_reason(index, [0], bad)
        assert told is not None
        assert "checksum" in told.reason
        assert told.at == 12 + border * bad
        assert missing_reason(index, [], bad) == told  # of a field that the shard does not know, too
        assert missing_reason(index, [0], 1 - bad) is None


def test_records_that_are_all_damaged() -> None:
    """Their places are known all the same; so are those of records that are no Examples."""
    for records in ([example(a=[1])] * 2, [b"\xff raw"] * 3):
        shard = bytearray(tfrecord(*records))
        for at in range(len(shard) // len(records) - 1, len(shard), len(shard) // len(records)):
            shard[at] ^= 1
        index = read(bytes(shard))
        assert (index.sample_count, index.fields) == (len(records), ("data",))
        assert (index.sizes == -1).all()
    shard = bytearray(tfrecord(b"\xff raw", b"\xff more"))
    shard[-1] ^= 1
    index = read(bytes(shard))
    assert [field(bytes(shard), index, "data", n) for n in range(2)] == [b"\xff raw", None]


OTHERS = [example(a=b"x"), example(a=[0.5]), b"\x0a\xff", example(z=[1], a=b"x")]


@pytest.mark.parametrize("second", OTHERS, ids=["bytes", "floats", "none", "another field"])
def test_one_schema_per_shard(second: bytes) -> None:
    """A feature that changes its type, or a record that is no Example among Examples, makes a bad sample, no more."""
    index = read(tfrecord(example(a=[1]), second, example(a=[3], b=[4])))
    assert (index.sample_count, index.fields, index.encodings) == (3, ("a", "b"), ("varint[]", "varint[]"))
    assert index.sizes.tolist() == [[1, -1, 1], [-1, -1, 1]]
    told = missing_reason(index, [0], 1)
    assert told is not None
    assert "other types" in told.reason
    assert missing_reason(index, [1], 0) is None  # it lacks that, and that is all


def test_a_shard_of_which_nothing_can_be_read() -> None:
    """Examples in a way that nobody reads, in all records, are an error that says what they are."""
    unpacked = bytes.fromhex("0a0d0a0b0a016112061a0408010802")  # two numbers, each a field
    with pytest.raises(BadShard, match="packed"):
        read(tfrecord(unpacked, unpacked))


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
