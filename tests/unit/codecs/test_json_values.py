"""Values inside JSON documents: what Python's parser finds there, or a bad sample with the reason."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.codecs.codec_registry import make
from feedd.errors import BadRecipe, BadSample
from feedd.recipe.recipe import (
    check_fields,
    keeps,
    needs_measure,
    needs_resolve,
    parse_field,
    spec_of,
    with_encodings,
)
from feedd.shard_index import ShardIndex
from feedd.values import FieldKind
from feedd.workers.executor import Producer
from feedd.workers.fixed_width import plain_numbers
from tests.budget import budget

LINE = (
    b'{"text": "h\\u00e9 \xc3\xa9", "meta": {"score": 0.5, "n": [1, 2, 3], "sure": true}, "ids": [1, 2, 70000], '
    b'"emb": [[1, 2], [3, 4.5]], "none": null, "big": 123456789012345678901234567890, "text ": 1}'
)
_KEYS = st.text(max_size=5)
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=12
)


def decoded(data: bytes, **recipe: object) -> Any:
    """Return one value as Python has it: text, parsed JSON, or numbers."""
    field = parse_field("x", json.dumps({"from": "json", **recipe}))
    codec, spec = make(field), spec_of(field)
    assert plain_numbers(field) is None
    dense = spec.kind is FieldKind.DENSE
    assert dense == (not needs_measure(field)) == (not keeps(field))
    shape = spec.shape if dense else codec.measure(memoryview(data))
    assert codec.measure(memoryview(data)) == shape
    out = np.full(shape, 55, spec.dtype)
    codec.decode(memoryview(data).toreadonly(), out, 0)
    if isinstance(codec, Producer):
        np.testing.assert_array_equal(codec.produce(memoryview(data)), out)
        assert codec.produce(memoryview(data)).dtype == out.dtype
    if spec.kind is FieldKind.TEXT:
        return out.tobytes().decode()
    return json.loads(out.tobytes()) if spec.kind is FieldKind.JSON else out.tolist()


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({"decode": "str", "key": "text"}, "hé é"),
        ({"decode": "int", "key": "text "}, 1),
        ({"decode": "float", "key": ["meta", "score"]}, 0.5),
        ({"decode": "int", "key": ["meta", "sure"]}, 1),
        ({"decode": "int", "key": ["meta", "n", 1]}, 2),
        ({"decode": "int", "key": ["meta", "n", 1], "transforms": [{"op": "one_hot", "classes": 3}]}, [0, 0, 1]),
        ({"decode": "int", "key": "text", "classes": ["a", "hé é"]}, 1),
        ({"decode": "float", "key": "big"}, float(np.float32(1.2345678901234568e29))),
        ({"decode": "array", "key": "ids", "dtype": "int32"}, [1, 2, 70000]),
        ({"decode": "tensor", "key": "emb", "dtype": "float32", "shape": [2, 2]}, [[1, 2], [3, 4.5]]),
        ({"decode": "json", "key": "meta"}, {"score": 0.5, "n": [1, 2, 3], "sure": True}),
        ({"decode": "json", "key": []}, json.loads(LINE)),
    ],
)
def test_values_are_found(recipe: dict[str, object], expected: object) -> None:
    """Members by name, elements by place, however deep; true is 1."""
    assert decoded(LINE, **recipe) == expected


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ({"decode": "str", "key": "Text"}, "the key 'Text', got an object with the keys text, meta, ids"),
        ({"decode": "str", "key": "none"}, "text at the key 'none', got null"),
        ({"decode": "str", "key": "ids"}, "got an array"),
        ({"decode": "int", "key": ["meta", "score"]}, "an integer at the key .*, got the number 0.5"),
        ({"decode": "int", "key": "big"}, "64 bits"),
        ({"decode": "int", "key": "text", "classes": ["hé"]}, "one of the 1 classes, got 'hé é'"),
        ({"decode": "int", "key": "big", "classes": ["a"]}, "text at the key 'big', got the number"),
        ({"decode": "float", "key": "text"}, "a number at the key 'text', got text"),
        ({"decode": "int", "key": ["meta", "n", 3]}, "an array of 3"),
        ({"decode": "int", "key": ["ids", "n"]}, "got an array"),
        ({"decode": "array", "key": "ids", "dtype": "uint16"}, "fit uint16, got 1 to 70000"),
        ({"decode": "array", "key": "emb", "dtype": "float32"}, "an array of numbers"),
        ({"decode": "array", "key": "text", "dtype": "int32"}, "got text"),
        ({"decode": "tensor", "key": "emb", "dtype": "int32", "shape": [2, 2]}, "an array of int32"),
        ({"decode": "tensor", "key": "emb", "dtype": "float32", "shape": [4]}, r"shape \[4\], got \[2, 2\]"),
    ],
)
def test_what_is_not_there_is_a_bad_sample(recipe: dict[str, object], reason: str) -> None:
    """Another type, or no such key: said with the key and what is there."""
    with pytest.raises(BadSample, match=reason):
        decoded(LINE, **recipe)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b'{"text": 5', b'{"text": "a"} x', b'{"text": "\xff"}', b"\0", b"[" * 9999]
)
def test_what_is_no_json_is_a_bad_sample(data: bytes) -> None:
    """Whoever asks, and for whatever of it."""
    for recipe in ({"decode": "str", "key": "text"}, {"decode": "json", "key": []}, {"decode": "int", "key": [0]}):
        with pytest.raises(BadSample, match="expected"):
            decoded(data, **recipe)


def test_a_byte_order_mark_is_no_part_of_a_document() -> None:
    """Other encodings are said by name, as for whole documents; so is what is too deep for a client."""
    marked = b"\xef\xbb\xbf" + LINE
    for recipe in ({"decode": "str", "key": "text"}, {"decode": "json", "key": "meta"}, {"decode": "json", "key": []}):
        assert decoded(marked, **recipe) == decoded(LINE, **recipe)
    assert decoded(b'\xef\xbb\xbf{"a": NaN, "b": 2}', decode="int", key="b") == 2
    for encoding in ("utf-16", "utf-32"):
        with pytest.raises(BadSample, match="UTF-8, got UTF-"):
            decoded(LINE.decode().encode(encoding), decode="str", key="text")
    with pytest.raises(BadSample, match="at most 500"):
        decoded(b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}", decode="json", key="a")


def test_half_a_surrogate_pair_is_no_text() -> None:
    """UTF-8 has none; other members can be read all the same."""
    line = b'{"text": "\\ud800", "n": NaN, "m": 3}'
    with pytest.raises(BadSample, match="lone surrogate"):
        decoded(line, decode="str", key="text")
    assert decoded(line, decode="int", key="m") == 3
    assert math.isnan(decoded(line, decode="float", key="n"))


@settings(max_examples=budget(200), deadline=None)
@given(document=VALUES, way=st.lists(_KEYS | st.integers(0, 4), max_size=3))
def test_all_is_as_pythons_parser_finds_it(document: object, way: list[str | int]) -> None:
    """The value at the end of any way, or none where there is none."""
    data, found = json.dumps(document).encode(), document
    for step in way:
        fits = (isinstance(found, dict) and step in found) if isinstance(step, str) else isinstance(found, list)
        if not fits or (isinstance(found, list) and not (isinstance(step, int) and step < len(found))):
            with pytest.raises(BadSample):
                decoded(data, decode="json", key=way)
            return
        found = found[step]  # type: ignore[index]  # just looked at
    assert json.dumps(decoded(data, decode="json", key=way)) == json.dumps(found)
    if isinstance(found, str):
        assert decoded(data, decode="str", key=way) == found
    elif isinstance(found, int):
        if -(1 << 63) <= found < 1 << 63:
            assert decoded(data, decode="int", key=way) == found
    else:
        with pytest.raises(BadSample):
            decoded(data, decode="str", key=way)


@settings(max_examples=budget(300), deadline=None)
@given(data=st.binary(max_size=60) | VALUES.map(lambda one: json.dumps(one)[:-1].encode()))
def test_any_bytes_are_a_value_or_a_bad_sample(data: bytes) -> None:
    """Never another error."""
    for recipe in (
        {"decode": "str", "key": "a"},
        {"decode": "array", "key": [], "dtype": "int8"},
        {"decode": "float", "key": []},
        {"decode": "tensor", "key": [], "dtype": "bool", "shape": [2]},
    ):
        with contextlib.suppress(BadSample):
            decoded(data, **recipe)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"decode": "array", "key": "ids"}, '"dtype" together with "key"'),
        ({"decode": "str", "key": [-1]}, "from 0"),
        ({"decode": "str", "key": ["a"] * 17}, "16 steps"),
        ({"decode": "str", "key": 5}, "key"),
        ({"decode": "image", "key": "a"}, "key"),
    ],
)
def test_wrong_keys_are_refused(recipe: dict[str, object], message: str) -> None:
    """At open."""
    with pytest.raises(BadRecipe, match=message):
        parse_field("x", json.dumps({"from": "json", **recipe}))


def _index(field: str, stored: str) -> ShardIndex:
    return ShardIndex(
        (field,), np.zeros((1, 1), np.int64), np.ones((1, 1), np.int64), b"0", np.ones(1, np.int64), (stored,)
    )


def test_what_the_data_stores_must_be_documents() -> None:
    """Numbers have no keys; text columns may hold documents, and JSON Lines do. Nothing is left to be resolved."""
    recipe = parse_field("x", '{"decode": "array", "from": "json", "key": "ids", "dtype": "int32"}')
    assert not needs_resolve(recipe)
    for stored in ("json", "text", ""):
        (told,) = with_encodings([recipe], _index("json", stored))
        assert told.params == recipe.params
    with pytest.raises(BadRecipe, match="JSON documents for \"key\" for 'array', got int64"):
        with_encodings([recipe], _index("json", "int64"))


def test_a_member_that_is_asked_for_as_a_field_is_told_how() -> None:
    """JSON Lines have one field; the hint is a recipe that works."""
    with pytest.raises(BadRecipe) as caught:
        check_fields([parse_field("text", "str")], ["json"])
    assert '{"decode": "str", "from": "json", "key": "text"}' in caught.value.hint
    assert parse_field("text", '{"decode": "str", "from": "json", "key": "text"}').sources == ("json",)
    with pytest.raises(BadRecipe) as caught:
        check_fields([parse_field("text", "str")], ["txt"])
    assert "key" not in caught.value.hint
