"""Objects on web servers: versions, ranges, redirects, refusals."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from feedd.errors import (
    BadConfig,
    BadRequest,
    BadResponse,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    StoreUnavailable,
    Throttled,
    Unsupported,
)
from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.proxy_rules import proxy_of
from feedd.fetch.s3 import pool
from feedd.fetch.web import store as web_store
from feedd.fetch.web.client import retry_after_s
from feedd.fetch.web.store import HttpStore
from feedd.values import ObjectRef
from tests.conformance.object_store_suite import collect, read
from tests.fakes.raw_server import RawServer
from tests.fakes.s3.faults import Fault
from tests.fakes.s3.server import S3Server
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

DATA = bytes(range(256)) * 40


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Any web server with ranges and ETags."""
    with S3Server() as found:
        found.put("data", "a.tar", DATA)
        yield found


@contextlib.asynccontextmanager
async def opened(root: str, options: SourceOptions | None = None) -> AsyncIterator[HttpStore]:
    """Open the store of a root, and close it."""
    store = HttpStore(root, options or SourceOptions())
    try:
        yield store
    finally:
        await store.close()


def redirect(location: str, status: int = 302) -> Fault:
    """Answer with a redirect."""
    return Fault(status=status, code="Redirect", headers=(("Location", location),))


async def test_a_url_names_one_object(server: S3Server) -> None:
    """A listing of an object's URL is that object; of a missing one nothing; of a folder an error that says how."""
    async with opened(server.url) as store:
        ref = await store.head("data/a.tar")
        assert (ref.url, ref.size_bytes) == (f"{server.url}/data/a.tar", len(DATA))
        assert await collect(store, "data/a.tar") == [ref]
        assert await collect(store, "data/a.tar", "data/a.tar") == []
        assert await collect(store, "data/none.tar") == []
        with pytest.raises(Unsupported, match="folder") as caught:
            await collect(store, "data/")
        assert "{000000..000099}" in caught.value.hint


async def test_reads_are_conditional_on_the_strong_etag(server: S3Server) -> None:
    """A strong ETag is required of each answer; a read names its range and no credentials."""
    async with opened(server.url) as store:
        ref = await store.head("data/a.tar")
        assert await read(store, ref, 100, 300) == DATA[100:300]
        headers = server.requests[-1].headers
        assert headers["if-match"] == f'"{ref.etag}"'
        assert headers["range"] == "bytes=100-299"
        assert "authorization" not in headers


@pytest.mark.parametrize(
    ("versions", "etag"),
    [
        (['ETag: W/"one"', 'ETag: W/"two"'], "weak one"),
        ([f"Last-Modified: {day}, 01 Jan 2026 00:00:00 GMT" for day in ("Thu", "Fri")], None),
    ],
)
async def test_a_change_is_noticed_without_a_strong_etag(versions: list[str], etag: str | None) -> None:
    """Weak ETags and dates are compared in each answer, because no condition can be made of them."""

    def answer(version: str) -> bytes:
        head = f"HTTP/1.1 206 Partial\r\n{version}\r\nContent-Range: bytes 0-0/9\r\nContent-Length: 1\r\n\r\nx"
        return head.encode()

    raw = RawServer(*map(answer, [versions[0], versions[0], versions[1]]))
    async with raw, opened(f"http://127.0.0.1:{raw.port}") as store:
        ref = await store.head("x")
        assert ref.size_bytes == 9
        assert etag is None or ref.etag == etag
        assert await read(store, ref, 0, 1) == b"x"
        with pytest.raises(ObjectChanged, match="expected version"):
            await read(store, ref, 0, 1)
    assert b"If-Match" not in b"".join(raw.requests)


async def test_an_object_without_a_version_is_refused(server: S3Server) -> None:
    """Without ETag and date, nobody could notice a change in the middle of a run."""
    server.script("data", "a.tar", always=Fault(omit=("ETag", "Last-Modified")))
    async with opened(server.url) as store:
        with pytest.raises(Unsupported, match="neither"):
            await store.head("data/a.tar")


