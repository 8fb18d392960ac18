"""Listing pages in the form that real stores give them: read as botocore reads them, and answered so by our server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from botocore.handlers import decode_list_object_v2
from botocore.parsers import RestXMLParser

from feedd.fetch.s3.listing import objects_of
from tests.fakes.s3.answers import Answers, parse_head
from tests.fakes.s3.faults import Fault
from tests.fakes.s3.listing_pages import page_from
from tests.fakes.s3.model import listing_shape
from tests.fakes.s3.objects import MemoryObjects
from tests.fixtures.make_listings import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS: Mapping[str, list[str]] = json.loads((FOLDER / "keys.json").read_text("utf-8"))
STORES = sorted(KEYS)


def _read_by_botocore(body: bytes) -> list[tuple[str, int, str]]:
    answer = {"status_code": 200, "headers": {}, "body": body}
    parsed: dict[str, Any] = RestXMLParser().parse(answer, listing_shape())
    decode_list_object_v2(parsed, {"encoding_type_auto_set": True})
    return [(one["Key"], one["Size"], one["ETag"]) for one in parsed["Contents"]]


@pytest.mark.parametrize("store", STORES)
def test_keys_of_each_store_are_read_as_botocore_reads_them(store: str) -> None:
    """Every printable character, and what XML cannot say, comes out as the key that was stored."""
    body = (FOLDER / f"{store}.xml").read_bytes()
    expected = [(key, number, f'"{number:032x}"') for number, key in enumerate(KEYS[store])]
    assert _read_by_botocore(body) == expected
    assert [one[:3] for one in objects_of(page_from(body))] == expected


def test_no_page_lacks_a_printable_character() -> None:
    """The pages hold each printable ASCII character, plus, space and percent among them."""
    for store in STORES:
        assert {chr(code) for code in range(0x20, 0x7F)} <= set("".join(KEYS[store]))


def test_our_server_answers_as_aws_does() -> None:
    """Each key is written in the listing of the server that tests and benchmarks use as AWS writes it."""
    objects = MemoryObjects()
    objects.create("bucket")
    for key in KEYS["aws"]:
        objects.put("bucket", key, b"")
    head = b"GET /bucket?list-type=2&encoding-type=url&prefix=&start-after=%20 HTTP/1.1\r\nHost: h\r\n\r\n"
    reply = Answers(objects).answer(parse_head(head), Fault())
    assert _written(reply.body) == _written((FOLDER / "aws.xml").read_bytes())


def _written(page: bytes) -> list[str]:
    """Return the keys of a page as they are written in it."""
    tree = ET.fromstring(page)
    return [node.text or "" for node in tree.iterfind("{*}Contents/{*}Key")]
