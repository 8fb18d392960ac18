"""The object store suite over obstore: Google's own face, and Azure."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadConfig, BadRequest, BadResponse, PermissionDenied, StoreUnavailable, Throttled, Unsupported
from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.obstore_store import ObstoreStore
from feedd.values import ByteRange
from tests.conformance import object_store_suite as suite
from tests.conformance.object_store_suite import Bed, collect, read
from tests.fakes.azure import AzureServer
from tests.fakes.odd_server import http
from tests.fakes.raw_server import RawServer
from tests.fakes.s3.faults import Fault
from tests.fakes.s3.listing_pages import listing_page
from tests.fakes.s3.server import S3Server
from tests.fakes.sinks import into

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

if importlib.util.find_spec("obstore") is None:
    pytest.skip("needs the extra feedd[obstore]", allow_module_level=True)

_WITHOUT = {"test_checksum_that_is_kept_is_told", "test_folder_markers_are_left_out"}  # see the test below
globals().update({name: test for name, test in vars(suite).items() if name[:5] == "test_" and name not in _WITHOUT})
# the library names no keys with empty parts or parts that are dots, and none with control characters
ODD_NAMES = ("%41", " lead", "q?x=1#y&z")


@pytest.fixture(params=["gs", "az"])
async def bed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    """Set up a bucket of Google, and a container of Azure."""
    for name in ("GOOGLE", "AZURE"):
        monkeypatch.setenv(f"{name}_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    if request.param == "gs":
        with S3Server() as server:
            monkeypatch.setenv("GOOGLE_BASE_URL", server.url)
            server.create_bucket("bucket")
            store = ObstoreStore("gs://bucket", SourceOptions())
            yield Bed(
                store,
                lambda name, data: server.put("bucket", name, data),
                lambda name: server.delete("bucket", name),
                odd_names=ODD_NAMES,
                tells_progress=True,
            )
            await store.close()
        return
    async with AzureServer(page_count=900) as azure:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azure.url)
        store = ObstoreStore("az://container", SourceOptions())
        yield Bed(store, azure.put, azure.delete, odd_names=ODD_NAMES, tells_progress=True)
        await store.close()


async def test_markers_of_folders_are_left_out(bed: Bed) -> None:
    """Zero-byte keys that end in a slash are no objects; other empty objects are."""
    bed.put("d/", b"")
    bed.put("d/empty", b"")
    bed.put("none", b"")
    assert [ref.key for ref in await collect(bed.store, "")] == ["d/empty", "none"]


async def test_keys_that_the_library_cannot_name(bed: Bed) -> None:
    """A key with an empty part is an error that says what to do, never a key that is missing from the data."""
    bed.put("d/x", b"x")
    bed.put("d//e", b"x")
    with pytest.raises(Unsupported, match="empty path segment") as caught:
        await collect(bed.store, "")
    assert "s3://" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, PermissionDenied), (403, PermissionDenied), (429, Throttled), (503, Throttled), (500, StoreUnavailable)],
)
async def test_refusals(monkeypatch: pytest.MonkeyPatch, status: int, kind: type[Exception]) -> None:
    """Each refusal is the error that its caller can act on, sent once."""
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    async with AzureServer() as azure:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azure.url)
        azure.put("x", b"12345")
        store = ObstoreStore("az://container", SourceOptions())
        ref = await store.head("x")
        azure.requests.clear()
        azure.refusals = [status]
        with pytest.raises(kind) as caught:
            await store.read_into(ref, ByteRange(0, 5), into(bytearray(5)))
        assert type(caught.value) is kind
        assert getattr(caught.value, "object", "") == "az://container/x"
        assert len(azure.requests) == 1
        assert await read(store, ref, 0, 5) == b"12345"
        assert azure.requests[-1][2]["If-Match"] == f'"{ref.etag}"'
        await store.close()


async def test_an_account_that_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing account is a matter of configuration, and the error says where to set it."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    store = ObstoreStore("az://container", SourceOptions())
    with pytest.raises(BadConfig, match="Account") as caught:
        await store.head("x")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.hint
    await store.close()


async def test_a_body_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that ends early leaves what has come, and may be tried again."""
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    with S3Server() as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", server.url)
        server.put("bucket", "x", bytes(100_000))
        store = ObstoreStore("gs://bucket", SourceOptions())
        ref = await store.head("x")
        server.script("bucket", "x", Fault(body_bytes=50_000, ending="reset"))
        with pytest.raises(StoreUnavailable):
            await read(store, ref, 0, 100_000)
        assert await read(store, ref, 0, 100_000) == bytes(100_000)
        await store.close()


