"""Who receives the bytes: our own reader, or the SDK where that cannot."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from feedd.errors import BadConfig, BadResponse
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.s3.pool import round_trip_s
from feedd.fetch.s3.store import S3Store
from feedd.values import ByteRange, ObjectRef, ReadProgress
from tests.fakes.s3.faults import chunked, until_close
from tests.fakes.s3.server import S3Server
from tests.fakes.sinks import into
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.fakes.s3.faults import Fault

pytestmark = pytest.mark.slow  # over a real server

DATA = bytes(range(200))


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Start a server with one object."""
    with S3Server() as running:
        running.put("bucket", "key", DATA)
        yield running


@contextlib.asynccontextmanager
async def opened(url: str, **s3: str) -> AsyncIterator[S3Store]:
    """Open a store."""
    access = S3Options(endpoint_url=url, anonymous=True, **s3)  # type: ignore[arg-type]  # strings, in every call
    store = S3Store("bucket", SourceOptions(s3={"*": access}))
    try:
        yield store
    finally:
        await store.close()


async def read(store: S3Store, ref: ObjectRef | None = None) -> bytes:
    """Read a few bytes."""
    target = bytearray(9)
    await store.read_into(ref or await store.head("key"), ByteRange(1, 10), into(target))
    return bytes(target)


def by_sdk(server: S3Server) -> list[bool]:
    """Return for each GET whether the SDK sent it: only it adds statistics of its own."""
    return ["amz-sdk-request" in request.headers for request in server.requests if request.op == "GET"]


async def test_reads_go_past_the_sdk(server: S3Server) -> None:
    """Without a reason to do otherwise the reader is ours; heads are the SDK's, one connection serves all reads."""
    async with opened(server.url) as store:
        with capture_logs() as logs:
            ref = await store.head("key")
            connections = server.connection_count
            assert [await read(store, ref) for _ in range(3)] == [DATA[1:10]] * 3
        assert by_sdk(server) == [False] * 3
        assert server.connection_count == connections + 1
        assert logs == []


@pytest.mark.parametrize("unframed", [chunked(), until_close()], ids=["chunks", "until close"])
async def test_a_body_without_a_length_is_received_by_the_sdk(server: S3Server, unframed: Fault) -> None:
    """After the first body without a length the SDK receives all bodies of the store, and the log says so once."""
    server.script("bucket", "key", always=unframed)
    async with opened(server.url) as store:
        ref = await store.head("key")
        with capture_logs() as logs:
            assert [await read(store, ref) for _ in range(3)] == [DATA[1:10]] * 3
    assert [entry["reason"] for entry in logs] == ["the store sends bodies without content-length"]
    assert by_sdk(server) == [False, True, True, True]


async def test_etag_that_fits_no_header(server: S3Server) -> None:
    """An ETag with a line break, as a listing could bring it, does not become a header."""
    async with opened(server.url) as store:
        with pytest.raises(BadResponse, match="fit for a header"):
            await read(store, ObjectRef(store.root, "key", 200, 'x"\r\nHost: other'))
    assert by_sdk(server) == []


async def test_store_nobody_vouches_for(tmp_path: Path) -> None:
    """A certificate of an authority that is not trusted is refused, with the option that would change that."""
    authority = Authority(tmp_path)
    with S3Server(cert=authority.issue("store")) as server:
        etag = server.put("bucket", "key", DATA)
        ref = ObjectRef("s3://bucket", "key", len(DATA), etag)
        async with opened(server.url, ca_bundle=str(authority.ca_path)) as store:
            assert await read(store, ref) == DATA[1:10]
        async with opened(server.url) as store:
            with pytest.raises(BadConfig, match="ca_bundle"):
                await read(store, ref)


async def test_authorities_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_CA_BUNDLE counts for our reader as for the SDK."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca_path))
    with S3Server(cert=authority.issue("store")) as server:
        server.put("bucket", "key", DATA)
        async with opened(server.url) as store:
            assert await read(store) == DATA[1:10]
        assert by_sdk(server) == [False]


async def test_name_must_match_the_certificate(tmp_path: Path) -> None:
    """A certificate for another name is refused."""
    authority = Authority(tmp_path)
    with S3Server(cert=authority.issue("store")) as server:
        etag = server.put("bucket", "key", DATA)
        url = server.url.replace("127.0.0.1", "localhost")  # the certificate is for the address
        async with opened(url, ca_bundle=str(authority.ca_path)) as store:
            with pytest.raises(BadConfig, match=r"certificate is not accepted: .*OpenSSL's code 6[24]"):
                await read(store, ObjectRef("s3://bucket", "key", len(DATA), etag))


async def test_the_kernel_tells_the_round_trip(server: S3Server) -> None:
    """It is known of each request's connection; of what is no TCP connection, nothing is."""
    async with opened(server.url) as store:
        progress = ReadProgress()
        await store.read_into(await store.head("key"), ByteRange(1, 10), into(bytearray(9)), progress)
    assert progress.round_trip_s is not None
    assert 0 < progress.round_trip_s < 1
    one, other = socket.socketpair()
    with one, other:
        assert round_trip_s(one) is None
