"""What daemons ask each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.errors import BadRequest
from feedd.peers.entry_requests import EntryRequest, parse, render
from feedd.values import ByteRange, ObjectRef

REF = ObjectRef("s3://data", "train/0001.tar", 1000, "abc-2")
ETAGS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"'), min_size=1, max_size=80)
HOST = "10.0.0.1:7072"


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200),
    ETAGS,
    st.integers(1, 1 << 50),
    st.booleans(),
    st.data(),
)
def test_what_is_sent_is_what_is_read(key: str, etag: str, size: int, wait: bool, data: st.DataObject) -> None:
    """Any key survives, with slashes, dots, spaces, percent signs and line breaks."""
    ref = ObjectRef("s3://data", key, size, etag)
    assert parse(render(HOST, ref, wait=wait)) == EntryRequest(ref, wait=wait)
    start = data.draw(st.integers(0, size - 1))
    span = ByteRange(start, data.draw(st.integers(start + 1, size)))
    assert parse(render(HOST, ref, span)) == EntryRequest(ref, span)


def test_a_ping_names_nothing() -> None:
    """It only asks whether the peer answers."""
    assert parse(render(HOST, None)) == EntryRequest(None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("POST", "PUT"),
        ("/v1/", "/v2/"),
        ("size=1000", "size=-1"),
        ("size=1000", "size=9" + "9" * 30),
        ('"abc-2"', "abc-2"),
        ('"abc-2"', '"a"b"'),
        ("HTTP/1.1", "HTTP/1.0"),
        ("Content-Length: 0", "Content-Length: 5"),
        ("POST", "\0\0"),
        ("/train%2F0001.tar", "/"),
        ("/train%2F0001.tar", "/%ED%A0%80"),
    ],
)
def test_anything_else_is_refused(before: str, after: str) -> None:
    """A request that no daemon sends has no meaning."""
    head = render(HOST, REF)
    assert before.encode() in head
    with pytest.raises(BadRequest):
        parse(head.replace(before.encode(), after.encode()))


@pytest.mark.parametrize("span", ["bytes=5-4", "bytes=0-1000", "bytes=-5", "bytes=0-", "pages=0-1", ""])
def test_a_range_outside_the_entry_is_refused(span: str) -> None:
    """The first and the last byte are named, and both are of the entry."""
    head = render(HOST, REF, ByteRange(0, 10)).replace(b"Range: bytes=0-9", f"Range: {span}".encode())
    with pytest.raises(BadRequest):
        parse(head)