async def test_a_server_without_ranges(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small objects are read whole, and the server is not asked for ranges again; large ones are refused."""
    server.script("data", "a.tar", always=Fault(ignore_range=True))
    async with opened(server.url) as store:
        ref = await store.head("data/a.tar")
        assert ref.size_bytes == len(DATA)
        assert await read(store, ref, 100, 300) == DATA[100:300]
        server.requests.clear()
        assert await read(store, ref, 0, 5) == DATA[:5]
        assert [request.range for request in server.requests] == [None]
        server.put("data", "a.tar", DATA[::-1])
        with pytest.raises(ObjectChanged):
            await read(store, ref, 0, 5)
        monkeypatch.setattr(web_store, "WHOLE_BYTES_MAX", 1000)
        with pytest.raises(Unsupported, match="no byte ranges") as caught:
            await store.head("data/a.tar")
        assert "nginx" in caught.value.hint
        server.put("data", "a.tar", DATA)
        with pytest.raises(Unsupported, match="no byte ranges"):
            await read(store, ref, 0, 5)


async def test_a_large_object_beside_one_without_ranges(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may have ranges for some of its objects only. Large ones are read by ranges, never as a whole."""
    monkeypatch.setattr(web_store, "WHOLE_BYTES_MAX", len(DATA))
    server.put("data", "b.tar", DATA * 3)
    server.script("data", "a.tar", always=Fault(ignore_range=True))
    async with opened(server.url) as store:
        small, large = await store.head("data/a.tar"), await store.head("data/b.tar")
        assert await read(store, small, 100, 300) == DATA[100:300]
        server.requests.clear()
        assert await read(store, large, 100, 300) == DATA[100:300]
        assert server.requests[-1].headers["range"] == "bytes=100-299"


async def test_a_size_that_no_object_has_is_refused() -> None:
    """A size must be a number that a listing can hold."""
    head = b'HTTP/1.1 206 P\r\nETag: "e"\r\nContent-Range: bytes 0-0/%s\r\nContent-Length: 1\r\n\r\nx'
    async with RawServer(head % (b"9" * 30)) as raw, opened(f"http://127.0.0.1:{raw.port}") as store:
        with pytest.raises(BadResponse, match="content-range"):
            await store.head("x")


async def test_an_empty_object(server: S3Server) -> None:
    """An object without a first byte has a version, too."""
    server.put("data", "empty", b"")
    async with opened(server.url) as store:
        assert (await store.head("data/empty")).size_bytes == 0


@pytest.mark.parametrize("shift", [Fault(range_shift=1), Fault(extra_bytes=3), Fault(framing="chunked")])
async def test_an_answer_of_another_range_is_refused(server: S3Server, shift: Fault) -> None:
    """Range and length are those that were requested."""
    async with opened(server.url) as store:
        ref = await store.head("data/a.tar")
        server.script("data", "a.tar", shift)
        with pytest.raises(BadResponse):
            await read(store, ref, 100, 300)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, PermissionDenied),
        (403, PermissionDenied),
        (404, NotFound),
        (410, NotFound),
        (407, BadConfig),
        (511, BadConfig),
        (400, BadRequest),
        (429, Throttled),
        (503, Throttled),
        (500, StoreUnavailable),
    ],
)
async def test_refusals(server: S3Server, status: int, kind: type[Exception]) -> None:
    """Each status is the error that its caller can act on, with the object's URL."""
    server.script("data", "a.tar", Fault(status=status, code="x", headers=(("Retry-After", "7"),)))
    async with opened(server.url) as store:
        with pytest.raises(kind) as caught:
            await store.head("data/a.tar")
    assert type(caught.value) is kind
    assert getattr(caught.value, "object", "") == f"{server.url}/data/a.tar"
    assert getattr(caught.value, "retry_after_s", 7.0) == 7.0


async def test_no_answer(unused_tcp_port: int) -> None:
    """A host that refuses connections is named."""
    async with opened(f"http://127.0.0.1:{unused_tcp_port}") as store:
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{unused_tcp_port}") as caught:
            await store.head("x")
    assert "proxy" in caught.value.hint


