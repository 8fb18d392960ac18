"""Connections of peers to this daemon, plain or with TLS. Belongs to the loop of the peers' thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from typing import Final, Protocol

_RECEIVE_BYTES: Final = 16 << 10
_FILE_BYTES: Final = 1 << 20
"""Bytes of a file between two turns of the loop, so that connections share the thread."""
_TLS_BYTES: Final = 256 << 10


class PeerSocket(Protocol):
    """One connection."""

    async def receive(self) -> bytes:
        """Return the next bytes; empty: the peer closed the connection.

        Raises:
            OSError: the connection broke.
        """

    async def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            OSError: the connection broke.
        """

    async def send_file(self, fd: int, at: int, size_bytes: int) -> None:
        """Send a piece of a file. Reading it may wait for the cache's disk.

        Raises:
            OSError: the connection broke, or the file is shorter.
        """

    @property
    def subject(self) -> str:
        """Common name of the peer's certificate; empty: there is none."""

    def close(self) -> None:
        """Close the connection."""


class PlainSocket:
    """A connection without TLS: files go from the page cache to the socket without a copy."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self.subject = ""

    async def receive(self) -> bytes:
        """Return the next bytes; see ``PeerSocket.receive``."""
        return await self._loop.sock_recv(self._sock, _RECEIVE_BYTES)

    async def send(self, data: bytes) -> None:
        """Send bytes; see ``PeerSocket.send``."""
        await self._loop.sock_sendall(self._sock, data)

    async def send_file(self, fd: int, at: int, size_bytes: int) -> None:
        """Send a piece of a file; see ``PeerSocket.send_file``."""
        end = at + size_bytes
        while at < end:
            try:
                sent = os.sendfile(self._sock.fileno(), fd, at, min(end - at, _FILE_BYTES))
            except BlockingIOError:
                await self._writable()
                continue
            if not sent:
                raise _too_short(end - at)
            at += sent
            await asyncio.sleep(0)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    async def _writable(self) -> None:
        ready = self._loop.create_future()
        fd = self._sock.fileno()
        self._loop.add_writer(fd, _set, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(fd)


class TlsSocket:
    """A connection with TLS.

    Args:
        plain: the connection below.
        context: shows this daemon's certificate, and demands the peer's.
    """

    def __init__(self, plain: PlainSocket, context: ssl.SSLContext) -> None:
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._buffer = bytearray()
        self.subject = ""

    async def handshake(self) -> None:
        """Shake hands.

        Raises:
            OSError: the peer has no certificate of a member, or the connection broke.
        """
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._flush()  # the alert that tells the peer why
                raise
        await self._flush()
        self.subject = _common_name(self._tls)

    async def receive(self) -> bytes:
        """Return the next bytes; see ``PeerSocket.receive``."""
        while True:
            try:
                return self._tls.read(_RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._feed():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    async def send(self, data: bytes) -> None:
        """Send bytes; see ``PeerSocket.send``."""
        self._tls.write(data)
        await self._flush()

    async def send_file(self, fd: int, at: int, size_bytes: int) -> None:
        """Send a piece of a file; see ``PeerSocket.send_file``."""
        end = at + size_bytes
        if len(self._buffer) < _TLS_BYTES:
            self._buffer = bytearray(_TLS_BYTES)
        memory = memoryview(self._buffer)
        while at < end:
            got = os.preadv(fd, [memory[: min(end - at, _TLS_BYTES)]], at)
            if not got:
                raise _too_short(end - at)
            self._tls.write(memory[:got])
            await self._flush()
            at += got

    def close(self) -> None:
        """Close the connection."""
        self._plain.close()

    async def _feed(self) -> bool:
        data = await self._plain.receive()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return bool(data)

    async def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            await self._plain.send(data)


def _common_name(tls: ssl.SSLObject) -> str:
    certificate = tls.getpeercert() or {}
    subject: tuple[tuple[tuple[str, str], ...], ...] = certificate.get("subject", ())  # type: ignore[assignment]  # typeshed joins all fields' types
    return next((value for names in subject for name, value in names if name == "commonName"), "")


def _too_short(left_bytes: int) -> OSError:
    return OSError(f"expected {left_bytes} more bytes in the file of an entry, got none")


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
