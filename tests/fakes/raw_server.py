"""A TCP server that answers each request head with the next of a list of byte strings, whatever they are."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Answer: TypeAlias = "bytes | Sequence[bytes | None] | None"


class RawServer:
    """Runs on the test's own loop; a context manager.

    An answer is sent in one piece, or piece by piece with a turn of the loop between them; ``b""`` closes the
    connection, None waits for ``go``. Behind the last answer there is silence.
    """

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.requests: list[bytes] = []
        self.connection_count = 0
        self.port = 0
        self.go = asyncio.Event()
        self.on_request: Callable[[], object] = lambda: None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def answer(self, *answers: Answer) -> None:
        """Answer the coming requests with these."""
        self._answers += answers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.connection_count += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._talk(reader, writer)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            self.on_request()
            answer = self._answers.pop(0) if self._answers else None
            pieces: Sequence[bytes | None] = [] if answer is None else [answer] if isinstance(answer, bytes) else answer
            for piece in pieces:
                if piece is None:
                    await self.go.wait()
                    continue
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.002)  # lets each piece be received by itself, mostly