async def test_certificates_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is trusted if SSL_CERT_FILE holds its authority, and else refused with that advice."""
    authority = Authority(tmp_path)
    with S3Server(cert=authority.issue("store")) as server:
        server.put("data", "a.tar", DATA)
        async with opened(server.url) as store:
            with pytest.raises(BadConfig, match="certificate is not accepted") as caught:
                await store.head("data/a.tar")
            assert "SSL_CERT_FILE" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", os.fspath(authority.ca_path))
        async with opened(server.url) as store:
            assert await read(store, await store.head("data/a.tar"), 0, 256) == DATA[:256]


async def test_a_redirect_is_remembered_until_it_ends(server: S3Server) -> None:
    """One redirect serves all ranges of an object while its signature lives; then the origin is asked again."""
    ends = int(time.time()) + 3600  # noqa: TID251 - a signature ends at a date
    server.script(
        "data", "moved", *[redirect(f"/data/a.tar?Expires={ends}")] * 2, redirect("/data/a.tar?Expires=1000000000")
    )
    async with opened(server.url) as store:
        ref = await store.head("data/moved")
        assert (ref.key, ref.size_bytes) == ("data/moved", len(DATA))
        server.requests.clear()
        assert [await read(store, ref, at, at + 10) for at in (0, 50, 90)] == [DATA[at : at + 10] for at in (0, 50, 90)]
        assert [request.key for request in server.requests] == ["moved", "a.tar", "a.tar", "a.tar"]
        server.script("data", "a.tar", Fault(status=403, code="AccessDenied"))
        server.requests.clear()
        assert await read(store, ref, 5, 15) == DATA[5:15]  # the signature was refused early
        assert [request.key for request in server.requests] == ["a.tar", "moved", "a.tar"]


async def test_a_redirect_that_has_ended_is_not_used(server: S3Server) -> None:
    """An address whose signature has ended is requested anew for each read."""
    server.script("data", "moved", always=redirect("/data/a.tar?Expires=1000000000"))
    async with opened(server.url) as store:
        ref = await store.head("data/moved")
        server.requests.clear()
        for _ in range(2):
            await read(store, ref, 0, 10)
        assert [request.key for request in server.requests] == ["moved", "a.tar"] * 2


async def test_a_redirect_to_a_host_that_is_gone_is_forgotten(server: S3Server) -> None:
    """The next try asks the object's own server where the object is now."""
    async with opened(server.url) as store:
        etag = (await store.head("data/a.tar")).etag
        head = f'HTTP/1.1 206 P\r\nETag: "{etag}"\r\nContent-Range: bytes 0-0/{len(DATA)}\r\nContent-Length: 1\r\n\r\n'
        async with RawServer(*[head.encode() + DATA[:1]] * 2) as gone:
            server.script("data", "moved", *[redirect(f"http://127.0.0.1:{gone.port}/a.tar")] * 2)
            server.put("data", "moved", DATA)
            ref = await store.head("data/moved")
            assert await read(store, ref, 0, 1) == DATA[:1]
        with pytest.raises(StoreUnavailable):
            await read(store, ref, 5, 15)
        assert await read(store, ref, 5, 15) == DATA[5:15]


async def test_a_name_that_a_redirect_gave_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name's address may change after the redirect. It then leads no closer to this machine than before."""
    addresses = ["127.0.0.1"]
    monkeypatch.setattr(pool, "_RESOLVE_EVERY_S", -1.0)
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda _host, port, **_more: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[0], port))],
    )
    head = (
        b'HTTP/1.1 206 P\r\nETag: "e"\r\nContent-Range: bytes 0-0/9\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx'
    )
    async with RawServer(head, head, head) as cdn:
        moved = f"HTTP/1.1 302 F\r\nLocation: http://cdn.example:{cdn.port}/x\r\nContent-Length: 0\r\n\r\n".encode()
        limits = SourceOptions(connect_timeout_s=1.0)
        async with RawServer(moved, moved) as raw, opened(f"http://127.0.0.1:{raw.port}", limits) as store:
            ref = await store.head("x")
            assert await read(store, ref, 0, 1) == b"x"
            addresses[0] = "169.254.169.254"
            with pytest.raises(PermissionDenied, match=r"169\.254\.169\.254"):
                await read(store, ref, 0, 1)


async def test_a_server_that_no_longer_redirects(server: S3Server) -> None:
    """An object that its own server sends again is read there from then on."""
    server.script("data", "moved", *[redirect("/data/a.tar")] * 2)
    server.put("data", "moved", DATA)
    async with opened(server.url) as store:
        ref = await store.head("data/moved")
        await read(store, ref, 0, 10)
        server.script("data", "a.tar", Fault(status=403, code="AccessDenied"))
        for _ in range(2):
            server.requests.clear()
            assert await read(store, ref, 5, 15) == DATA[5:15]
        assert [request.key for request in server.requests] == ["moved"]


async def test_redirects_end(server: S3Server) -> None:
    """A circle of redirects is an error after five, and so is a redirect without a location."""
    server.script("data", "a.tar", always=redirect("/data/a.tar"))
    async with opened(server.url) as store:
        with pytest.raises(BadResponse, match="at most 5 redirects"):
            await store.head("data/a.tar")
        assert len(server.requests) == 6
        server.calm()
        server.script("data", "a.tar", Fault(status=302, code="x"))
        with pytest.raises(BadResponse, match="location"):
            await store.head("data/a.tar")


