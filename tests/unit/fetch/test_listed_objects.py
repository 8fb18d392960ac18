"""Objects of a listing's page, taken from an answer: as botocore would have read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

import botocore.session
import pytest
from botocore.handlers import decode_list_object_v2
from botocore.parsers import RestXMLParser
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadResponse
from feedd.fetch.s3.listing_contents import EVENT, objects_of, take
from tests.budget import budget
from tests.fakes.s3.model import listing_shape

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYS = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), min_size=1)
_OBJECTS = st.lists(st.tuples(_KEYS, st.integers(0, 1 << 50), st.text("0123456789abcdef-", min_size=1)), max_size=6)


_ENCODINGS: dict[str, Callable[[str], str]] = {
    "form": lambda key: quote_plus(key, safe="/*").replace("~", "%7E"),  # AWS and MinIO
    "percent": lambda key: quote(key, safe="!$'()*~|"),  # Ceph
    "": escape,
}


def _page(objects: list[tuple[str, int, str]], *, encoded: str, spaced: bool) -> bytes:
    items = "".join(
        f"<Contents><Key>{_ENCODINGS[encoded](key)}</Key>"
        "<LastModified>2026-01-02T03:04:05.000Z</LastModified>"
        f"<ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass>"
        "<Owner><ID>o</ID><DisplayName>Key</DisplayName></Owner></Contents>"
        for key, size, etag in objects
    )
    space = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"' if spaced else ""
    kind = "<EncodingType>url</EncodingType>" if encoded else ""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult{space}><Name>b</Name><Prefix></Prefix>{kind}{items}'
        f"<KeyCount>{len(objects)}</KeyCount><IsTruncated>true</IsTruncated>"
        "<NextContinuationToken>a&amp;b</NextContinuationToken></ListBucketResult>"
    ).encode()


def _parsed(body: bytes, *, status: int = 200, early: bool) -> dict[str, Any]:
    answer = {"status_code": status, "headers": {}, "body": body}
    told: dict[str, Any] = {}
    if early:
        take(response_dict=answer, customized_response_dict=told, operation_model=None)
    parsed: dict[str, Any] = RestXMLParser().parse(answer, listing_shape())
    decode_list_object_v2(parsed, {"encoding_type_auto_set": True})
    return parsed | told


@settings(max_examples=budget(100), deadline=None)
@given(_OBJECTS, st.sampled_from(sorted(_ENCODINGS)), st.booleans())
def test_objects_are_those_botocore_reads(objects: list[tuple[str, int, str]], encoded: str, spaced: bool) -> None:
    """Keys, sizes and ETags are its own, and so is all it says of the page besides."""
    body = _page(objects, encoded=encoded, spaced=spaced)
    plain, early = _parsed(body, early=False), _parsed(body, early=True)
    assert objects_of(early) == objects_of(plain)
    assert [tuple(one) for one in objects_of(early)] == [(key, size, f'"{etag}"') for key, size, etag in objects]
    assert "Contents" not in early
    for name in ("IsTruncated", "NextContinuationToken", "KeyCount", "Name"):
        assert early[name] == plain[name]


def test_what_may_hold_something_else_is_left_to_botocore() -> None:
    """No objects, something between two, a comment, CDATA, an error: the answer is as it came."""
    two = _page([("k", 1, "e"), ("l", 2, "f")], encoded="", spaced=True)
    between = two.replace(b"</Contents><Contents>", b"</Contents><Marker>m</Marker><Contents>")
    comment = two.replace(b"</Contents><Contents>", b"</Contents><!-- <Contents> --><Contents>")
    quoted = two.replace(b"<Prefix></Prefix>", b"<Prefix><![CDATA[<Contents>]]></Prefix>")
    for status, body in ((200, between), (200, comment), (200, quoted), (200, b""), (200, b"<Error/>"), (503, two)):
        answer, told = {"status_code": status, "body": body}, dict[str, Any]()
        take(response_dict=answer, customized_response_dict=told)
        assert (answer["body"], told) == (body, {})


def test_objects_that_are_told_otherwise_are_refused() -> None:
    """No size, a size that is none, no end: an error that names what was expected."""
    good = _page([("k", 1, "e")], encoded="", spaced=True)
    for body in (good.replace(b"<Size>1</Size>", b""), good.replace(b">1</Size>", b">x</Size>"), good[:-9]):
        answer, told = {"status_code": 200, "body": body}, dict[str, Any]()
        take(response_dict=answer, customized_response_dict=told)
        with pytest.raises(BadResponse, match="expected objects with key, size and etag"):
            objects_of(told)


def test_botocore_reads_no_object() -> None:
    """Nothing botocore does with the body of a page comes before the objects are out of it."""
    client = botocore.session.get_session().create_client(
        "s3", region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )
    client.meta.events.register(EVENT, take)
    seen: list[bytes] = []
    client.meta.events.register_first(
        "before-parse.s3.*", lambda response_dict, **_: seen.append(response_dict["body"])
    )
    page = _page([("k", 1, "e")], encoded="", spaced=True)
    told: dict[str, Any] = {}
    client.meta.events.emit(
        "before-parse.s3.ListObjectsV2",
        operation_model=client.meta.service_model.operation_model("ListObjectsV2"),
        response_dict={"status_code": 200, "headers": {}, "body": page},
        customized_response_dict=told,
    )
    assert [b"<Contents>" in body for body in seen] == [False]
    assert objects_of(told)[0].key == "k"
