"""The objects of a listing's page, taken from an answer before botocore reads the rest of it.

Its parser takes 20 us for each object, most of it for what nobody asks about (dates, owners, storage classes), and a
dataset's first batch waits for all pages, one after another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Mapping

EVENT: Final = "before-parse.s3.ListObjectsV2"
_OBJECTS: Final = "FeeddObjects"


class Listed(NamedTuple):
    """One object of a page."""

    key: str
    size_bytes: int
    etag: str


def take(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Handle ``EVENT``: take the objects out of the answer; one that is not as expected is left to botocore."""
    if response_dict["status_code"] != 200:
        return
    try:
        page = ET.fromstring(response_dict["body"])  # noqa: S314 - as botocore's parser does
        objects = _objects(page)
    except (ET.ParseError, KeyError, ValueError):
        return
    response_dict["body"] = ET.tostring(page)
    customized_response_dict[_OBJECTS] = objects


def objects_of(answer: Mapping[str, Any]) -> list[Listed]:
    """Return the objects of an answer, whoever read them."""
    found: list[Listed] | None = answer.get(_OBJECTS)
    if found is None:
        found = [Listed(item["Key"], item["Size"], item["ETag"]) for item in answer.get("Contents", ())]
    return found


def _objects(page: ET.Element) -> list[Listed]:
    """Return the objects of a page, and take them out of it.

    Raises:
        KeyError, ValueError: one that is not told as S3 does.
    """
    space = page.tag[: page.tag.find("}") + 1]
    contents, key, size, etag = (space + name for name in ("Contents", "Key", "Size", "ETag"))
    encoded = page.findtext(space + "EncodingType") == "url"
    found = []
    for item in [child for child in page if child.tag == contents]:
        told = {child.tag: child.text or "" for child in item}
        name = told[key]
        if encoded and "%" in name:
            name = unquote_to_bytes(name).decode()
        found.append(Listed(name, int(told[size]), told[etag]))
    page[:] = [child for child in page if child.tag != contents]
    return found
