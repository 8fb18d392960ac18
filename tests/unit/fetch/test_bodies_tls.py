"""Bodies under TLS: heads on the loop, bodies decrypted by a mover, whatever records they came in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Self

import pytest
from botocore.exceptions import EndpointConnectionError

from feedd.errors import BadResponse
from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.s3.bodies import Files
from feedd.fetch.s3.pool import ConnectionPool, Endpoint
from feedd.fetch.s3.transfer import TransferThreads
from feedd.flow.file_writing import left_alone
from feedd.flow.range_sinks import FileSink
from feedd.values import ReadProgress
from tests.budget import PATIENT_S
from tests.fakes.sinks import content, sink_file
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from feedd.flow.sink_file import SinkFile

SIZE = 1_000_003
DATA = os.urandom(SIZE)
HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n\r\n" % SIZE
REQUEST = b"GET /bucket/key HTTP/1.1\r\nHost: x\r\n\r\n"


class Server:
    """Serves TLS, one connection after another, each of its requests with ``answer``, until that is False."""

    def __init__(self, context: ssl.SSLContext | None, answer: Callable[[socket.socket], bool]) -> None:
        self._context, self._answer = context, answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.connection_count = self.resumed_count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(PATIENT_S)
        assert not self._thread.is_alive()

    def forget_sessions(self, authority: Authority) -> None:
        """Have the keys of another process: sessions from before are unknown."""
        assert self._context is not None
        old, self._context = self._context, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*authority.issue("store"))
        self._context.minimum_version, self._context.maximum_version = old.minimum_version, old.maximum_version

    def _run(self) -> None:
        while True:
            try:
                plain, _ = self._listening.accept()
            except OSError:
                return
            self.connection_count += 1
            with contextlib.suppress(OSError), plain:
                plain.settimeout(10)
                if self._context is None:
                    self._answer(plain)
                    continue
                with self._context.wrap_socket(plain, server_side=True) as secured:
                    self.resumed_count += bool(secured.session_reused)
                    while secured.recv(65536) and self._answer(secured):
                        pass


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SinkFile]:
    """A file to receive into."""
    with sink_file(tmp_path / "body", SIZE) as file:
        yield file


@contextlib.asynccontextmanager
async def pool_to(server: Server, authority: Authority) -> AsyncIterator[ConnectionPool]:
    """A pool of connections to it, with movers."""
    trusted = ssl.create_default_context(cafile=str(authority.ca_path))
    transfer_threads = TransferThreads(2)
    pool = ConnectionPool(
        Endpoint(f"https://127.0.0.1:{server.port}", "127.0.0.1", server.port, trusted),
        SourceOptions(read_timeout_s=PATIENT_S, connect_timeout_s=PATIENT_S),
        Files(transfer_threads),
    )
    try:
        yield pool
    finally:
        await pool.aclose()
        transfer_threads.close()


async def body_of(pool: ConnectionPool, file: SinkFile) -> bytes:
    """Receive one into the file."""
    sink = FileSink(file, 0, SIZE)
    sink.write_now(0, memoryview(bytes(SIZE)))
    progress = ReadProgress()
    await pool.request(REQUEST, sink, lambda _: None, progress=progress)
    assert progress.filled_bytes == SIZE
    return content(sink)


def in_records(sizes: tuple[int, ...], data: bytes = HEAD + DATA) -> Callable[[socket.socket], bool]:
    """Answer in records of these sizes, the last for all that is left."""

    def answer(sock: socket.socket) -> bool:
        at, number = 0, 0
        while at < len(data):
            size = sizes[min(number, len(sizes) - 1)]
            sock.sendall(data[at : at + size])
            at, number = at + size, number + 1
        return True

    return answer


@pytest.mark.parametrize(
    "sizes",
    [(1 << 20,), (16384,), (1000,), (len(HEAD), 300_000, 1), (len(HEAD) + 1, 16384)],
    ids=["at-once", "full", "small", "tiny", "head-first"],
)
async def test_a_body_in_any_records(
    context: ssl.SSLContext, authority: Authority, file: SinkFile, sizes: tuple[int, ...]
) -> None:
    """However the other side cuts it, every byte lands, and the connection serves again."""
    if sizes[-1] == 1:
        sizes = (*sizes[:-1], SIZE - 300_020, 1)  # the last twenty bytes in a record each
    with Server(context, in_records(sizes)) as server:
        async with pool_to(server, authority) as pool:
            for _ in range(3):
                assert await body_of(pool, file) == DATA
    assert server.connection_count == 1


async def test_many_at_a_time(context: ssl.SSLContext, authority: Authority, tmp_path: Path) -> None:
    """Bodies of several connections do not get into one another's file or cipher."""
    answer = in_records((16384,))
    servers = [Server(context, answer) for _ in range(4)]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        async with contextlib.AsyncExitStack() as pools:
            asked = []
            for number, server in enumerate(servers):
                file = stack.enter_context(sink_file(tmp_path / f"{number}", SIZE))
                asked.append(body_of(await pools.enter_async_context(pool_to(server, authority)), file))
            assert await asyncio.gather(*asked) == [DATA] * 4


