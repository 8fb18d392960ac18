"""TLS between a plain transport and the protocol above, which uses it as its transport.

The event loop decrypts only handshakes, heads and small bodies. The thread that moves a large body borrows the cipher,
while the loop's own TLS would decrypt every body on the loop.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

from feedd.fetch.s3.body_transfer import Cipher

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.fetch.s3.connection import Connection
    from feedd.fetch.s3.connection_pool import ProxyTunnel


_RECORD_BYTES = 16 << 10
_RECEIVE_BYTES = 64 << 10  # bytes read at a time on the loop: heads, small bodies, and the start of large ones


class TlsEndpoint:
    """The state that the TLS connections to one endpoint share. Its newest session spares a handshake its signatures.

    A resumed handshake checks no certificate. So only sessions of complete handshakes are kept, and a session ends when
    the server said it would.

    Attributes:
        received: receive buffer; used within one turn of the loop.

    Args:
        context: trusted certificates.
        host: host name that the certificate must match.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._context = context
        self._host = host
        self._session: ssl.SSLSession | None = None
        self.received = memoryview(bytearray(_RECEIVE_BYTES))

    def __repr__(self) -> str:
        return f"TlsEndpoint({self._host}, {'resumes' if self._session else 'has no session'})"

    def begin(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Return the client side of a new connection."""
        return self._context.wrap_bio(incoming, outgoing, server_hostname=self._host, session=self._session)

    def keep(self, tls: ssl.SSLObject) -> None:
        """Keep the session of a connection that has received data: TLS 1.3 sends sessions after the handshake."""
        if not tls.session_reused:
            self._session = tls.session

    def forget(self) -> None:
        """Resume no session, because a handshake failed."""
        self._session = None


class TlsTransport(asyncio.BufferedProtocol):
    """The TLS layer of one connection. ``shaken`` is done once the handshake is over and ``above`` is connected.

    Args:
        endpoint: state shared with other connections.
        above: gets the decrypted bytes; at the end of file it loses the connection.
    """

    def __init__(self, endpoint: TlsEndpoint, above: Connection | ProxyTunnel) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._endpoint = endpoint
        self._tls = endpoint.begin(self._incoming, self._outgoing)
        self._above: Connection | ProxyTunnel | TlsTransport = above
        self._session_seen = False
        self._transport: Any = None  # of whichever loop: uvloop's are no asyncio.Transport
        self._paused = False
        self._why: Exception | None = None
        self._end: Callable[[], object] | None = None  # called after the last decrypted bytes were handed up
        self.shaken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"TlsTransport({self._tls.version()})"

    @property
    def cipher(self) -> Cipher | None:
        """The cipher; its borrower pauses reading first and resumes it afterwards. None: there is another below it."""
        return None if isinstance(self._transport, TlsTransport) else Cipher(self._tls, self._incoming)

    # ------------------------------------------------------------ called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Transport: connected; the handshake begins."""
        self._transport = transport
        self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - one recv takes whatever is there
        """Transport: return the buffer for the next bytes."""
        return self._endpoint.received

    def buffer_updated(self, nbytes: int) -> None:
        """Transport: handle the bytes that were put into the buffer."""
        self._incoming.write(self._endpoint.received[:nbytes])
        if self.shaken.done():
            self._feed()
        else:
            self._shake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Transport: handle the loss of the connection."""
        if not self.shaken.done():
            self._broken(exc or ConnectionResetError("the other side closed the connection during the TLS handshake"))
        else:
            self._above.connection_lost(exc or self._why)

    # ------------------------------------------------------------ called by the protocol above

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        self._tls.write(data)
        self._flush()

    def pause_reading(self) -> None:
        """Stop reading, so that another thread can use the socket and the cipher."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take the socket and the cipher back and continue reading."""
        self._paused = False
        self._transport.resume_reading()
        self._feed()

    def abort(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._transport.close()

    def set_protocol(self, above: TlsTransport) -> None:
        """Hand the decrypted bytes from here on to the TLS layer of a tunnel through a proxy."""
        self._above = above

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return bool(self._transport.is_closing())

    def get_extra_info(self, name: str) -> Any:  # noqa: ANN401 - as transports have it
        """Return the plain transport's information."""
        return self._transport.get_extra_info(name)

    # ------------------------------------------------------------ inside

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # sends the alert that tells the other side the reason
            self._broken(error)
            self.abort()
            return
        self._flush()
        if not self.shaken.done():  # the waiting task may have been cancelled
            self.shaken.set_result(None)
            self._above.connection_made(self)  # type: ignore[arg-type]  # all used methods of a transport are here
            self._feed()

    def _broken(self, error: Exception) -> None:
        self._endpoint.forget()
        if not self.shaken.done():
            self.shaken.set_exception(error)
            self.shaken.exception()  # retrieved, so that asyncio logs nothing if the waiting task was cancelled

    def _feed(self) -> None:
        """Hand up the bytes that can be decrypted, until reading is paused."""
        dry = False
        while not dry and not self._paused and not self._transport.is_closing():
            buffer = self._above.get_buffer(-1)
            count, dry = self._decrypt(buffer)
            if count and not self._session_seen:
                self._session_seen = True
                self._endpoint.keep(self._tls)
            if count:
                self._above.buffer_updated(count)
            if self._end is not None:
                self._end()
        if not self._paused:
            self._flush()

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """Fill the buffer as far as possible: a record has at most 16 KiB, and each step above is a file write.

        If the buffer has room for one record only, the next record is left alone. After a head it may belong to a body
        that a thread moves.

        Returns:
            The number of bytes, and whether nothing more can be decrypted.
        """
        count = 0
        while not count or _RECORD_BYTES < buffer.nbytes > count:
            try:
                came = int(self._tls.read(buffer.nbytes - count, buffer[count:]))
            except ssl.SSLWantReadError:
                return count, True
            except ssl.SSLError as error:
                # Not the error itself, which refers to this frame and the buffer.
                self._why = ConnectionResetError(str(error))
                self._end = self.abort
                return count, True
            if not came:  # the other side has closed its TLS session
                self._end = self._transport.close
                return count, True
            count += came
        return count, False

    def _flush(self) -> None:
        """Send the cipher's pending output, including answers to a key change."""
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())
