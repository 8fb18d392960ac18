"""Listing over a real server: page after page, each asked for while the one before is read."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import boto3
import obstore.store
import pytest

from feedd.clock import SystemClock
from feedd.errors import BadResponse, FeeddError, Unsupported
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.retry import RetryLimits, RetryPolicy, RetryStore
from feedd.fetch.s3 import listing
from feedd.fetch.s3.session import ANSWER_BYTES_MAX
from feedd.fetch.s3.store import S3Store
from feedd.observe.recorder import NullRecorder
from feedd.units import MIB
from tests.budget import PATIENT_S
from tests.fakes.raw_server import RawServer
from tests.fakes.s3.listing_pages import listing_page
from tests.fakes.s3.server import S3Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.slow  # over a real server


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncIterator[S3Store]:
    access = S3Options(endpoint_url=url, anonymous=True, addressing_style="path")
    store = S3Store("bucket", SourceOptions(s3={"*": access}))
    try:
        yield store
    finally:
        await store.close()


async def test_the_next_page_is_asked_for_while_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the first page finds that the second one is under way, and nothing is missing in the end."""
    keys = [f"train/{number:04d}.jpg" for number in range(2001)]
    asked: list[bool] = []
    read_page = listing._refs
    with S3Server() as server:
        for key in keys:
            server.put("bucket", key, b"x")

        def late(*args: Any) -> Any:
            ends_s = time.monotonic() + PATIENT_S
            while not asked and server.stats()["requests"] != {"LIST": 3} and time.monotonic() < ends_s:
                time.sleep(0.01)
            asked.append(server.stats()["requests"] == {"LIST": 3})
            return read_page(*args)

        monkeypatch.setattr(listing, "_refs", late)
        async with _opened(server.url) as store:
            pages = [[ref.key for ref in page] async for page in store.list("train/")]
    assert asked == [True] * 3
    assert list(itertools.chain.from_iterable(pages)) == keys
    assert [len(page) for page in pages] == [1000, 1000, 1]


async def test_a_page_without_a_size_names_what_was_listed() -> None:
    """Objects that are told otherwise than S3 does are no dataset, and no crash."""
    page = (
        b"<ListBucketResult><Contents><Key>train/a.tar</Key><ETag>e</ETag></Contents>"
        b"<IsTruncated>false</IsTruncated></ListBucketResult>"
    )
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(page)}\r\n\r\n".encode()
    async with RawServer(head + page) as server, _opened(f"http://127.0.0.1:{server.port}") as store:
        with pytest.raises(
            BadResponse, match="expected objects with key, size and etag, got an object without Size"
        ) as caught:
            _ = [page async for page in store.list("train/")]
    assert caught.value.object == "s3://bucket/train/"


