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
from feedd.fetch.s3.connection_pool import ConnectionPool, Endpoint
from feedd.fetch.s3.tls_transport import TlsEndpoint, TlsTransport
from feedd.fetch.s3.transfer_threads import TransferThreads
from feedd.flow.file_writing import left_alone
from feedd.flow.range_sinks import FileSink
from feedd.values import ReadProgress
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
        self._thread.join(10)
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


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom the client trusts."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def context(authority: Authority, request: pytest.FixtureRequest) -> ssl.SSLContext:
    """The server's."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*authority.issue("store"))
    made.minimum_version = made.maximum_version = request.param
    return made


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
        SourceOptions(read_timeout_s=10.0, connect_timeout_s=10.0),
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


async def test_a_failed_handshake_ends_the_session(context: ssl.SSLContext, authority: Authority) -> None:
    """A server that fails at a session is offered none the next time."""
    endpoint = endpoint_of(authority)
    above, wire = Above(1000), Wire(context)
    first = connected(above, wire, endpoint)
    wire.server.write(b"data")
    wire.deliver(first)
    again = Wire(context)
    resumed, kept = connected(above, again, endpoint), endpoint._session
    again.server.write(b"data")
    again.deliver(resumed)
    assert again.server.session_reused
    assert endpoint._session is kept, "a session of a resumed handshake would outlive the certificate that was checked"
    broken = TlsTransport(endpoint, above)  # type: ignore[arg-type]  # as far as it is used
    broken.connection_made(Wire(context))  # type: ignore[arg-type]  # likewise
    broken.connection_lost(None)
    last = Wire(context)
    connected(above, last, endpoint)
    assert not last.server.session_reused


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


class Above:
    """Takes what was decrypted, and notes how it came.

    Attributes:
        tunnel: paused at the first piece, where there is one.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.tls_transport: TlsTransport | None = None
        self.memory = memoryview(bytearray(memory_bytes))
        self.pieces: list[bytes] = []
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: object) -> None:
        """Nothing to do."""

    def get_buffer(self, _: int) -> memoryview:
        """All of it, each time."""
        return self.memory

    def buffer_updated(self, nbytes: int) -> None:
        """Keep a piece."""
        self.pieces.append(bytes(self.memory[:nbytes]))
        if self.tls_transport is not None:
            self.tls_transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note why."""
        self.lost.append(exc)


class Wire:
    """A plain transport: what is written to it goes to a server's cipher."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = context.wrap_bio(self.into, self.out, server_side=True)
        self.closed = ""

    def pause_reading(self) -> None:
        """Nothing to do: it delivers when it is told to."""

    def resume_reading(self) -> None:
        """Likewise."""

    def write(self, data: bytes) -> None:
        """To the server."""
        self.into.write(data)

    def close(self) -> None:
        """In peace."""
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        """At once."""
        self.closed = self.closed or "aborted"

    def is_closing(self) -> bool:
        """Whether either was called."""
        return bool(self.closed)

    def deliver(self, tls_transport: TlsTransport) -> None:
        """Hand all that the server said to the tunnel, in one piece."""
        data = self.out.read()
        tls_transport.get_buffer(-1)[: len(data)] = data
        tls_transport.buffer_updated(len(data))


def endpoint_of(authority: Authority) -> TlsEndpoint:
    """Return the client's, which trusts that authority."""
    return TlsEndpoint(ssl.create_default_context(cafile=str(authority.ca_path)), "127.0.0.1")


def connected(above: Above, wire: Wire, endpoint: TlsEndpoint) -> TlsTransport:
    """Return a tunnel whose handshake is done."""
    tls_transport = TlsTransport(endpoint, above)  # type: ignore[arg-type]  # as far as it is used
    tls_transport.connection_made(wire)  # type: ignore[arg-type]  # likewise
    while not tls_transport.shaken.done() or wire.into.pending:
        with contextlib.suppress(ssl.SSLWantReadError):
            wire.server.do_handshake()
        wire.deliver(tls_transport)
    return tls_transport


@pytest.mark.parametrize(("memory_bytes", "count"), [(100_000, 1), (30_000, 2), (1_000, 41)])
@pytest.mark.parametrize("ending", ["goes on", "closed", "aborted"])
async def test_records_are_handed_up_together(
    context: ssl.SSLContext, authority: Authority, memory_bytes: int, count: int, ending: str
) -> None:
    """What came in one piece is handed up in as few as there is room for, and its end behind it."""
    above, wire = Above(memory_bytes), Wire(context)
    tls_transport = connected(above, wire, endpoint_of(authority))
    sent = [os.urandom(size) for size in (16_000, 9_000, 16_000)]
    for record in sent:
        wire.server.write(record)
    if ending == "closed":
        with contextlib.suppress(ssl.SSLWantReadError):
            wire.server.unwrap()
    elif ending == "aborted":
        wire.out.write(b"no record at all")
    wire.deliver(tls_transport)
    assert b"".join(above.pieces) == b"".join(sent)
    assert len(above.pieces) == count
    assert wire.closed == ("" if ending == "goes on" else ending)
    tls_transport.connection_lost(None)
    (why,) = above.lost
    assert isinstance(why, ConnectionResetError) == (ending == "aborted")


async def test_what_is_behind_a_pause_is_left_for_others(context: ssl.SSLContext, authority: Authority) -> None:
    """Where no more than a record has room, the record behind it is theirs who paused, and so is what ends it all."""
    above, wire = Above(16 << 10), Wire(context)
    above.tls_transport = tls_transport = connected(above, wire, endpoint_of(authority))
    wire.server.write(b"head")
    wire.server.write(b"body")
    wire.out.write(b"no record at all")
    wire.deliver(tls_transport)
    assert above.pieces == [b"head"]
    assert not wire.is_closing()
    assert tls_transport.cipher.tls.read(100) == b"body"
    above.tls_transport = None
    tls_transport.resume_reading()
    assert wire.is_closing()


async def test_an_end_behind_what_pauses(context: ssl.SSLContext, authority: Authority) -> None:
    """What was decrypted together with the end is handed up, and the connection ends though somebody has paused it."""
    above, wire = Above(100_000), Wire(context)
    above.tls_transport = tls_transport = connected(above, wire, endpoint_of(authority))
    wire.server.write(b"head and body")
    wire.out.write(b"no record at all")
    wire.deliver(tls_transport)
    assert above.pieces == [b"head and body"]
    assert wire.is_closing()
