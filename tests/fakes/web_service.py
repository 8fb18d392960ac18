"""A web server that answers all requests as it is reply, and notes them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class WebService:
    """A web server with one answer to everything, or what a function of verb and path returns; None: it is silent."""

    def __init__(self, reply: bytes | Callable[[str, str], bytes | None] | None) -> None:
        self.reply = reply
        self.requests: list[tuple[str, str, str]] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                verb, path, _ = head.split(" ", 2)
                self.requests.append((verb, path, head))
                length = head.lower().partition("content-length: ")[2].partition("\r")[0]
                await reader.readexactly(int(length or 0))
                found = self.reply(verb, path) if callable(self.reply) else self.reply
                if found is None:
                    await reader.read()  # until the client gives up
                    break
                writer.write(found)
                await writer.drain()
                if b"Content-Length" not in found and b"chunked" not in found:
                    break
        writer.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve; yields the URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for _ in range(50):
                await asyncio.sleep(0)