async def test_ranges_bring_what_one_page_after_another_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve pages, several at a time: every key once, in order, from the start and after a key."""
    keys = [f"train/{number:05d}.jpg" for number in range(11_500)]
    with S3Server() as server:
        for key in keys:
            server.put("bucket", key, b"x")
        async with _opened(server.url) as store:
            ranges = [ref async for page in store.list("train/") for ref in page]
            rest = [ref.key async for page in store.list("train/", keys[4999]) for ref in page]
            monkeypatch.setattr(listing, "IN_FLIGHT_MAX", 1)
            asked = server.stats()["requests"]
            serial = [ref async for page in store.list("train/") for ref in page]
        assert server.stats()["requests"] == {"LIST": asked["LIST"] + 12}  # type: ignore[index]  # counts by op
    assert [ref.key for ref in ranges] == keys
    assert ranges == serial
    assert rest == keys[5000:]


async def test_a_directory_bucket_is_sorted() -> None:
    """S3 Express lists in any order, below folders only; a prefix is still a start of keys, letter by letter."""
    names = ("train/b.tar", "train/a.tar", "train/sub/c.tar", "train/", "train/ab.tar")
    rows = "".join(
        f"<Contents><Key>{name}</Key><ETag>e</ETag><Size>{len(name) - 6}</Size></Contents>" for name in names
    )
    text = f"<ListBucketResult>{rows}<IsTruncated>false</IsTruncated></ListBucketResult>".encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n".encode()
    async with RawServer(head + text) as server:
        access = S3Options(endpoint_url=f"http://127.0.0.1:{server.port}", anonymous=True, addressing_style="path")
        store = S3Store("bucket--x-s3", SourceOptions(s3={"*": access}))
        try:
            pages = [[ref.key for ref in page] async for page in store.list("train/a")]
        finally:
            await store.close()
    assert pages == [["train/a.tar", "train/ab.tar"]]
    (asked,) = server.requests
    assert b"prefix=train%2F" in asked
    assert b"prefix=train%2Fa" not in asked


def _http(body: bytes, status: str = "200 OK", kind: str = "application/xml") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


_FIRST = listing_page(["train/a", "train/b"], token="more", more=True)
_SECOND = listing_page(["train/c"])
_WRONG = {
    "html": _http(b"<!doctype html><title>Sign in</title>", kind="text/html"),
    "xhtml": _http(b"<html xmlns='http://www.w3.org/1999/xhtml'/>", kind="application/xhtml+xml"),
    "nothing": _http(b""),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "another root": _http(b"<ListAllMyBucketsResult/>"),
    "no IsTruncated": _http(_SECOND.replace(b"<IsTruncated>false</IsTruncated>", b"")),
    "a cut page": _http(_SECOND[:-30]),
    "a wrong KeyCount": _http(_SECOND.replace(b"<KeyCount>1", b"<KeyCount>2")),
    "a key outside": _http(_SECOND.replace(b"train/c", b"secret/c")),
    "a negative size": _http(_SECOND.replace(b"<Size>1", b"<Size>-1")),
    "the token again": _http(listing_page(["train/c"], token="more", more=True)),
    "neither keys nor token": _http(listing_page([], more=True)),
    "common prefixes": _http(
        _SECOND.replace(b"<MaxKeys>", b"<CommonPrefixes><Prefix>train/d/</Prefix></CommonPrefixes><MaxKeys>")
    ),
    "an error with status 200": _http(b"<Error><Code>InternalError</Code></Error>"),
    "too many bytes": _http(b" " * (ANSWER_BYTES_MAX + 1)),
}


def _retrying(store: S3Store) -> RetryStore:
    policy = RetryPolicy(base_s=0.001)
    return RetryStore(store, RetryLimits(policy), SystemClock(), NullRecorder())


@pytest.mark.parametrize("name", _WRONG)
async def test_a_page_that_is_wrong_once_costs_no_key(name: str) -> None:
    """Whatever comes in place of the second page, it is requested again, and the listing is whole."""
    answers = (_http(_FIRST), _WRONG[name], _http(_SECOND))
    async with RawServer(*answers) as server, _opened(f"http://127.0.0.1:{server.port}") as store:
        keys = [ref.key async for page in _retrying(store).list("train/") for ref in page]
    assert keys == ["train/a", "train/b", "train/c"]


@pytest.mark.parametrize("name", _WRONG)
async def test_a_page_that_stays_wrong_is_an_error_soon(name: str) -> None:
    """A listing that cannot be whole ends after a few requests, and names what was listed."""
    answers = (_http(_FIRST), *[_WRONG[name]] * 20)
    async with RawServer(*answers) as server, _opened(f"http://127.0.0.1:{server.port}") as store:
        with pytest.raises(FeeddError) as caught:
            _ = [page async for page in _retrying(store).list("train/")]
        assert caught.value.object == "s3://bucket/train/"
        often = {"an error with status 200", "the token again", "html", "xhtml"}  # the last: it may pass
        assert len(server.requests) <= (9 if name in often else 4)


async def test_a_directory_bucket_without_tokens_is_refused() -> None:
    """Its keys have no order, so nothing but a token says where a listing goes on."""
    answer = _http(listing_page(["train/b", "train/a"], more=True))
    async with RawServer(answer, _http(listing_page(["train/c"]))) as server:
        access = S3Options(endpoint_url=f"http://127.0.0.1:{server.port}", anonymous=True, addressing_style="path")
        store = S3Store("bucket--x-s3", SourceOptions(s3={"*": access}))
        with pytest.raises(BadResponse, match="expected a continuation token in a truncated page, got none"):
            _ = [page async for page in store.list("train/")]
        await store.close()


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    """Of a body that goes on and on, little more than the bound is received, and the connection is given up."""
    sent_bytes = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n\r\n<ListBucketResult>")
        with contextlib.suppress(ConnectionError):
            while sent_bytes < 20 * ANSWER_BYTES_MAX:
                writer.write(b" " * MIB)
                await writer.drain()
                sent_bytes += MIB
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, _opened(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as store:
        with pytest.raises(BadResponse, match=f"expected an answer of at most {ANSWER_BYTES_MAX} bytes, got more"):
            _ = [page async for page in store.list("train/")]
    assert sent_bytes < 4 * ANSWER_BYTES_MAX  # the kernel's buffers hold some


async def test_connections_are_kept_between_pages() -> None:
    """A body that was read to its end leaves its connection to the next request."""
    async with RawServer(_http(_FIRST), _http(_SECOND)) as server, _opened(f"http://127.0.0.1:{server.port}") as store:
        assert len([ref async for page in store.list("train/") for ref in page]) == 3
        assert server.connection_count == 1


@pytest.mark.parametrize("honours", [True, False])
async def test_a_store_of_version_1_is_read_whole_or_refused(honours: bool) -> None:
    """Truncated pages without tokens: the listing goes on after the last key, if the store regards where to begin."""
    keys = [f"train/{number:03d}" for number in range(95)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                query = dict(parse_qsl(urlsplit(head.split()[1].decode()).query))
                left = [key for key in keys if not honours or key > query.get("start-after", "")]
                writer.write(_http(listing_page(left[:10], more=len(left) > 10)))
                await writer.drain()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, _opened(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as store:
        listing_of = _retrying(store).list("train/")
        if honours:
            assert [ref.key async for page in listing_of for ref in page] == keys
        else:
            with pytest.raises(Unsupported, match="the store has only ListObjects V1") as caught:
                _ = [page async for page in listing_of]
            assert caught.value.object == "s3://bucket/train/"
    await ended.wait()


async def test_other_libraries_take_a_wrong_page_for_the_end() -> None:
    """The documents say so of boto3 and obstore: they return the first page's keys, and no error."""
    answers = (_http(_FIRST), _WRONG["xhtml"]) * 2
    async with RawServer(*answers) as server:
        url = f"http://127.0.0.1:{server.port}"

        def by_boto3() -> int:
            with contextlib.closing(
                boto3.client(
                    "s3",
                    endpoint_url=url,
                    region_name="us-east-1",
                    aws_access_key_id="k",
                    aws_secret_access_key="s",
                )
            ) as client:
                pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix="train/")
                return sum(len(page.get("Contents", ())) for page in pages)

        def by_obstore() -> int:
            store = obstore.store.S3Store(
                "bucket",
                endpoint=url,
                region="us-east-1",
                skip_signature=True,
                client_options={"allow_http": True},
            )
            return sum(len(page) for page in store.list("train"))

        assert await asyncio.to_thread(by_boto3) == 2
        assert await asyncio.to_thread(by_obstore) == 2
