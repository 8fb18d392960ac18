"""The TLS layer of one connection, over a transport in memory: how bytes are handed up, and sessions that end."""

from __future__ import annotations

import contextlib
import os
import ssl
from typing import TYPE_CHECKING

import pytest

from feedd.fetch.s3.tls import TlsEndpoint, TlsTransport

if TYPE_CHECKING:
    from tests.unit.serve.certs import Authority


class Above:
    """Takes what was decrypted, and notes how it came."""

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
    cipher = tls_transport.cipher
    assert cipher is not None
    assert cipher.tls.read(100) == b"body"
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
