"""Our HTTP reader: whatever comes, exact bytes in the target or an error, and nothing after that."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError

from feedd.errors import BadResponse, ObjectChanged
from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.s3 import pool as s3_pool
from feedd.fetch.s3.pool import ConnectionPool, Endpoint
from tests.budget import PATIENT_S
from tests.fakes.fetchers import until
from tests.fakes.raw_server import RawServer
from tests.fakes.sinks import into

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from feedd.fetch.s3.connection import Answer
    from tests.fakes.raw_server import Answer as Sent

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = bytes(range(256)) * 400
UNTOUCHED = 0xEE


def head(size_bytes: int = len(BODY), status: str = "206 Partial Content", more: bytes = b"") -> bytes:
    """Make a head."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {size_bytes}\r\n".encode() + more + b"\r\n"


@contextlib.asynccontextmanager
async def pool_of(
    port: int, host: str = "127.0.0.1", read_timeout_s: float = PATIENT_S
) -> AsyncIterator[ConnectionPool]:
    """Open a pool."""
    options = SourceOptions(
        connect_timeout_s=PATIENT_S, read_timeout_s=read_timeout_s, parts_in_flight=4, hedge_share=0.0
    )
    pool = ConnectionPool(Endpoint(f"http://{host}:{port}", host, port, None), options)
    try:
        yield pool
    finally:
        await pool.aclose()


async def get(pool: ConnectionPool, size_bytes: int = len(BODY)) -> bytes:
    """Send a request, and check that bytes next to the target stay as they are."""
    buffer = bytearray([UNTOUCHED]) * (size_bytes + 16)
    target = memoryview(buffer)[8:-8]
    answer = await pool.request(REQUEST, into(target), lambda _: None)
    assert answer.status == 206
    assert set(buffer[:8] + buffer[-8:]) == {UNTOUCHED}
    return bytes(target)


GOOD: dict[str, Sent] = {
    "in one piece": head() + BODY,
    "byte by byte": [bytes([byte]) for byte in head() + BODY[:5]] + [BODY[5:]],
    "head and body apart": [head(), BODY],
    "split at the empty line": [head()[:-3], head()[-3:-1], head()[-1:] + BODY[:1], BODY[1:]],
    "after 100 continue": [b"HTTP/1.1 100 Continue\r\n\r\n", head() + BODY],
    "with 100 continue": b"HTTP/1.1 100 Continue\r\n\r\n" + head() + BODY,
    "http 1.0": b"HTTP/1.0 206 OK\r\nContent-Length: 102400\r\n\r\n" + BODY,
    "long head": head(more=b"x-a: " + b"y" * 8000 + b"\r\n") + BODY,
    "told to close": head(more=b"Connection: close\r\n") + BODY,
}


@pytest.mark.parametrize("sent", GOOD.values(), ids=GOOD.keys())
async def test_any_cut_of_a_good_answer(sent: Sent) -> None:
    """However the bytes are cut, the body arrives exactly, and the next request is answered as well."""
    async with RawServer(sent, head() + BODY) as server, pool_of(server.port) as pool:
        assert await get(pool) == BODY
        assert await get(pool) == BODY


async def test_empty_body() -> None:
    """A body of no bytes is complete with its head."""
    async with RawServer(head(0), head(0)) as server, pool_of(server.port) as pool:
        assert await get(pool, 0) == b""
        assert await get(pool, 0) == b""
        assert server.connection_count == 1


BAD: dict[str, Sent] = {
    "no http": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "only line ends": b"\r\n\r\n\r\n\r\n",
    "no content-length": [b"HTTP/1.1 206 OK\r\n\r\n" + BODY, b""],
    "chunks": b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "chunks and length": b"HTTP/1.1 206 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": head(more=b"Content-Length: 5\r\n") + BODY,
    "length that is none": b"HTTP/1.1 206 OK\r\nContent-Length: 1e3\r\n\r\n" + BODY,
    "negative length": b"HTTP/1.1 206 OK\r\nContent-Length: -1\r\n\r\n" + BODY,
    "shorter": head(len(BODY) - 1) + BODY[:-1],
    "longer": head(len(BODY) + 1) + BODY + b"x",
    "endless head": head()[:-2] + b"x-y: " + b"z" * 20_000,
    "folded header": head(more=b"ETag: a\r\n b\r\n") + BODY,
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "two answers to an error": head(2, "404 Not Found") + b"no" + head(2, "404 Not Found") + b"no",
}


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD.keys())
async def test_anything_else_is_refused(sent: Sent) -> None:
    """What is not exactly one answer of the right length is refused, its connection is not used again."""
    async with RawServer(sent, head() + BODY) as server, pool_of(server.port) as pool:
        with pytest.raises(BadResponse):
            await get(pool)
        assert await get(pool) == BODY
        assert server.connection_count == 2


