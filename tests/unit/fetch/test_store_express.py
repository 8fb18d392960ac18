"""Directory buckets of S3 Express One Zone: sessions, listings in any order, and reads with a session's token."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from feedd.errors import PermissionDenied
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.s3.store import S3Store
from tests.conformance.object_store_suite import collect, read
from tests.fakes.s3.faces import ExpressServer
from tests.fakes.s3.sdk_bodies import sdk_bodies_store

if TYPE_CHECKING:
    from collections.abc import Callable

BUCKET = "mine--use1-az4--x-s3"
NAMES = ["train/b.tar", "train/a.tar", "train/sub/c.tar", "other.tar", "train-more/a.tar"]
both = pytest.mark.parametrize("kind", [S3Store, sdk_bodies_store], ids=["own", "sdk"])


def options(server: ExpressServer) -> SourceOptions:
    """Access with keys."""
    return SourceOptions(s3={"*": S3Options(endpoint_url=server.url, region="us-east-1")})


@both
@pytest.mark.usefixtures("aws_credentials")
async def test_a_directory_bucket(kind: Callable[[str, SourceOptions], S3Store]) -> None:
    """Listings are sorted, by any prefix and from any key on; each request has the session's token."""
    with ExpressServer() as server:
        for name in NAMES:
            server.put(BUCKET, name, name.encode())
        store = kind(BUCKET, options(server))
        try:
            assert [ref.key for ref in await collect(store, "")] == sorted(NAMES)
            assert [ref.key for ref in await collect(store, "train")] == [n for n in sorted(NAMES) if n[:5] == "train"]
            assert [ref.key for ref in await collect(store, "train/", "train/a.tar")] == [
                "train/b.tar",
                "train/sub/c.tar",
            ]
            (ref,) = await collect(store, "train/b")
            assert await store.head(ref.key) == ref
            assert await read(store, ref, 2, 9) == b"ain/b.t"
            assert await store.checksum(ref) is None
        finally:
            await store.close()
        assert {request.op for request in server.requests} == {"SESSION", "LIST", "HEAD", "GET"}


@both
@pytest.mark.usefixtures("aws_credentials")
async def test_sessions_are_renewed(kind: Callable[[str, SourceOptions], S3Store]) -> None:
    """Reads go on over the ends of sessions, without an error that anybody sees."""
    with ExpressServer(lifetime_s=0.4) as server:
        server.put(BUCKET, "a", b"0123456789")
        store = kind(BUCKET, options(server))
        try:
            ref = await store.head("a")
            for at in range(6):
                assert await read(store, ref, at, at + 4) == b"0123456789"[at : at + 4]
                await asyncio.sleep(0.15)
        finally:
            await store.close()
        tokens = {request.headers["x-amz-s3session-token"] for request in server.requests if request.op == "GET"}
        assert len(tokens) >= 2


@pytest.mark.usefixtures("aws_credentials")
async def test_the_server_demands_a_session() -> None:
    """A request without a session is refused: else these tests would show nothing."""
    with ExpressServer() as server:
        server.put("plain", "a", b"x")
        store = S3Store("plain", options(server))
        try:
            with pytest.raises(PermissionDenied):
                await collect(store, "")
        finally:
            await store.close()