async def test_a_redirect_to_the_metadata_service_is_refused(server: S3Server) -> None:
    """A web server cannot make the daemon read link-local addresses, where clouds have their credentials."""
    server.script("data", "a.tar", redirect("http://169.254.169.254/latest/meta-data/"))
    async with opened(server.url) as store:
        with pytest.raises(PermissionDenied, match=r"169\.254\.169\.254"):
            await store.head("data/a.tar")


async def test_a_proxy_carries_the_bytes(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment names a proxy, requests go through it, and the bytes arrive."""
    head = 'HTTP/1.1 206 Partial\r\nETag: "e"\r\nContent-Range: bytes {}/9\r\nContent-Length: {}\r\n\r\n'
    async with RawServer((head.format("0-0", 1) + "x").encode(), (head.format("2-5", 4) + "wxyz").encode()) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        async with opened("http://data.example.com") as store:
            ref = await store.head("a b.tar?x=1")
            assert ref == ObjectRef("http://data.example.com", "a b.tar?x=1", 9, "e")
            assert await read(store, ref, 2, 6) == b"wxyz"
        assert proxy.requests[0].startswith(b"GET http://data.example.com/a%20b.tar?x=1 HTTP/1.1")


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (407, BadConfig, "the proxy that https_proxy names wants a user name and a password"),
        (
            403,
            BadConfig,
            "the proxy that https_proxy names refuses connections to https://data.example.com: status 403",
        ),
        (502, StoreUnavailable, "the proxy that https_proxy names cannot reach https://data.example.com: status 502"),
        (
            0,
            StoreUnavailable,
            "the proxy that https_proxy names: ConnectionResetError: the proxy closed the connection",
        ),
    ],
)
async def test_a_proxy_without_a_tunnel_is_named(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: type[Exception], text: str
) -> None:
    """What a proxy says in place of a tunnel, or that it closes, names the proxy's variable, as with a bucket."""
    said = f"HTTP/1.1 {status} Odd\r\nContent-Length: 0\r\n\r\n".encode() if status else b""
    async with RawServer(*[[said, b""]] * 4) as proxy:
        monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{proxy.port}")
        async with opened("https://data.example.com") as store:
            with pytest.raises(kind) as caught:
                await store.head("a.tar")
        assert text in str(caught.value)
        assert "correct https_proxy, or add data.example.com to NO_PROXY" in str(caught.value)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "excluded", "bypassed"),
    [
        ("http://a.example:9000/x", "a.example", True),
        ("http://a.example:9000/x", "a.example:9000", True),
        ("http://a.example:9000/x", "a.example:9001", False),
        ("http://a.example:9000/x", ".example", True),
        ("http://a.example:9000/x", "10.0.0.0/8, EXAMPLE", True),
        ("http://ba.example/x", "a.example", False),
        ("http://user:password@a.example:9000/x", "a.example:9000", True),
        ("http://[::1]:9000/x", "::1", True),
        ("http://[::1]:9000/x", "[::1]", True),
        ("http://[::1]:9000/x", "::/64", True),
        ("http://10.1.2.3/x", "10.0.0.0/8", True),
        ("http://11.1.2.3/x", "10.0.0.0/8", False),
        ("http://a.example/x", "*", True),
    ],
)
def test_what_no_proxy_excludes(monkeypatch: pytest.MonkeyPatch, url: str, excluded: str, bypassed: bool) -> None:
    """NO_PROXY names hosts, domains, ports and networks, for each kind of request alike."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", excluded)
    assert proxy_of(url) == ("" if bypassed else "http://127.0.0.1:9")


def test_a_date_beyond_all_calendars_is_no_time_to_wait() -> None:
    """Whatever a server says about when to come again, it is a number of seconds or nothing."""
    assert retry_after_s({"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}) is None


async def test_a_server_behind_a_proxy_leads_to_no_private_host(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts of the private network need no proxy, so the proxy cannot refuse them."""
    moved = f"HTTP/1.1 302 F\r\nLocation: {server.url}/data/a.tar\r\nContent-Length: 0\r\n\r\n".encode()
    async with RawServer(moved) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with opened("http://data.example.com") as store:
            with pytest.raises(PermissionDenied, match="public address"):
                await store.head("x")
    assert not server.requests
