"""Cases 27 to 30 and bad input: regions, versions, listings, and objects of every odd kind."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from feedd.errors import BadConfig, BadResponse, NotFound, ObjectChanged, PermissionDenied
from feedd.fetch.s3.store import S3Store
from feedd.metrics import SOURCE_RETRIES
from feedd.values import ByteRange, ObjectRef
from tests.fakes.s3 import faults as fault
from tests.fakes.s3.objects import endless_bytes
from tests.fakes.s3.sdk_bodies import sdk_bodies_store
from tests.fakes.sinks import into
from tests.fault.s3_rig import ANONYMOUS, DATA, EVERY_WAY, PART_BYTES, SIGNED, Rig, asked, opened

if TYPE_CHECKING:
    from feedd.fetch.fetch_options import AddressingStyle
    from tests.fakes.s3.server import S3Server
    from tests.unit.serve.certs import Authority

FAST = pytest.mark.parametrize("way", ["direct", "sdk"])


async def read(rig: Rig, way: str, ref: ObjectRef, span: ByteRange) -> bytes:
    """Read with a bare store: no retry hides what it does."""
    store = (sdk_bodies_store if way == "sdk" else S3Store)(ref.root.removeprefix("s3://"), rig.options)
    target = bytearray(span.size_bytes)
    try:
        await store.read_into(ref, span, into(target))
    finally:
        await store.close()
    return bytes(target)


# ---------------------------------------------------------------- 27 to 29: where it is, which version, what there is


@pytest.mark.usefixtures("aws_credentials")
async def test_case_27_region_is_learned_once(server: S3Server, authority: Authority, way: str) -> None:
    """A bucket of another region is found by its redirect; once known, no request goes to the wrong one."""
    server.gate.place("bucket", "eu-north-1")
    async with opened(server.url, authority, way, replace(SIGNED, region="us-east-1")) as rig:
        ref = ObjectRef("s3://bucket", "key", len(DATA), hashlib.md5(DATA, usedforsecurity=False).hexdigest())
        assert await rig.fetch_ref(ref) == DATA
        assert rig.recorder.total(SOURCE_RETRIES) == 0
        redirected = asked(server) - 6
        assert 1 <= redirected <= 4, "only what was under way before the region was known"
        assert asked(server, "HEAD") <= 4, "where it is, and its checksum: each redirected once"
        before = len(server.requests)
        assert await rig.fetch_ref(ref) == DATA
        assert len(server.requests) == before + 6 + 1, "six parts, one question for the checksum"


@pytest.mark.parametrize("code", ["PermanentRedirect", "AuthorizationHeaderMalformed"])
@pytest.mark.usefixtures("aws_credentials")
async def test_case_27_every_request_learns_the_region_of_one_redirect(
    server: S3Server, authority: Authority, way: str, code: str
) -> None:
    """The first listing learns a bucket's region; listings, reads and writes after it are signed for that region."""
    server.gate.place("bucket", "eu-north-1", code)
    with capture_logs() as logs:
        async with opened(server.url, authority, way, replace(SIGNED, region="us-east-1")) as rig:
            (ref,) = await rig.sources.resolve(["s3://bucket/key"])
            assert await rig.sources.resolve(["s3://bucket/key"]) == (ref,)
            assert await rig.fetch_ref(ref) == DATA
            await rig.sources.put("s3://bucket/new", b"new")
    signed = Counter(request.headers["authorization"].split("/")[2] for request in server.requests)
    assert signed["us-east-1"] == 1, signed
    (told,) = [line for line in logs if line["log_level"] == "warning"]
    assert (told["bucket"], told["region"], told["configured"]) == ("bucket", "eu-north-1", "us-east-1")


@pytest.mark.usefixtures("aws_credentials")
async def test_a_write_is_signed_with_the_time_that_reads_learned(
    server: S3Server, authority: Authority, way: str
) -> None:
    """Where this machine's clock is off, a write after a read is accepted at once: they share the store's time."""
    server.gate.set_clock(3600)
    async with opened(server.url, authority, way, replace(SIGNED, region="us-east-1")) as rig:
        await rig.sources.resolve(["s3://bucket/key"])
        await rig.sources.put("s3://bucket/new", b"new")
    assert asked(server, "PUT") == 1


