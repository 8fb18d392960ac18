"""Pages of a listing: their objects are those that botocore reads, and what is not a whole page is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

import botocore.session
import pytest
from botocore.handlers import decode_list_object_v2
from botocore.parsers import RestXMLParser
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadResponse, FeeddError, Unsupported
from feedd.fetch.s3.listing import EVENT, objects_of, page_of, take
from tests.budget import budget
from tests.fakes.s3.listing_pages import SPACE, listing_page, page_from
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


def _botocore_reads(body: bytes) -> dict[str, Any]:
    answer = {"status_code": 200, "headers": {}, "body": body}
    parsed: dict[str, Any] = RestXMLParser().parse(answer, listing_shape())
    decode_list_object_v2(parsed, {"encoding_type_auto_set": True})
    return parsed


@settings(max_examples=budget(100), deadline=None)
@given(_OBJECTS, st.sampled_from(sorted(_ENCODINGS)), st.booleans())
def test_objects_are_those_botocore_reads(objects: list[tuple[str, int, str]], encoded: str, spaced: bool) -> None:
    """Keys, sizes, ETags, and what the page says of its end are what botocore reads."""
    body = _page(objects, encoded=encoded, spaced=spaced)
    page, known = page_from(body), _botocore_reads(body)
    found = objects_of(page)
    assert [one[:3] for one in found] == [(one["Key"], one["Size"], one["ETag"]) for one in known.get("Contents", [])]
    assert [one[:3] for one in found] == [(key, size, f'"{etag}"') for key, size, etag in objects]
    assert (page.truncated, page.token, page.count) == (True, known["NextContinuationToken"], known["KeyCount"])
    assert (page.first, page.last) == ((objects[0][0], objects[-1][0]) if objects else ("", ""))
    assert objects_of(page.squeezed()) == found


_WHOLE = listing_page(["p/a", "p/b", "p/c"], token="next", more=True)
_NO_COUNT = re.sub(rb"<KeyCount>.*</KeyCount>", b"", _WHOLE)
_WIDE = _WHOLE.replace(b"><", b">\n  <")
_RENAMED = (
    _WHOLE.replace(b"<", b"<s3:").replace(b"<s3:/", b"</s3:").replace(b"<s3:?", b"<?").replace(b"xmlns=", b"xmlns:s3=")
)

WHOLE = {
    "as S3 writes it": _WHOLE,
    "no KeyCount": _NO_COUNT,
    "space between elements": _WIDE,
    "a comment that looks like an object": _WHOLE.replace(b"<Contents>", b"<!-- <Contents> --><Contents>", 1),
    "CDATA": _WHOLE.replace(b"<Prefix></Prefix>", b"<Prefix><![CDATA[<Contents>]]></Prefix>"),
    "an element between two objects": _WHOLE.replace(b"</Contents><", b"</Contents><Marker>m</Marker><", 1),
    "names with a prefix": _RENAMED,
    "no name space": _WHOLE.replace(SPACE.encode(), b""),
    "another name space": _WHOLE.replace(b"http://s3.amazonaws.com", b"http://doc.s3.amazonaws.com"),
    "no dates": re.sub(rb"<LastModified>[^<]*</LastModified>", b"", _WHOLE),
    "an empty element of common prefixes": _WHOLE.replace(b"<MaxKeys>", b"<CommonPrefixes/><MaxKeys>"),
    "True in capitals": _WHOLE.replace(b"<IsTruncated>true<", b"<IsTruncated> True <"),
    "no XML declaration": _WHOLE.partition(b"\n")[2],
}
"""Pages that real stores may send: three objects, and a token."""


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_page_is_taken_however_it_is_written(name: str) -> None:
    """Three objects, in order, and the token of the next page."""
    page = page_from(WHOLE[name], "p/")
    assert [one.key for one in objects_of(page)] == ["p/a", "p/b", "p/c"]
    assert (page.first, page.last, page.count, page.truncated, page.token) == ("p/a", "p/c", 3, True, "next")


_HTML = b"<!doctype html><html><head><title>MinIO &amp; Console</title></head><body></body></html>"
_XHTML = b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><title>Login</title></html>'
_BOMB = b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]>' + _WHOLE.partition(
    b"\n"
)[2].replace(b"p/b", b"p/&b;")

NOT_WHOLE = {
    "html": (_HTML, "not well-formed XML"),
    "xhtml": (_XHTML, "its root is 'html'"),
    "json": (b'{"error": "login"}', "not well-formed XML"),
    "nothing": (b"", "an empty body"),
    "white space": (b" \r\n", "not well-formed XML"),
    "another listing": (_WHOLE.replace(b"ListBucketResult", b"ListAllMyBucketsResult"), "ListAllMyBucketsResult"),
    "versions": (_WHOLE.replace(b"ListBucketResult", b"ListVersionsResult"), "ListVersionsResult"),
    "cut at its end": (_WHOLE[:-1], "not well-formed XML"),
    "cut after an object": (_WHOLE[: _WHOLE.index(b"</Contents>") + 11], "not well-formed XML"),
    "cut before the objects": (_WHOLE[: _WHOLE.index(b"<Contents>")], "not well-formed XML"),
    "twice": (_WHOLE + _WHOLE, "not well-formed XML"),
    "no IsTruncated": (re.sub(rb"<IsTruncated>.*</IsTruncated>", b"", _WHOLE), "no IsTruncated"),
    "an empty IsTruncated": (_WHOLE.replace(b">true<", b"><"), "no IsTruncated"),
    "a strange IsTruncated": (_WHOLE.replace(b">true<", b">2<"), "IsTruncated is '2'"),
    "two IsTruncated": (
        _WHOLE.replace(b"<IsTruncated>", b"<IsTruncated>false</IsTruncated><IsTruncated>"),
        "IsTruncated twice",
    ),
    "an IsTruncated within an object": (
        _WHOLE.replace(b"<IsTruncated>true</IsTruncated>", b"").replace(
            b"<Contents>", b"<Contents><IsTruncated>false</IsTruncated>", 1
        ),
        "no IsTruncated",
    ),
    "a KeyCount that is too high": (_WHOLE.replace(b"<KeyCount>3", b"<KeyCount>4"), "KeyCount is '4', but it has 3"),
    "a KeyCount that is too low": (_WHOLE.replace(b"<KeyCount>3", b"<KeyCount>2"), "KeyCount is '2', but it has 3"),
    "a KeyCount without objects": (listing_page([]).replace(b"<KeyCount>0", b"<KeyCount>9"), "but it has 0"),
    "common prefixes": (
        _WHOLE.replace(b"<MaxKeys>", b"<CommonPrefixes><Prefix>p/d/</Prefix></CommonPrefixes><MaxKeys>"),
        "common prefixes",
    ),
    "a document type": (_WHOLE.replace(b"\n", b"\n<!DOCTYPE l>"), "document type"),
    "entities": (_BOMB, "document type"),
    "two bytes a letter": (_WHOLE.decode().replace("UTF-8", "UTF-16").encode("utf-16"), "zero bytes"),
    "an unknown encoding": (_WHOLE.replace(b"UTF-8", b"x-none"), "not well-formed XML"),
    "bytes that are no UTF-8": (_WHOLE.replace(b"p/c", b"p/\xff"), "not well-formed XML"),
    "objects in another element": (
        _NO_COUNT.replace(b"<Contents>", b"<Page><Contents>", 1).replace(b"</ListB", b"</Page></ListB"),
        "objects without a key",
    ),
    "a first object without a key": (_WHOLE.replace(b"<Key>p/a</Key>", b""), "objects without a key"),
    "too many tags": (_WHOLE.replace(b"<MaxKeys>", b"<x/>" * 250_001 + b"<MaxKeys>"), "more than 250000 tags"),
}
"""What is no whole page, and why."""


@pytest.mark.parametrize("name", NOT_WHOLE)
def test_what_is_not_a_whole_page_is_refused(name: str) -> None:
    """An error that names the content type and says why, before anything is taken for a listing."""
    body, why = NOT_WHOLE[name]
    with pytest.raises(BadResponse, match=r"expected a whole page of a listing, got .*\(status 200, text/x") as caught:
        page_from(body, "p/", headers={"content-type": "text/x; charset=utf-8"})
    assert why in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 400


def test_a_status_without_a_listing_is_refused() -> None:
    """Only an answer with status 200 is a page."""
    for status in (201, 202, 204, 206, 226):
        with pytest.raises(BadResponse, match=f"its status is {status}"):
            page_from(_WHOLE if status != 204 else b"", "p/", status=status)


def test_an_error_is_left_to_botocore() -> None:
    """An error with any status, also 200, is no page: botocore reads its code."""
    said = b'<?xml version="1.0"?>\n<Error><Code>InternalError</Code></Error>'
    for status, body in ((200, said), (200, b"<Error/>"), (503, _WHOLE), (404, b""), (301, _HTML)):
        answer, taken = {"status_code": status, "headers": {}, "body": body}, dict[str, Any]()
        take(response_dict=answer, customized_response_dict=taken)
        assert (answer["body"], taken) == (body, {})


def test_the_error_tells_who_answered_and_no_secret() -> None:
    """Content type, server, title and first bytes are shown, printable and short; long words may be secrets."""
    with pytest.raises(BadResponse, match=r'"MinIO & Console".*, text/html, server nginx., which begins with'):
        page_from(_HTML, headers={"content-type": "text/html", "server": "nginx"})
    secret = "AKIAIOSFODNN7EXAMPLEwJalrXUtnFEMI"
    with pytest.raises(BadResponse) as caught:
        page_from(
            f'{{"token": "{secret}", "a": "\x1b[31m{"b " * 5000}"}}'.encode(), headers={"server": f"s\r\n{secret}"}
        )
    assert secret[:24] not in caught.value.message
    assert caught.value.message.isprintable()
    assert "status 200, server s (redacted)" in caught.value.message
    assert len(caught.value.message) < 400


_BAD_OBJECTS = {
    "no size": (b"<Size>1</Size>", b"", "an object without Size"),
    "a negative size": (b"<Size>1<", b"<Size>-1<", "a size of '-1'"),
    "a size that is no number": (b"<Size>1<", b"<Size>x<", "a size of 'x'"),
    "an empty size": (b"<Size>1<", b"<Size><", "a size of ''"),
    "a fraction": (b"<Size>1<", b"<Size>1.5<", "a size of '1.5'"),
    "foreign digits": (b"<Size>1<", "<Size>\u0663<".encode(), "a size of"),
    "a size above all": (b"<Size>1<", b"<Size>4611686018427387904<", "a size of '4611686018427387904'"),
    "a key outside": (b"<Key>p/b<", b"<Key>private/secret<", "expected keys that begin with 'p/', got others"),
    "a shorter key": (b"<Key>p/b<", b"<Key>p<", "expected keys that begin with 'p/', got others"),
    "a line break in an etag": (b"e1", b"e&#13;&#10;X: y", "an etag with characters that cannot be printed"),
    "an etag beyond ASCII": (b"e1", "\u00e9".encode(), "an etag with characters that cannot be printed"),
}


@pytest.mark.parametrize("name", _BAD_OBJECTS)
@pytest.mark.parametrize("squeezed", [False, True])
def test_an_object_that_is_not_as_s3_describes_it_is_refused(name: str, squeezed: bool) -> None:
    """Sizes, ETags and keys are checked, and no name outside of the prefix is shown."""
    good, bad, why = _BAD_OBJECTS[name]
    assert good in _WHOLE
    page = page_from(_WHOLE.replace(good, bad), "p/")
    with pytest.raises(BadResponse, match=re.escape(why)) as caught:
        objects_of(page.squeezed() if squeezed else page)
    assert "secret" not in str(caught.value)


def test_objects_that_only_seem_to_be_in_a_page_are_missed() -> None:
    """A page is counted before it is parsed. What hides in an instruction of XML is then found to be no object."""
    hidden = _WHOLE.replace(b"<Key>p/b", b"<?x </Contents><Contents>?><Key>p/b").replace(b"<KeyCount>3", b"<KeyCount>4")
    page = page_from(hidden, "p/")
    with pytest.raises(BadResponse, match="expected 4 objects in a page, got 3"):
        objects_of(page)


@pytest.mark.parametrize("etag", [b"", b"<ETag></ETag>", b"<ETag>&quot;&quot;</ETag>", b'<ETag>W/""</ETag>'])
def test_a_listing_without_etags_is_refused_with_the_way_out(etag: bytes) -> None:
    """Versions could not be told apart, so the user is sent to a manifest, for which each object is asked."""
    page = page_from(_WHOLE.replace(b"<ETag>&quot;e1&quot;</ETag>", etag), "p/")
    with pytest.raises(Unsupported, match=re.escape("expected an etag for each listed object, got none")) as caught:
        objects_of(page)
    assert "manifest+s3://" in caught.value.hint


_KEYS_BELOW = [f"p/{number:03d}" for number in range(40)]


@settings(max_examples=budget(400), deadline=None)
@given(st.data())
def test_a_damaged_page_has_all_objects_or_is_an_error(data: st.DataObject) -> None:
    """Bytes that are cut out, doubled, changed or put in never make a page of fewer objects, or end the listing."""
    body = listing_page(_KEYS_BELOW, token="t" * 20, more=True)
    begin = data.draw(st.integers(0, len(body) - 1))
    end = data.draw(st.integers(begin, min(len(body), begin + data.draw(st.sampled_from([1, 30, 300, 5000])))))
    put = data.draw(st.one_of(st.binary(max_size=3), st.just(body[begin:end] * 2), st.just(_HTML), st.just(b"<!--")))
    damaged = body[:begin] + put + body[end:]
    try:
        page = page_from(damaged, "p/")
        found = objects_of(page)
    except FeeddError:
        return
    except Exception as error:  # a ClientError of botocore would come of an error's root only
        raise AssertionError(f"expected an error of feedd, got {error!r}") from error
    assert len(found) == page.count == len(_KEYS_BELOW)
    assert page.truncated


def test_botocore_reads_no_page() -> None:
    """Nothing botocore does with the body of a page comes before the page is taken."""
    client = botocore.session.get_session().create_client(
        "s3", region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )
    client.meta.events.register(EVENT, take)
    seen: list[bytes] = []
    client.meta.events.register_first(
        "before-parse.s3.*", lambda response_dict, **_: seen.append(response_dict["body"])
    )
    taken: dict[str, Any] = {}
    client.meta.events.emit(
        "before-parse.s3.ListObjectsV2",
        operation_model=client.meta.service_model.operation_model("ListObjectsV2"),
        response_dict={"status_code": 200, "headers": {}, "body": _WHOLE},
        customized_response_dict=taken,
    )
    assert seen == [b""]
    assert page_of(taken, "p/").count == 3
