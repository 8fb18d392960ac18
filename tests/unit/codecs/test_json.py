"""JSON: what the daemon accepts a client can parse, to the same value; what it does not accept it says why."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedd.codecs.codec_registry import make
from feedd.errors import BadSample
from feedd.formats.format_registry import get
from feedd.recipe.recipe import parse_field
from feedd_client._wire import feedd_pb2 as pb
from feedd_client.batch import _decoder
from tests.budget import budget

BOM = b"\xef\xbb\xbf"
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
_PIECES = st.sampled_from(
    [
        *rb'[ ] { } " \ \u d800 , : 1 0 - e9 . NaN Infinity a null "a": 1e999'.split(),
        *(b" ", b"\n", b"\t", b"\0", b"\x0b", b"\x1f", b"\x7f", b"\xff", b"\xed\xa0\x80", b"\xc3\xa9", BOM),
        *(b"9" * 4301, b"[" * 300, b"]" * 300, b'{"a":' * 300, b"1" + b"}" * 300),
    ]
)


def _decoded(data: bytes) -> bytes:
    """Return what a batch holds of a field."""
    out = np.empty(len(data), np.uint8)
    make(parse_field("json", "json")).decode(memoryview(data), out, 0)
    return out.tobytes()


def _parsed(held: bytes) -> Any:
    """Return what a client makes of a batch of that one sample."""
    payload = held + bytes(-len(held) % 8) + np.array([0, len(held)], np.int64).tobytes()
    region = pb.FieldRegion(values_at=0, values_bytes=len(held), offsets_at=len(payload) - 16)
    decode = _decoder(pb.TensorSpec(name="json", kind=pb.TensorSpec.JSON, dtype="uint8"))
    (value,) = decode(np.frombuffer(payload, np.uint8), region, 1, 0)
    return value


def _reason(data: bytes) -> str:
    with pytest.raises(BadSample) as caught:
        _decoded(data)
    return caught.value.message


@settings(max_examples=budget(400), deadline=None)
@example(BOM + b'{"a": 1}')
@example('{"a": 1}'.encode("utf-16"))
@example('{"a": 1}'.encode("utf-16-le"))
@example('{"a": 1}'.encode("utf-32"))
@example(b"[" * 499 + b"]" * 499)
@example(b"[" * 900 + b"]" * 900)
@example(b'"' + b"[" * 900 + b'"')
@example(b'{"a":1,"a":2}')
@given(
    st.lists(_PIECES, max_size=12).map(b"".join)
    | st.binary(max_size=40)
    | _VALUES.map(lambda v: json.dumps(v).encode())
)
def test_what_is_accepted_can_be_parsed(data: bytes) -> None:
    """Whatever the codec accepts, the client's own decoder parses, with room for the calls a training run is in."""
    try:
        held = _decoded(data)
    except BadSample:
        return
    _within_calls(300, held)


def _within_calls(depth: int, held: bytes) -> Any:
    return _within_calls(depth - 1, held) if depth else _parsed(held)


@settings(max_examples=budget(100), deadline=None)
@given(value=_VALUES, ascii_only=st.booleans(), bom=st.booleans())
def test_what_is_written_comes_back(value: Any, ascii_only: bool, bom: bool) -> None:
    """Any value survives, with a byte order mark and without."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        assert "UTF-8" in _reason(text)
        return
    found = _parsed(_decoded(BOM * bom + text))
    assert json.dumps(found) == json.dumps(value)  # as text, for no NaN equals another


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_other_encodings_are_said(encoding: str) -> None:
    """Python's parser takes them as bytes, a client gets text: refused, with what to do."""
    reason = _reason('{"a": 1}'.encode(encoding))
    assert encoding[:6].upper() in reason
    assert "UTF-8" in reason


def test_reasons() -> None:
    """A text that is no JSON, not UTF-8, too deep, or of a number too long says so."""
    assert "expected JSON, got b'{'" in _reason(b"{")
    assert "0xff at 1" in _reason(b'"\xff"')
    for deep in (b"[" * 501 + b"]" * 501, b"[" * 50_000 + b"]" * 50_000, b'{"a":' * 501 + b"1" + b"}" * 501):
        assert "at most 500" in _reason(deep)
    assert "digits" in _reason(b"1" * 5000)
    assert "got b''" in _reason(b"")


@pytest.mark.parametrize("name", ["jsonl", "text"])
def test_a_mark_in_front_of_the_first_line(name: str) -> None:
    """It is no part of the line; in front of nothing it is no line; anywhere else it is what was written."""
    for data, wanted in [
        (BOM + b"a\nb", [b"a", b"b"]),
        (BOM, []),
        (BOM + b"\r\nb", [b"b"]),
        (b"a\n" + BOM + b"b", [b"a", BOM + b"b"]),
        (BOM[:2] + b"\n", [BOM[:2]]),
    ]:
        index = get(name).index(memoryview(data), "s3://b/a")
        places = zip(index.starts[0].tolist(), index.sizes[0].tolist(), strict=True)
        assert [data[at : at + size] for at, size in places] == wanted