async def test_case_27_a_redirect_that_leads_nowhere(server: S3Server, rig: Rig) -> None:
    """A store that keeps redirecting is not followed for ever: the error names the region it told."""
    server.script("bucket", "key", always=fault.moved("eu-north-1"))
    with pytest.raises(BadConfig, match="eu-north-1"):
        await rig.fetch()
    assert asked(server) <= 2 * 6


@FAST
async def test_case_28_range_behind_the_end(server: S3Server, rig: Rig, way: str) -> None:
    """A 416 for an object that became shorter is looked into: the error names both versions and both sizes."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    etag = server.put("bucket", "key", DATA[:1000])
    server.script("bucket", "key", always=fault.refused(416, "InvalidRange"))
    with pytest.raises(ObjectChanged) as caught:
        await read(rig, way, ref, ByteRange(len(DATA) - 10, len(DATA)))
    assert all(word in caught.value.message for word in (ref.etag, etag, f"{len(DATA)} bytes", "1000 bytes"))
    assert (asked(server), asked(server, "HEAD")) == (1, 1)


@FAST
async def test_case_28_416_without_a_reason(server: S3Server, rig: Rig, way: str) -> None:
    """A 416 although the object is as planned is the store's error, and worth another attempt."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    server.script("bucket", "key", fault.refused(416, "InvalidRange"))
    with pytest.raises(BadResponse, match="unchanged"):
        await read(rig, way, ref, ByteRange(0, 10))
    server.script("bucket", "key", fault.refused(416, "InvalidRange"))
    assert await rig.fetch_ref(ref) == DATA


@FAST
async def test_replaced_names_both_etags(server: S3Server, rig: Rig, way: str) -> None:
    """A 412 says nothing of the new version, so that is looked up: the error names both."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    etag = server.put("bucket", "key", DATA[::-1])
    with pytest.raises(ObjectChanged) as caught:
        await read(rig, way, ref, ByteRange(0, 10))
    assert ref.etag in caught.value.message
    assert etag in caught.value.message
    assert "open the dataset again" in caught.value.hint


@FAST
async def test_replaced_and_then_deleted(server: S3Server, rig: Rig, way: str) -> None:
    """An object that is gone by the time its new version is looked up is NotFound."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    server.put("bucket", "key", b"other")
    server.script("bucket", "key", op="HEAD", always=fault.missing())
    with pytest.raises(NotFound):
        await read(rig, way, ref, ByteRange(0, 5))


@FAST
async def test_case_29_listing_that_fails_in_the_middle(server: S3Server, rig: Rig) -> None:
    """Pages that fail, break off or are cut are asked for again: every key comes once, in order, however it went."""
    keys = [f"k{index:05d}" for index in range(3500)]
    for key in keys:
        server.put("many", key, b"x")
    expected = await rig.sources.resolve(["s3://many/k"])
    bad = (fault.slow_down(), None, fault.reset_in_body(2000), fault.cut_body(5000), None, fault.internal_error())
    server.script("many", "", *bad, op="LIST")
    found = await rig.sources.resolve(["s3://many/k"])
    assert [ref.key for ref in found] == keys
    assert found == expected
    assert rig.recorder.total(SOURCE_RETRIES) == 4


# ---------------------------------------------------------------- 30 and bad input: objects and buckets of every kind

