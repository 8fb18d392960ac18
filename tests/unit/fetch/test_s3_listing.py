"""Listing over a real server: page after page, each asked for while the one before is read."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from feedd.errors import BadResponse
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.s3 import bucket_listing as listing
from feedd.fetch.s3.sdk_store import S3Store
from tests.budget import PATIENT_S
from tests.fakes.raw_server import RawServer
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
    read_page = listing._page
    with S3Server() as server:
        for key in keys:
            server.put("bucket", key, b"x")

        def late(*args: Any) -> Any:
            ends_s = time.monotonic() + PATIENT_S
            while not asked and server.stats()["requests"] != {"LIST": 3} and time.monotonic() < ends_s:
                time.sleep(0.01)
            asked.append(server.stats()["requests"] == {"LIST": 3})
            return read_page(*args)

        monkeypatch.setattr(listing, "_page", late)
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
            BadResponse, match="expected objects with key, size and etag, got KeyError: 'Size'"
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
    names = ("train/b.tar", "train/a.tar", "train/sub/c.tar", "other.tar", "train/", "train/ab.tar")
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
