"""MDS shards, written as mosaicml-streaming 0.13 lays them out (its own writer is a peer of the benches, not here)."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.dataset.sidecars import ForeignCounts
from feedd.errors import BadRecipe, BadShard
from feedd.formats.format_registry import format_for, get
from feedd.recipe.recipe import default_fields, parse_field, with_encodings
from tests.budget import budget

FIXED = {"int": 8, "uint16": 2, "float32": 4, "ndarray:uint8:2,3": 6}


def mds(columns: dict[str, str], samples: list[dict[str, bytes]]) -> bytes:
    """Return a shard; columns go by name, as its writer sorts them."""
    names = sorted(columns)
    header = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "column_names": names,
        "column_encodings": [columns[name] for name in names],
        "column_sizes": [FIXED.get(columns[name]) for name in names],
    }
    bodies = []
    for sample in samples:
        variable = [name for name in names if columns[name] not in FIXED]
        heads = b"".join(struct.pack("<I", len(sample[name])) for name in variable)
        bodies.append(heads + b"".join(sample[name] for name in names))
    text = json.dumps(header, sort_keys=True).encode()
    offsets = np.cumsum([8 + 4 * len(samples) + len(text), *map(len, bodies)]).astype("<u4")
    return struct.pack("<I", len(samples)) + offsets.tobytes() + text + b"".join(bodies)


def read(shard: bytes) -> Any:
    """Return its index."""
    return get("mds").index(memoryview(shard), "s3://b/shard.00000.mds")


COLUMNS = {"Image": "jpeg", "label": "int", "text": "str", "tokens": "ndarray:uint8:2,3", "obj": "pkl", "w": "float32"}


@settings(max_examples=budget(60), deadline=None)
@given(data=st.data(), columns=st.sets(st.sampled_from(sorted(COLUMNS)), min_size=1), count=st.integers(0, 6))
def test_every_value_is_where_the_index_says(data: st.DataObject, columns: set[str], count: int) -> None:
    """Whatever columns there are, fixed or not, each sample's values are found."""
    chosen = {name: COLUMNS[name] for name in columns}
    sizes = {name: FIXED.get(encoding) for name, encoding in chosen.items()}
    samples = [
        {
            name: data.draw(st.binary(max_size=20) if size is None else st.binary(min_size=size, max_size=size))
            for name, size in sizes.items()
        }
        for _ in range(count)
    ]
    shard = mds(chosen, samples)
    index = read(shard)
    assert index.sample_count == count
    assert index.fields == tuple(name.lower() for name in sorted(chosen))
    for column, name in enumerate(sorted(chosen)):
        for number, sample in enumerate(samples):
            start, size = int(index.starts[column, number]), int(index.sizes[column, number])
            assert shard[start : start + size] == sample[name]


def test_columns_have_the_recipes_that_suit_them() -> None:
    """Without ``fields`` each column is decoded as what its encoding says it is, and pickles are left out."""
    index = read(mds(COLUMNS, []))
    found = {recipe.name: recipe for recipe in with_encodings(default_fields(index.fields, index.encodings), index)}
    assert {name: recipe.codec for name, recipe in found.items()} == {
        "image": "image",
        "label": "int",
        "text": "str",
        "tokens": "tensor",
        "w": "float",
    }
    assert found["tokens"].encoding == "uint8[2,3]"


def test_shards_are_known_by_their_name() -> None:
    """As its writer names them; a compressed one is refused with a word why."""
    assert format_for("s3://b/train/shard.00012.mds") == "mds"


@pytest.mark.parametrize("at", range(12))
def test_offsets_that_do_not_fit_are_an_error(at: int) -> None:
    """A damaged head, in whatever byte, is told."""
    shard = bytearray(mds({"text": "str"}, [{"text": b"abc"}]))
    shard[at] ^= 0x40
    with pytest.raises(BadShard, match="at byte"):
        read(bytes(shard))


def test_columns_are_those_that_index_json_names() -> None:
    """Another name, encoding or size than beside the shard is told; the same are read as ever."""
    shard = mds({"text": "str", "label": "int"}, [{"text": b"abc", "label": bytes(8)}])
    told = {"column_names": ["label", "text"], "column_encodings": ["int", "str"], "column_sizes": [8, None]}
    entry = {"samples": 1, "format": "mds", "raw_data": {"basename": "a.mds", "bytes": len(shard)}} | told
    (claim,) = ForeignCounts("index.json", json.dumps({"version": 2, "shards": [entry]}).encode())
    found = get(claim.format).index(memoryview(shard), "s3://b/a.mds")
    assert found.fields == read(shard).fields
    for key, value in (
        ("column_names", ["label", "t"]),
        ("column_encodings", ["uint64", "str"]),
        ("column_sizes", [8, 3]),
    ):
        wrong = f"mds:{json.dumps(told | {key: value})}"
        with pytest.raises(BadShard, match=r"columns that index\.json names"):
            get(wrong).index(memoryview(shard), "s3://b/a.mds")


def test_names_that_differ_by_case_only() -> None:
    """Recipes could not tell them apart."""
    with pytest.raises(BadShard, match="'Text' and 'text'"):
        read(mds({"text": "str", "Text": "str"}, []))


@settings(max_examples=budget(100), deadline=None)
@given(head=st.binary(max_size=80), cut=st.integers(0, 200), flip=st.integers(0, 4000))
def test_no_bytes_do_harm(head: bytes, cut: int, flip: int) -> None:
    """Whatever a file holds, it is an index within its bytes or a BadShard."""
    whole = bytearray(mds({"text": "str", "label": "int"}, [{"text": b"abc", "label": bytes(8)}] * 3))
    whole[flip // 8 % len(whole)] ^= 1 << flip % 8
    for shard in (head, bytes(whole), bytes(whole[:cut])):
        try:
            index = read(shard)
        except BadShard:
            continue
        assert (index.sizes >= 0).all()
        assert (index.starts + index.sizes <= len(shard)).all()


@pytest.mark.parametrize("encoding", ["jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]"])
def test_several_images_a_sample_are_bytes_for_who_asks(encoding: str) -> None:
    """Nothing takes them apart, and nobody gets them without a word."""
    shard = mds({"label": "int", "views": encoding}, [{"label": bytes(8), "views": b"\1\0\0\0\1\0\0\0x"}])
    index = get("mds").index(memoryview(shard), "s3://b/x.mds")
    with pytest.raises(BadRecipe, match="several") as caught:
        default_fields(index.fields, index.encodings)
    assert caught.value.object == "views"
    for text in ("image", "image:8x8", "str", "npy"):
        with pytest.raises(BadRecipe) as caught:
            with_encodings((parse_field("views", text),), index)
        assert "take apart yourself" in caught.value.hint
    (recipe,) = with_encodings((parse_field("views", "bytes"),), index)
    assert recipe.codec == "bytes"


@pytest.mark.parametrize("encoding", ["ndarray:int16:0,3", "ndarray:uint8:1,1,1,1,1,1,1,1,1"])
def test_arrays_of_no_elements_or_too_many_sizes_are_bytes(encoding: str) -> None:
    """The column is there for who asks for its bytes, and spoils no other column."""
    index = read(mds({"x": encoding, "label": "int"}, [{"x": b"ab", "label": bytes(8)}]))
    found = {one.name: one.codec for one in with_encodings(default_fields(index.fields, index.encodings), index)}
    assert found == {"label": "int", "x": "bytes"}
