"""Reads through proxies: tunnels, requests with a whole URL, logins, proxies with TLS, and refusals."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
from typing import TYPE_CHECKING, Final

import pytest
from botocore.exceptions import ProxyConnectionError

from feedd.errors import BadConfig, BadResponse
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.proxy_rules import Proxy, proxy_for
from feedd.fetch.s3.bodies import Files
from feedd.fetch.s3.pool import ConnectionPool, Endpoint
from feedd.fetch.s3.store import S3Store
from feedd.fetch.s3.transfer import TransferThreads
from feedd.flow.range_sinks import FileSink
from feedd.values import ByteRange, ObjectRef
from tests.budget import PATIENT_S
from tests.fakes.forward_proxy import ForwardProxy
from tests.fakes.raw_server import RawServer
from tests.fakes.s3.server import S3Server
from tests.fakes.sinks import content, into, memory_sink_file, sink_file
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

SIZE: Final = 1_000_003
DATA: Final = os.urandom(SIZE)
LOGIN: Final = f"Basic {base64.b64encode(b'me:p@ss').decode()}"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Make an authority for store and proxy."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def _no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host is excluded from proxies."""
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def served(own: Authority, *, tls: bool) -> Iterator[tuple[S3Server, ObjectRef]]:
    """Run a store with one object."""
    with S3Server(cert=own.issue("store") if tls else None) as server:
        yield server, ObjectRef("s3://bucket", "a key", SIZE, server.put("bucket", "a key", DATA))


def port_of(server: S3Server) -> int:
    """Return the port of a server."""
    return int(server.url.rpartition(":")[2])


def context_of(own: Authority) -> ssl.SSLContext:
    """Return the TLS context of a proxy."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*own.issue("proxy"))
    return context


@contextlib.asynccontextmanager
async def opened(url: str, own: Authority) -> AsyncIterator[S3Store]:
    """Open a store."""
    access = S3Options(
        endpoint_url=url, region="us-east-1", anonymous=True, addressing_style="path", ca_bundle=str(own.ca_path)
    )
    options = SourceOptions(s3={"*": access}, connect_timeout_s=PATIENT_S, read_timeout_s=PATIENT_S)
    store = S3Store("bucket", options)
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("in_memory", [True, False], ids=["tmpfs", "disk"])
@pytest.mark.parametrize("proxy_tls", [False, True], ids=["proxy", "proxy-tls"])
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_bytes_come_through_a_proxy(
    own: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, tls: bool, proxy_tls: bool, in_memory: bool
) -> None:
    """Large and small bodies arrive through one connection; only the proxy gets its login."""
    made = memory_sink_file(SIZE) if in_memory else sink_file(tmp_path / "body", SIZE)
    with served(own, tls=tls) as (server, ref), made as file:
        async with ForwardProxy(port_of(server), context_of(own) if proxy_tls else None) as proxy:
            scheme = "https" if tls else "http"
            monkeypatch.setenv(f"{scheme}_proxy", proxy.url.replace("://", "://me:p%40ss@"))
            async with opened(f"{scheme}://127.0.0.1:9", own) as store:
                small = bytearray(9)
                await store.read_into(ref, ByteRange(1, 10), into(small))
                await store.read_into(ref, ByteRange(0, SIZE), FileSink(file, 0, SIZE))
                await store.read_into(ref, ByteRange(5, 105), FileSink(file, 5, 100))
                assert content(FileSink(file, 0, SIZE)) == DATA
                assert bytes(small) == DATA[1:10]
        assert (proxy.connection_count, len(proxy.heads)) == (1, 1 if tls else 3)
        wanted = "CONNECT 127.0.0.1:9 HTTP/1.1" if tls else "GET http://127.0.0.1:9/bucket/a%20key HTTP/1.1"
        assert all(head.startswith(f"{wanted}\r\n") for head in proxy.heads)
        assert all(f"\r\nProxy-Authorization: {LOGIN}\r\n" in head for head in proxy.heads)
        got = [request.headers for request in server.requests if request.op == "GET"]
        assert len(got) == 3
        assert {headers["host"] for headers in got} == {"127.0.0.1:9"}
        assert not any("proxy-authorization" in map(str.lower, headers) for headers in got)


@pytest.mark.slow
async def test_no_proxy_excludes_the_store(own: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that NO_PROXY excludes is read without the proxy."""
    with served(own, tls=False) as (server, ref):
        async with ForwardProxy(port_of(server)) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.setenv("no_proxy", "10.0.0.0/8, 127.0.0.0/8")
            async with opened(server.url, own) as store:
                target = bytearray(9)
                await store.read_into(ref, ByteRange(1, 10), into(target))
                assert bytes(target) == DATA[1:10]
        assert not proxy.heads


