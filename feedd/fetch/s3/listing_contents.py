"""The objects of a listing's page, taken from an answer before botocore reads the rest of it.

Its parser takes 20 us for each object, most of it for what nobody asks about (dates, owners, storage classes), and its
search for errors behind a 200 reads all once more; a dataset's first batch waits for all pages, one after another. Of
a page botocore gets what surrounds the objects, so that the next page can be asked for before these are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree as ET

from feedd.errors import BadResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

EVENT: Final = "before-parse.*.ListObjectsV2"
"""Where botocore emits: a wildcard there goes before all that is said of S3, and so before its own look at the body."""
_PAGE: Final = "FeeddPage"
_BEGIN, _END = b"<Contents>", b"</Contents>"


class Listed(NamedTuple):
    """One object of a page."""

    key: str
    size_bytes: int
    etag: str


def take(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Handle ``EVENT``: take the objects out of the answer.

    What may hold anything else between two objects, or their names where none are, is left to botocore.
    """
    body: bytes = response_dict["body"]
    if response_dict["status_code"] != 200 or b"<!" in body:  # no comment and no CDATA
        return
    head, _begin, rest = body.partition(_BEGIN)
    objects, end, tail = rest.rpartition(_END)
    if end and objects.count(_END) == objects.count(_BEGIN) == objects.count(_END + _BEGIN):
        response_dict["body"] = head + tail
        customized_response_dict[_PAGE] = body


def objects_of(answer: Mapping[str, Any]) -> list[Listed]:
    """Return the objects of an answer, whoever reads them.

    Raises:
        BadResponse: one is not told as S3 does.
    """
    try:
        page: bytes | None = answer.get(_PAGE)
        if page is not None:
            return _objects(ET.fromstring(page))  # noqa: S314 - as botocore's parser does
        return [Listed(item["Key"], item["Size"], item["ETag"]) for item in answer.get("Contents", ())]
    except (ET.ParseError, KeyError, ValueError) as error:
        message = f"expected objects with key, size and etag, got {type(error).__name__}: {error}"
        raise BadResponse(message, stage="source") from error


def _objects(page: ET.Element) -> list[Listed]:
    space = page.tag[: page.tag.find("}") + 1]
    contents, key, size, etag = (space + name for name in ("Contents", "Key", "Size", "ETag"))
    encoded = page.findtext(space + "EncodingType") == "url"
    found = []
    for item in page:
        if item.tag != contents:
            continue
        told = {child.tag: child.text or "" for child in item}
        name = told[key]
        if encoded:  # as a form's values are: AWS and MinIO write a space as "+", Ceph as "%20", all a plus as "%2B"
            name = unquote_to_bytes(name.replace("+", " ")).decode()
        found.append(Listed(name, int(told[size]), told[etag]))
    return found
