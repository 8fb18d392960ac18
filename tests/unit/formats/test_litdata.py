"""LitData's chunks: what its index.json says of them, and what is done where it does not fit."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.dataset.litdata_index import leaves
from feedd.dataset.sidecars import ForeignCounts, Surroundings, Unused
from feedd.errors import BadShard, Unsupported
from feedd.formats.format_registry import format_for, get
from feedd.values import ObjectRef
from tests.budget import budget
from tests.fakes.reading import read

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def chunk(*items: list[bytes]) -> bytes:
    """Return a chunk of items, each its leaves."""
    bodies = [struct.pack(f"<{len(item)}I", *map(len, item)) + b"".join(item) for item in items]
    offsets = np.cumsum([4 * (len(items) + 2), *map(len, bodies)]).astype("<u4")
    return struct.pack("<I", len(items)) + offsets.tobytes() + b"".join(bodies)


def index_json(formats: list[str], names: list[str], chunks: dict[str, tuple[int, int]], **config: Any) -> bytes:
    """Return an index.json of a dict of leaves."""
    spec = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [LEAF] * len(names)}
    return json.dumps(
        {
            "chunks": [
                {"filename": name, "chunk_bytes": size, "chunk_size": count, "dim": None}
                for name, (size, count) in chunks.items()
            ],
            "config": {"data_format": formats, "data_spec": json.dumps([1, spec]), "compression": None} | config,
        }
    ).encode()


def reader(data: bytes) -> str:
    """Return the format that an index.json names for its chunks."""
    return next(iter(ForeignCounts("index.json", data))).format


def test_counts_hold_however_bytes_were_counted() -> None:
    """Some versions count a chunk's head among its bytes and some do not: both are believed, others are not."""
    data = chunk([b"a"], [b"bc"])
    body = len(data) - 4 * 4
    for size, believed in ((len(data), {0: 2}), (body, {0: 2}), (body + 1, None)):
        claims = ForeignCounts("p/index.json", index_json(["str"], ["t"], {"chunk-0-0.bin": (size, 2)}))
        around = Surroundings([ObjectRef("s3://b", "p/chunk-0-0.bin", len(data), "tag")])
        file = ObjectRef("s3://b", "p/index.json", 1, "tag")
        if believed is None:
            with pytest.raises(ValueError, match="existing objects of the claimed sizes"):
                around.believed(file, claims)
        else:
            unused = Unused()
            assert around.believed(file, claims, unused) == believed
            assert not unused.amount.count
        formats = around.formats(file, claims, ())
        assert read(data, formats[0]) == [{"t": "a"}, {"t": "bc"}]


def test_paths_of_leaves() -> None:
    """Keys of dicts, numbers of lists and tuples, joined by dots; what has no name is ``data``."""
    inner = {"type": "builtins.list", "context": None, "children_spec": [LEAF, LEAF]}
    spec = {"type": "builtins.dict", "context": '["a", "b"]', "children_spec": [LEAF, inner]}
    assert leaves(json.dumps([1, spec])) == ["a", "b.0", "b.1"]
    assert leaves(json.dumps([1, LEAF])) == ["data"]
    for bad in ("", "[]", "[1, 2]", '[1, {"type": "x"}]', "[" * 5000):
        with pytest.raises(ValueError, match="expected"):
            leaves(bad)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"compression": "zstd"}, "compressed with zstd"),
        ({"encryption": {"algorithm": "fernet"}}, "encrypted"),
        ({"item_loader": "TemporalArrayLoader"}, "TemporalArrayLoader"),
    ],
)
def test_what_cannot_be_read_is_named(config: dict[str, Any], match: str) -> None:
    """Compressed and encrypted items, and those of loaders of another layout."""
    how = reader(index_json(["str"], ["t"], {"chunk-0-0.bin": (1, 1)}, **config))
    with pytest.raises(Unsupported, match=match):
        read(chunk([b"a"]), how)


def test_a_chunk_alone_says_nothing() -> None:
    """Without index.json nobody knows what the leaves are; the hint says where it is looked for."""
    assert format_for("s3://b/chunk-0-12.bin") == "litdata"
    with pytest.raises(Unsupported, match=r"index\.json") as caught:
        read(chunk([b"a"]), "litdata")
    assert "folder" in caught.value.hint


def test_leaves_of_another_size_are_told() -> None:
    """An index.json of other chunks shows where numbers have the wrong size."""
    how = reader(index_json(["str", "int"], ["t", "n"], {"chunk-0-0.bin": (1, 1)}))
    with pytest.raises(BadShard, match="8 bytes of int64 in leaf 1"):
        read(chunk([b"abc", bytes(8)], [b"", bytes(4)]), how)


def test_lists_that_are_not_alike_are_missing() -> None:
    """A leaf that is JSON in the first item is that everywhere, with or without the head of later versions."""
    how = reader(index_json(["json"], ["v"], {"chunk-0-0.bin": (1, 1)}))
    packed = b"\0" + struct.pack("<I", 3) + b"[1]"
    assert read(chunk([packed], [b'{"a":2}'], [b"\2" + struct.pack("<Iq", 1, 5)]), how) == [
        {"v": [1]},
        {"v": {"a": 2}},
        {},
    ]
    numbers = [b"\2" + struct.pack("<Iq", 1, 5)]
    first, second = read(chunk(numbers, [packed]), how)
    assert first["v"].tolist() == [5]
    assert second == {}


@settings(max_examples=budget(150), deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=5), st.integers(0, 5)), max_size=3),
    cut=st.integers(0, 60),
    formats=st.lists(st.sampled_from(["str", "int", "json", "pickle", "no_header_numpy:1", "tensor"]), min_size=1),
)
def test_no_bytes_do_harm(edits: list[tuple[int, bytes, int]], cut: int, formats: list[str]) -> None:
    """Changed, longer, shorter, of other leaves: an index within the chunk, or a BadShard."""
    shard = bytearray(chunk(*[[b"x" * 8] * len(formats)] * 3))
    for at, instead, width in edits:
        place = at % len(shard)
        shard[place : place + width] = instead
    data = bytes(shard[: len(shard) - cut] if cut % 3 == 0 else shard)
    names = [f"f{number}" for number in range(len(formats))]
    how = reader(index_json(formats, names, {"chunk-0-0.bin": (1, 1)}))
    try:
        found = get(how).index(memoryview(data), "s3://b/chunk-0-0.bin")
    except BadShard:
        return
    there = found.sizes >= 0
    assert (found.starts[there] >= 0).all()
    assert ((found.starts + found.sizes)[there] <= len(data)).all()


@settings(max_examples=budget(150), deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["chunks", "config", "filename", "chunk_bytes", "chunk_size", "data_format", "data_spec", "x"]
                ),
                inner,
            )
        ),
    )
)
def test_whatever_an_index_says(content: object) -> None:
    """It is claims, or a ValueError."""
    with suppress(ValueError):
        list(ForeignCounts("index.json", json.dumps(content).encode()))
