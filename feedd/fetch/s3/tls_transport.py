"""TLS between a plain transport and the protocol above, which takes it for its transport.

It does on the event loop what is small, handshakes and heads, and lends its cipher to whoever moves a body: the loop's
own TLS would decrypt every body on the loop.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

from feedd.fetch.s3.body_transfer import Cipher

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.fetch.s3.connection import Connection

_RECORD_BYTES = 16 << 10
RECEIVE_BYTES = 64 << 10  # of what is read on the loop: heads, small bodies, and where large ones begin


class TlsTransport(asyncio.BufferedProtocol):
    """One connection's TLS. ``shaken`` is done when the handshake is, and the protocol above connected.

    Args:
        context: what to trust.
        host: whose certificate to ask for.
        above: gets what was decrypted; is given no end of file, but loses the connection instead.
        received: memory for what is read, shared with others: it is used within one turn of the loop.
    """

    def __init__(self, context: ssl.SSLContext, host: str, above: Connection, received: memoryview) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._above = above
        self._received = received
        self._transport: Any = None  # of whichever loop: uvloop's are no asyncio.Transport
        self._paused = False
        self._why: Exception | None = None
        self._end: Callable[[], object] | None = None  # what to do behind what was decrypted last
        self.shaken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"TlsTransport({self._tls.version()})"

    @property
    def cipher(self) -> Cipher:
        """What decrypts: whoever takes it pauses the tunnel first, and resumes it when done."""
        return Cipher(self._tls, self._incoming)

    # ------------------------------------------------------------ what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Transport: connected; the handshake begins."""
        self._transport = transport
        self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - one recv takes whatever is there
        """Transport: where the next bytes go."""
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        """Transport: that many bytes went there."""
        self._incoming.write(self._received[:nbytes])
        if self.shaken.done():
            self._feed()
        else:
            self._shake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Transport: gone, for whatever reason."""
        if not self.shaken.done():
            self._broken(exc or ConnectionResetError("closed by the other side during the TLS handshake"))
        else:
            self._above.connection_lost(exc or self._why)

    # ------------------------------------------------------------ what the protocol above calls

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        self._tls.write(data)
        self._flush()

    def pause_reading(self) -> None:
        """Leave the socket and the cipher to somebody else."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Have both back."""
        self._paused = False
        self._transport.resume_reading()
        self._feed()

    def abort(self) -> None:
        """Close without ceremony."""
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return bool(self._transport.is_closing())

    def get_extra_info(self, name: str) -> Any:  # noqa: ANN401 - as transports have it
        """Return the plain transport's."""
        return self._transport.get_extra_info(name)

    # ------------------------------------------------------------ inside

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # the alert that tells the other side why
            self._broken(error)
            self.abort()
            return
        self._flush()
        if not self.shaken.done():  # whoever waited may have left
            self.shaken.set_result(None)
            self._above.connection_made(self)  # type: ignore[arg-type]  # what is used of a transport is here
            self._feed()

    def _broken(self, error: Exception) -> None:
        if not self.shaken.done():
            self.shaken.set_exception(error)
            self.shaken.exception()  # whoever waited may have left: nothing is to be logged then

    def _feed(self) -> None:
        """Hand up what can be decrypted, until somebody else takes over."""
        dry = False
        while not dry and not self._paused and not self._transport.is_closing():
            buffer = self._above.get_buffer(-1)
            count, dry = self._decrypt(buffer)
            if count:
                self._above.buffer_updated(count)
            if self._end is not None:
                self._end()
        if not self._paused:
            self._flush()

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """Fill the buffer as far as goes: a record has 16 KiB at most, and each step above is a write to a file.

        Where no more than a record has room the next one is left alone: behind a head it is of a body that is moved.

        Returns:
            Bytes that are there, and whether nothing more can be decrypted.
        """
        count = 0
        while not count or _RECORD_BYTES < buffer.nbytes > count:
            try:
                came = int(self._tls.read(buffer.nbytes - count, buffer[count:]))
            except ssl.SSLWantReadError:
                return count, True
            except ssl.SSLError as error:
                self._why = ConnectionResetError(str(error))  # not the error: it leads to this frame, and the buffer
                self._end = self.abort
                return count, True
            if not came:  # the other side says that it is done
                self._end = self._transport.close
                return count, True
            count += came
        return count, False

    def _flush(self) -> None:
        """Send what the cipher wants sent: new keys too, which the other side may ask for at any time."""
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())