KEYS = {
    "percent": "a%2Fb/%/%25",
    "plus": "a+b c",
    "spaces": "  two  spaces ",
    "newline": "line\nbreak\ttab",
    "dots": "a/../b/./c",
    "emoji": "ü/\U0001f600/é",
    "quotes": 'it\'s "quoted" & <tagged>;,#?=',
    "slashes": "/lead//double",
    "1024 bytes": "k" * 1024,
    "1024 bytes of emoji": "\U0001f600" * 256,
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
@pytest.mark.usefixtures("aws_credentials")
async def test_case_30_odd_keys(server: S3Server, authority: Authority, way: str, key: str) -> None:
    """Keys of any characters are listed, found and read exactly; a neighbour with a similar name is not."""
    server.put("odd", key, DATA)
    server.put("odd", "a/b", b"neighbour")
    async with opened(server.url, authority, way, SIGNED) as rig:
        pages = [page async for page in rig.sources.store("s3://odd").list("")]
        (ref,) = [ref for page in pages for ref in page if ref.key == key]
        assert await rig.sources.store("s3://odd").head(key) == ref
        assert await rig.fetch_ref(ref) == DATA


@EVERY_WAY
@pytest.mark.parametrize("data", [b"", b"1"], ids=["0", "1"])
async def test_case_30_objects_of_no_and_of_one_byte(server: S3Server, rig: Rig, data: bytes) -> None:
    """An empty object is read without a request for its body, one of a single byte with one."""
    server.put("bucket", "tiny", data)
    assert await rig.fetch("s3://bucket/tiny") == data
    assert asked(server) == len(data)


async def test_object_of_six_tebibytes(server: S3Server, rig: Rig, way: str) -> None:
    """An object beyond any memory is known by its size, and its far end read exactly: no list of its parts is made."""
    size_bytes = 6 << 40
    server.put_endless("bucket", "huge", size_bytes)
    tracemalloc.start()
    try:
        (ref,) = await rig.sources.resolve(["s3://bucket/huge"])
        assert ref.size_bytes == size_bytes
        for start in (0, (5 << 40) + 3, size_bytes - PART_BYTES):
            end = start + PART_BYTES
            assert await read(rig, way, ref, ByteRange(start, end)) == endless_bytes(start, PART_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


REFUSALS = {
    "kms by message": (
        fault.refused(403, "AccessDenied", "User: u is not authorized to perform: kms:Decrypt on resource: key/1"),
        "kms:Decrypt on the object's key",
    ),
    "kms by code": (fault.refused(400, "KMS.DisabledException", "key/1 is disabled."), "key/1 is disabled"),
    "archived": (fault.refused(403, "InvalidObjectState"), "restore"),
    "requester pays": (fault.denied(), "requester_pays = true"),
}


@pytest.mark.parametrize(("bad", "hint"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_refusals_say_what_to_do(server: S3Server, rig: Rig, bad: fault.Fault, hint: str) -> None:
    """A key that may not be used, an archived object and a bucket that charges: each says what would help, at once."""
    server.script("bucket", "key", always=bad)
    with pytest.raises(PermissionDenied) as caught:
        await rig.fetch()
    assert hint in caught.value.hint
    assert rig.recorder.total(SOURCE_RETRIES) == 0


async def test_requester_pays_is_not_suggested_twice(server: S3Server, authority: Authority, way: str) -> None:
    """Who accepts to be charged says so in each request, and is told something else when refused."""
    async with opened(server.url, authority, way, replace(ANONYMOUS, requester_pays=True)) as rig:
        assert await rig.fetch() == DATA
        assert all(request.headers["x-amz-request-payer"] == "requester" for request in server.requests)
        server.script("bucket", "key", always=fault.denied())
        with pytest.raises(PermissionDenied) as caught:
            await rig.fetch()
        assert "requester_pays" not in caught.value.hint


async def test_bucket_with_dots(server: S3Server, authority: Authority, way: str) -> None:
    """A bucket's name with dots, which no wildcard certificate covers, goes into the path over TLS."""
    server.put("a.bucket.with.dots", "key", DATA)
    style: AddressingStyle = "virtual" if way == "direct-tls" else "auto"
    async with opened(server.url, authority, way, replace(ANONYMOUS, addressing_style=style)) as rig:
        assert await rig.fetch("s3://a.bucket.with.dots/key") == DATA


@pytest.mark.usefixtures("aws_credentials")
async def test_directory_bucket(server: S3Server, authority: Authority, way: str) -> None:
    """A directory bucket is read with the key of one session, which is opened once, and renewed when refused."""
    bucket = "mine--use1-az4--x-s3"
    etag = server.put(bucket, "key", DATA)
    async with opened(server.url, authority, way, SIGNED) as rig:
        ref = ObjectRef(f"s3://{bucket}", "key", len(DATA), etag)
        assert await rig.fetch_ref(ref) == DATA
        gets = [request for request in server.requests if request.op == "GET"]
        assert {request.headers["x-amz-s3session-token"] for request in gets} == {"session-token-1"}
        assert asked(server, "SESSION") == 1
        server.gate.refuse("session1")
        assert await rig.fetch_ref(ref) == DATA
        assert asked(server, "SESSION") == 2
        assert rig.recorder.total(SOURCE_RETRIES) == 0