async def test_each_page_of_a_listing_has_its_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of many pages takes as long as it takes, as on every other store."""
    began: list[float | None] = []
    begun_before: list[int] = []
    timeout = asyncio.timeout

    def noted(delay_s: float | None) -> asyncio.Timeout:
        began.append(delay_s)
        return timeout(delay_s)

    async def pages() -> AsyncIterator[list[dict[str, object]]]:
        for number in range(3):
            begun_before.append(len(began))
            yield [{"path": f"d/{number}", "size": 1, "e_tag": "e"}]

    store = ObstoreStore("az://container", SourceOptions())
    monkeypatch.setattr(store, "_store", object())
    monkeypatch.setattr(store._obstore, "list", lambda *_arguments, **_more: pages())
    monkeypatch.setattr(asyncio, "timeout", noted)
    assert [ref.key for ref in await collect(store, "d/")] == ["d/0", "d/1", "d/2"]
    assert len(set(begun_before)) == 3
    await store.close()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (["d/a", "private/b"], "expected keys that begin with 'd/', got others"),
        (["d/a", "d/a"], "expected each key once, got 'd/a' twice"),
    ],
)
async def test_listings_that_cannot_be_right_are_refused(
    monkeypatch: pytest.MonkeyPatch, keys: list[str], why: str
) -> None:
    """Keys outside of the folder, and keys that come twice: nothing of such a listing is read."""
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    body = listing_page(keys)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with RawServer(head + body, head + body) as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{server.port}")
        store = ObstoreStore("gs://bucket", SourceOptions())
        with pytest.raises(BadResponse, match=why):
            await collect(store, "d/")
        await store.close()


@pytest.mark.parametrize(
    ("second", "end", "whole"),
    [(["d/2"], ["d/2"], True), (None, ["d/1", "d/2"], False), (None, None, False), (["d/2"], None, False)],
    ids=["right", "page", "pages", "page at the end"],
)
async def test_a_web_page_cuts_no_listing_off(
    monkeypatch: pytest.MonkeyPatch, second: list[str] | None, end: list[str] | None, whole: bool
) -> None:
    """The library takes a web page for a last page without objects: the end must be confirmed by its last key."""
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    page = http(200, b"<!doctype html><html><title>Login</title></html>", content_type="text/html")
    later = [page if keys is None else http(200, listing_page(keys)) for keys in (second, end)]
    async with RawServer(http(200, listing_page(["d/0", "d/1"], token="t", more=True)), *later) as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{server.port}")
        store = ObstoreStore("gs://bucket", SourceOptions())
        if whole:
            assert [ref.key for ref in await collect(store, "d/")] == ["d/0", "d/1", "d/2"]
        else:
            with pytest.raises(BadResponse, match="expected the end of the listing"):
                await collect(store, "d/")
        await store.close()


@pytest.mark.parametrize("key", ["a/../b", "../b", "a/./b", "a/..", "a//b"])
async def test_a_key_that_climbs_is_no_request(bed: Bed, key: str) -> None:
    """A key with dots as parts is an error in a daemon without rules too, and never another object."""
    bed.put("b", b"private")
    bed.put("a/b", b"public")
    with pytest.raises(BadRequest):
        await bed.store.head(key)
    with pytest.raises(BadRequest):
        await collect(bed.store, f"{key}/")