BROKEN: dict[str, Sent] = {
    "before the head": b"",
    "in the head": [head()[:20], b""],
    "before the body": [head(), b""],
    "in the body": [head() + BODY[:-1], b""],
    "in an error": [head(10, "500 Oh") + b"12345", b""],
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN.keys())
async def test_connection_that_breaks(sent: Sent) -> None:
    """A connection closed before the end is an error that says how far it came, and is not used again."""
    async with RawServer(sent, head() + BODY) as server, pool_of(server.port) as pool:
        with pytest.raises(ConnectionError, match="closed after"):
            await get(pool)
        assert await get(pool) == BODY
        assert server.connection_count == 2


@pytest.mark.parametrize(
    ("sent", "body", "kept"),
    [
        (head(5, "404 Not Found") + b"hello", b"hello", True),
        (b"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello", True),
        ([b"HTTP/1.1 500 No\r\n\r\nhel", b"lo", b""], b"hello", False),
        (head(200_000, "502 Bad") + bytes(200_000), b"", False),
        (head(0, "503 Slow"), b"", True),
    ],
    ids=["length", "chunks", "until close", "too long", "empty"],
)
async def test_errors_bring_their_own_body(sent: Sent, body: bytes, kept: bool) -> None:
    """An error's body, however framed, is kept up to a limit; the target stays untouched."""
    target = bytearray([UNTOUCHED]) * len(BODY)
    async with RawServer(sent, head() + BODY) as server, pool_of(server.port) as pool:
        answer = await pool.request(REQUEST, into(target), lambda _: None)
        assert (answer.status >= 400, answer.body) == (True, body)
        assert set(target) == {UNTOUCHED}
        assert await get(pool) == BODY
        assert server.connection_count == (1 if kept else 2)


async def test_trailers_without_end_are_refused() -> None:
    """What follows a chunked error's body as headers is bounded, as the body is."""
    trailers = b"".join(b"x-%d: %s\r\n" % (number, b"v" * 1000) for number in range(100))
    sent = b"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + trailers
    target = bytearray(len(BODY))
    async with RawServer(sent, head() + BODY) as server, pool_of(server.port) as pool:
        with pytest.raises(BadResponse, match="headers of at most"):
            await pool.request(REQUEST, into(target), lambda _: None)
        assert await get(pool) == BODY


async def test_head_is_judged_before_the_body() -> None:
    """What the judge refuses leaves the target untouched, although the body is already here."""

    def refuse(answer: Answer) -> None:
        raise ObjectChanged(f"got {answer.headers['etag']}")

    target = bytearray([UNTOUCHED]) * len(BODY)
    async with RawServer(head(more=b"ETag: x\r\n") + BODY) as server, pool_of(server.port) as pool:
        with pytest.raises(ObjectChanged, match="got x"):
            await pool.request(REQUEST, into(target), refuse)
        assert set(target) == {UNTOUCHED}


STAGES: dict[str, bytes | None] = {
    "silence": None,
    "in the head": head()[:-1],
    "behind the head": head(),
    "in the body": head() + BODY[:50_000],
    "in an error": head(10, "500 Oh") + b"12345",
}