async def test_a_new_connection_resumes_the_session(
    context: ssl.SSLContext, authority: Authority, file: SinkFile
) -> None:
    """Later connections of a pool spare the certificate, and go on with a whole handshake if the server forgot."""

    def answer(sock: socket.socket) -> bool:
        sock.sendall(HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + DATA)
        return False

    with Server(context, answer) as server:
        async with pool_to(server, authority) as pool:
            for _ in range(3):
                assert await body_of(pool, file) == DATA
            assert (server.connection_count, server.resumed_count) == (3, 2)
            server.forget_sessions(authority)
            for _ in range(3):
                assert await body_of(pool, file) == DATA
            assert (server.connection_count, server.resumed_count) == (6, 4)


@pytest.mark.parametrize("kept_bytes", [0, 20, 400_000, len(HEAD) + SIZE - 1])
async def test_an_end_before_the_body_does(
    context: ssl.SSLContext, authority: Authority, file: SinkFile, kept_bytes: int
) -> None:
    """A connection closed anywhere before the end is an error, not a short body."""

    def answer(sock: socket.socket) -> bool:
        sock.sendall((HEAD + DATA)[:kept_bytes])
        return False

    with Server(context, answer) as server:
        async with pool_to(server, authority) as pool:
            with pytest.raises(ConnectionResetError, match="connection closed after"):
                await body_of(pool, file)


async def test_more_than_the_body(context: ssl.SSLContext, authority: Authority, file: SinkFile) -> None:
    """What nobody asked for never becomes part of an answer: this one or the next."""
    with Server(context, in_records((1 << 20,), HEAD + DATA + b"surplus")) as server:
        async with pool_to(server, authority) as pool:
            for _ in range(2):
                with contextlib.suppress(BadResponse):
                    assert await body_of(pool, file) == DATA
    assert server.connection_count == 2


async def test_a_damaged_record(context: ssl.SSLContext, authority: Authority, file: SinkFile) -> None:
    """Bytes that are not what the other side encrypted end the body as a broken connection."""

    def answer(sock: socket.socket) -> bool:
        assert isinstance(sock, ssl.SSLSocket)
        sock.sendall(HEAD + DATA[:400_000])
        with socket.socket(fileno=os.dup(sock.fileno())) as raw:
            raw.sendall(b"\x17\x03\x03\x40\x00" + os.urandom(16384) * 40)
        return False

    with Server(context, answer) as server:
        async with pool_to(server, authority) as pool:
            with pytest.raises(ConnectionResetError, match=r"decryption|bad record mac|DECRYPTION"):
                await body_of(pool, file)


async def test_a_body_stopped_midway(context: ssl.SSLContext, authority: Authority, file: SinkFile) -> None:
    """A body that is cancelled ends its write soon, and says when; nobody writes to the file after that."""
    half = threading.Event()

    def answer(sock: socket.socket) -> bool:
        sock.sendall((HEAD + DATA)[: SIZE // 2])
        half.set()
        sock.recv(100)  # until the client hangs up
        return False

    with Server(context, answer) as server:
        async with pool_to(server, authority) as pool:
            asking = asyncio.create_task(body_of(pool, file))
            assert await asyncio.to_thread(half.wait, 10)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await left_alone(file.writers, 10)  # as the cache does before it reuses a file
            FileSink(file, 0, SIZE).write_now(0, memoryview(bytes(SIZE)))
        assert content(FileSink(file, 0, SIZE)) == bytes(SIZE)


async def test_somebody_who_is_not_trusted(context: ssl.SSLContext, tmp_path: Path, file: SinkFile) -> None:
    """Another authority's certificate is refused, and said to be."""
    with Server(context, in_records((16384,))) as server:
        async with pool_to(server, Authority(tmp_path)) as pool:
            with pytest.raises(ssl.SSLCertVerificationError):
                await body_of(pool, file)


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["nothing", "plain-http"])
async def test_somebody_who_does_not_speak_tls(authority: Authority, file: SinkFile, words: bytes) -> None:
    """A port that answers otherwise, or hangs up, cannot be connected to."""

    def answer(sock: socket.socket) -> bool:
        sock.recv(100)
        sock.sendall(words)
        return False

    with Server(None, answer) as server:
        async with pool_to(server, authority) as pool:
            with pytest.raises(EndpointConnectionError):
                await body_of(pool, file)
