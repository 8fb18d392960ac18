"""A proxy for HTTP, as networks have them: tunnels by CONNECT, and requests that name a whole URL."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl


class ForwardProxy:
    """Runs on the test's own loop; a context manager.

    Args:
        port: port on this machine that all hosts are taken for.
        tls: context of the proxy's own TLS; None: plain.

    Attributes:
        heads: heads of the requests that came to the proxy; of a tunnel, CONNECT alone.
        connection_count: connections to the proxy.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._upstream_port = port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.heads: list[str] = []
        self.connection_count = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connection_count += 1
        there: asyncio.StreamWriter | None = None
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                back, there = await asyncio.open_connection("127.0.0.1", self._upstream_port)
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(back, writer, await self._first(reader, writer, there)))
                    both.create_task(self._forward(reader, there))
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if there is not None:
                there.transport.abort()

    async def _first(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: asyncio.StreamWriter
    ) -> bytes:
        """Answer CONNECT, or send the first request on; returns what the client gets first."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        self._tunnels = head.startswith("CONNECT ")
        if self._tunnels:
            return b"HTTP/1.1 200 Connection established\r\n\r\n"
        there.write(_by_path(head))
        return b""

    async def _forward(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        if self._tunnels:
            await _copy(reader, there)
        while not self._tunnels:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            there.write(_by_path(head))


def _by_path(head: str) -> bytes:
    """Return a head for the server itself; the login is the proxy's alone."""
    first, *lines = head.split("\r\n")
    verb, url, version = first.split(" ")
    parts = urlsplit(url)
    kept = [line for line in lines if not line.lower().startswith("proxy-authorization:")]
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return "\r\n".join([f"{verb} {path} {version}", *kept]).encode()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes = b"") -> None:
    piece = first or await reader.read(65536)
    while piece:
        writer.write(piece)
        await writer.drain()
        piece = await reader.read(65536)
    raise ConnectionResetError("the other side closed the connection")
