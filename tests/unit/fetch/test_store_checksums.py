"""How S3 is asked for checksums: requests, pages of parts, refusals, contradictions."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import structlog

from feedd.errors import (
    BadResponse,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    StoreUnavailable,
    Throttled,
    Unsupported,
)
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.s3.store import S3Store
from tests.fakes.s3 import faults as fault
from tests.fakes.s3.checksums import Kept
from tests.fakes.s3.server import S3Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from feedd.errors import FeeddError
    from tests.fakes.s3.faults import Fault

pytestmark = pytest.mark.slow  # over a real server

DATA = bytes(range(250)) * 10


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Start the server."""
    with S3Server() as running:
        yield running


@pytest.fixture
async def store(server: S3Server) -> AsyncIterator[S3Store]:
    """Open the bucket, at the requester's cost."""
    access = S3Options(endpoint_url=server.url, anonymous=True, requester_pays=True)
    opened = S3Store("bucket", SourceOptions(s3={"*": access}))
    yield opened
    await opened.close()


async def test_one_request_of_a_full_object_checksum(server: S3Server, store: S3Store) -> None:
    """A full-object checksum takes one HEAD, bound to the version, at the requester's cost."""
    server.put("bucket", "a", DATA, Kept("crc64nvme"))
    ref = await store.head("a")
    assert await store.checksum(ref) is not None
    (asked,) = server.requests[1:]
    assert asked.op == "HEAD"
    assert asked.headers["x-amz-checksum-mode"] == "ENABLED"
    assert asked.headers["if-match"] == f'"{ref.etag}"'
    assert asked.headers["x-amz-request-payer"] == "requester"


async def test_parts_come_in_pages(server: S3Server, store: S3Store) -> None:
    """Sizes and digests of more than a thousand parts come page by page, in order, at the requester's cost."""
    sizes = (1, 0, *[2] * 1247, 5)
    server.put("bucket", "a b", DATA, Kept("sha1", sizes))
    found = await store.checksum(await store.head("a b"))
    assert found is not None
    assert sum(sizes) == len(DATA)
    assert found.part_sizes == sizes
    assert len(found.part_digests) == len(sizes)
    pages = [request for request in server.requests if request.op == "ATTRIBUTES"]
    assert [page.headers["x-amz-part-number-marker"] for page in pages] == ["0", "1000"]
    assert {page.headers["x-amz-request-payer"] for page in pages} == {"requester"}


@pytest.mark.parametrize(
    "refusal",
    [fault.denied(), fault.missing(), replace(fault.denied(), status=501, code="NotImplemented"), None],
    ids=["403", "404", "501", "other parts"],
)
async def test_parts_that_are_not_told(server: S3Server, store: S3Store, refusal: Fault | None) -> None:
    """Where the parts cannot be learnt there is nothing to check against; said once, with the permission to grant."""
    sizes = (1000, 1500) if refusal is not None else (1000, 1400)  # these are not the object's
    server.put("bucket", "a", DATA, Kept("crc32c", sizes))
    if refusal is not None:
        server.script("bucket", "a", op="ATTRIBUTES", always=refusal)
    ref = await store.head("a")
    with structlog.testing.capture_logs() as lines:
        assert await store.checksum(ref) is None
        assert await store.checksum(ref) is None
    (line,) = lines
    assert line["object"] == ref.url
    assert "s3:GetObjectAttributes" in line["hint"]


@pytest.mark.parametrize(
    ("op", "met", "error"),
    [
        ("HEAD", fault.denied(), PermissionDenied),
        ("HEAD", fault.missing(), NotFound),
        ("HEAD", fault.slow_down(), Throttled),
        ("HEAD", fault.internal_error(), StoreUnavailable),
        ("HEAD", fault.changed_etag(), Unsupported),
        ("ATTRIBUTES", fault.slow_down(), Throttled),
        ("ATTRIBUTES", fault.internal_error(), StoreUnavailable),
    ],
)
async def test_errors_are_said(server: S3Server, store: S3Store, op: str, met: Fault, error: type[FeeddError]) -> None:
    """What keeps us from knowing is the seam's own error, and never "no checksum"."""
    server.put("bucket", "a", DATA, Kept("crc32c", (1000, 1500)))
    ref = await store.head("a")
    server.script("bucket", "a", op=op, always=met)
    with pytest.raises(error) as caught:
        await store.checksum(ref)
    assert type(caught.value) is error
    assert caught.value.object == "s3://bucket/a"


async def test_another_size_under_the_same_etag(server: S3Server, store: S3Store) -> None:
    """A store that tells two sizes of one version contradicts itself."""
    server.put("bucket", "a", DATA, Kept("crc32c"))
    with pytest.raises(BadResponse, match="expected 7 bytes"):
        await store.checksum(replace(await store.head("a"), size_bytes=7))


async def test_replaced_between_head_and_parts(server: S3Server, store: S3Store) -> None:
    """The request for parts cannot be bound to a version: its answer is held against the one that was asked for."""
    server.put("bucket", "a", DATA, Kept("crc32c", (1000, 1500)))
    ref = await store.head("a")
    server.put("bucket", "a", DATA[::-1], Kept("crc32c", (1000, 1500)))
    server.script("bucket", "a", op="HEAD", always=fault.changed_etag(ref.etag))
    with pytest.raises(ObjectChanged, match=ref.etag):
        await store.checksum(ref)


@pytest.mark.parametrize("text", ["", "AAAA", "!!!!!!!!", base64.b64encode(bytes(5)).decode()])
async def test_malformed_digest(server: S3Server, store: S3Store, text: str) -> None:
    """A header that is no CRC32C is refused and not compared; one that is empty is none."""
    server.put("bucket", "a", DATA)
    ref = await store.head("a")
    server.script("bucket", "a", op="HEAD", always=fault.Fault(headers=(("x-amz-checksum-crc32c", text),)))
    if text:
        with pytest.raises(BadResponse, match="crc32c in base64"):
            await store.checksum(ref)
    else:
        assert await store.checksum(ref) is None


async def test_no_checksum_is_none_and_md5_is_not_guessed(server: S3Server, store: S3Store) -> None:
    """An ETag that looks like an MD5 sum is not taken for one."""
    server.put("bucket", "a", DATA)
    ref = await store.head("a")
    assert len(ref.etag) == 32
    assert await store.checksum(ref) is None