@contextlib.asynccontextmanager
async def pool_through(proxy: RawServer, timeout_s: float = PATIENT_S) -> AsyncIterator[ConnectionPool]:
    """Open a pool to an endpoint with TLS behind a proxy."""
    transfer_threads = TransferThreads(1)
    named = Proxy("http", "127.0.0.1", proxy.port)
    endpoint = Endpoint("https://[::5]:9", "::5", 9, ssl.create_default_context(), proxy=named)
    pool = ConnectionPool(endpoint, SourceOptions(connect_timeout_s=timeout_s), Files(transfer_threads))
    try:
        yield pool
    finally:
        await pool.aclose()
        transfer_threads.close()


async def ask(pool: ConnectionPool) -> None:
    """Send a request."""
    await pool.request(b"GET / HTTP/1.1\r\n\r\n", into(bytearray(1)), lambda _: None)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", ProxyConnectionError, "127.0.0.1"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n", ProxyConnectionError, "127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\n\r\nwelcome", BadResponse, "more bytes"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", BadResponse, "expected an http answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000, BadResponse, "longer"),
        ((b"",), ProxyConnectionError, "127.0.0.1"),
    ],
    ids=["login", "redirect", "bytes", "ssh", "long", "closed"],
)
async def test_a_tunnel_that_does_not_open(answer: bytes, error: type[Exception], words: str) -> None:
    """A proxy that answers CONNECT with anything but an empty 2xx is the end of the request, and leaves no socket."""
    async with RawServer(answer) as proxy, pool_through(proxy) as pool:
        with pytest.raises(error, match=words):
            await ask(pool)
        assert not pool.connections
    assert proxy.requests[0].startswith(b"CONNECT [::5]:9 HTTP/1.1\r\nHost: [::5]:9\r\n")


async def test_a_silent_proxy_is_not_waited_for() -> None:
    """A proxy that does not answer CONNECT ends the request with the time-out of connections."""
    async with RawServer() as proxy, pool_through(proxy, 0.2) as pool:
        with pytest.raises(ProxyConnectionError):
            await ask(pool)


async def test_a_tunnel_given_up_leaves_nothing() -> None:
    """A request that is cancelled while the proxy thinks leaves neither socket nor task."""
    asked = asyncio.Event()
    async with RawServer(None) as proxy, pool_through(proxy) as pool:
        proxy.on_request = asked.set
        asking = asyncio.create_task(ask(pool))
        await asyncio.wait_for(asked.wait(), PATIENT_S)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not pool.connections


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ("gate.example:3128", Proxy("http", "gate.example", 3128)),
        ("http://gate.example", Proxy("http", "gate.example", 80)),
        ("https://me:p%40ss@[::1]", Proxy("https", "::1", 443, LOGIN)),
    ],
)
def test_a_proxy_is_read_as_curl_reads_it(monkeypatch: pytest.MonkeyPatch, named: str, wanted: Proxy) -> None:
    """The scheme and the port may be missing; user name and password are percent-decoded and never shown."""
    monkeypatch.setenv("https_proxy", named)
    found = proxy_for("https://store.example")
    assert found == wanted
    assert LOGIN not in repr(found)


@pytest.mark.parametrize("named", ["socks5://gate.example:1080", "http://", "http://gate:port"])
def test_a_proxy_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """A proxy that is none of HTTP is an error that names the variable, and not its value, which may be secret."""
    monkeypatch.setenv("https_proxy", named)
    with pytest.raises(BadConfig, match="https_proxy") as caught:
        proxy_for("https://store.example")
    assert "gate" not in str(caught.value)