@pytest.mark.parametrize("sent", STAGES.values(), ids=STAGES.keys())
async def test_nothing_is_written_after_cancelling(sent: bytes | None) -> None:
    """Cancelled at any stage, the target is free at once and stays as it is, whatever the server sends then."""
    async with (
        RawServer([sent, None, *[b"\xaa" * 20_000] * 20]) as server,
        pool_of(server.port) as pool,
    ):
        target = bytearray([UNTOUCHED]) * len(BODY)
        read = asyncio.ensure_future(pool.request(REQUEST, into(target), lambda _: None))
        await until(lambda: server.requests)
        await asyncio.sleep(0.005)
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        del read
        found = bytes(target)
        server.go.set()
        await asyncio.sleep(0.05)
        assert bytes(target) == found
        assert UNTOUCHED in found
        target.clear()  # raises BufferError while anybody holds the memory
        server.answer(head() + BODY)
        assert await get(pool) == BODY


@pytest.mark.parametrize("sent", [*BROKEN.values(), *BAD.values()], ids=[*BROKEN.keys(), *BAD.keys()])
async def test_no_cycle_holds_the_target(sent: Sent) -> None:
    """After an error the memory is free without a garbage collection."""
    gc.disable()
    try:
        async with RawServer(sent) as server, pool_of(server.port) as pool:
            target = bytearray(len(BODY))
            with contextlib.suppress(BadResponse, OSError):
                await pool.request(REQUEST, into(target), lambda _: None)
            target.clear()
    finally:
        gc.enable()


@pytest.mark.parametrize("sent", STAGES.values(), ids=STAGES.keys())
async def test_silence_has_an_end(sent: Sent) -> None:
    """A server that stops in the middle is left after the read timeout."""
    async with RawServer(sent) as server, pool_of(server.port, read_timeout_s=0.05) as pool:
        async with asyncio.timeout(PATIENT_S):
            with pytest.raises(TimeoutError, match="no byte"):
                await get(pool)


async def test_closed_while_idle_goes_unnoticed() -> None:
    """A kept connection that the server closed meanwhile costs nothing but a new one."""
    async with RawServer(head() + BODY, b"", head() + BODY) as server, pool_of(server.port) as pool:
        assert await get(pool) == BODY
        assert await get(pool) == BODY
        assert (len(server.requests), server.connection_count) == (3, 2)


async def test_last_used_goes_first() -> None:
    """Requests one after the other share one connection, however many were open before."""
    async with RawServer(*[[head(), BODY]] * 9) as server, pool_of(server.port) as pool:
        await asyncio.gather(*(get(pool) for _ in range(4)))
        opened = server.connection_count
        for _ in range(3):
            await get(pool)
        assert server.connection_count == opened <= 4


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection nobody takes up is given up before the server would."""
    monkeypatch.setattr(s3_pool, "_IDLE_S", 0.02)
    async with RawServer(head() + BODY, head() + BODY) as server, pool_of(server.port) as pool:
        await get(pool)
        await until(lambda: "0 of 0" in repr(pool))
        await get(pool)
        assert server.connection_count == 2


async def test_bytes_nobody_asked_for() -> None:
    """Bytes that come while a connection is idle end it."""
    async with (
        RawServer([head() + BODY, b"HTTP/1.1 206 OK\r\n"], head() + BODY) as server,
        pool_of(server.port) as pool,
    ):
        assert await get(pool) == BODY
        await until(lambda: "0 of 0" in repr(pool))
        assert await get(pool) == BODY


async def test_requests_at_one_time_are_bounded() -> None:
    """No more connections than small parts in flight: eight in each of four places."""
    async with RawServer(*[[head(), BODY]] * 60) as server, pool_of(server.port) as pool:
        assert await asyncio.gather(*(get(pool) for _ in range(60))) == [BODY] * 60
        assert server.connection_count <= 32


async def test_addresses_are_tried_in_turn() -> None:
    """A name with an address where nobody listens is still reached."""
    async with RawServer(head() + BODY) as server, pool_of(server.port, "localhost") as pool:
        pool._addresses.learn(["127.0.0.2", "127.0.0.1"])
        assert await get(pool) == BODY


async def test_nobody_there() -> None:
    """A refused connection and a name that does not exist are botocore's own errors."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with pool_of(port) as pool:
        with pytest.raises(EndpointConnectionError, match=str(port)):
            await get(pool)
    async with pool_of(port, "name.invalid") as pool:
        with pytest.raises((EndpointConnectionError, ConnectTimeoutError)):
            await get(pool)
