"""A server that stands for an endpoint: it answers some kinds of requests as no store does, and the others right."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    import ssl

KEY: Final = "train/a.tar"
DATA: Final = bytes(range(256)) * 40
ETAG: Final = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
_LISTING: Final = (
    f"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>1</KeyCount><Contents><Key>{KEY}</Key>"
    f"<Size>{len(DATA)}</Size><ETag>&quot;{ETAG}&quot;</ETag></Contents></ListBucketResult>"
).encode()


def http(status: int, body: bytes = b"", framing: str = "length", **headers: str) -> bytes:
    """Return an answer; ``framing`` is ``length``, ``chunked`` or ``close``. Underscores in names stand for dashes."""
    lines = [f"HTTP/1.1 {status} Odd"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    ends = {
        "length": f"Content-Length: {len(body)}",
        "chunked": "Transfer-Encoding: chunked",
        "close": "Connection: close",
    }
    head = "\r\n".join([*lines, ends[framing], "", ""]).encode()
    return head + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if framing == "chunked" else body)


def _head_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


class OddServer:
    """One bucket with one object, on the test's own loop; a context manager.

    Attributes:
        odd: answer by kind of request: ``list``, ``head``, ``get``; None: silence. Other kinds are answered right.
        odd_count: how many requests ``odd`` answers; later ones are answered right.
        framing: how the end of right answers is told, by kind of request.
        asked: the kinds of all requests, in order.
        heads: the heads of all requests.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.odd: dict[str, bytes | None] = {}
        self.odd_count = 1_000_000
        self.framing: dict[str, str] = {}
        self.asked: list[str] = []
        self.heads: list[bytes] = []
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                first = await reader.readexactly(1)
                if first == b"\x16":  # a TLS handshake on a plain port: most servers answer it so
                    writer.write(http(400, framing="close"))
                    await writer.drain()
                    return
                while await self._answer(first + await reader.readuntil(b"\r\n\r\n"), writer):
                    first = b""
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        kind = "list" if b"list-type=" in head.partition(b"\r\n")[0] else "head" if head.startswith(b"HEAD") else "get"
        self.asked.append(kind)
        self.heads.append(head)
        answer = self.odd.get(kind, b"right") if self.odd_count > 0 else b"right"
        self.odd_count -= kind in self.odd
        if answer is None:
            await asyncio.Event().wait()
        elif kind == "head" and answer != b"right" and not answer.startswith(b"HTTP/1.1 1"):
            answer = _head_of(answer)
        framing = self.framing.get(kind, "length")
        writer.write(self._right(kind, head, framing) if answer == b"right" else answer or b"")
        await writer.drain()
        if framing == "close":
            writer.close()
            await writer.wait_closed()
        return framing != "close"

    @staticmethod
    def _right(kind: str, head: bytes, framing: str) -> bytes:
        if kind == "list":
            return http(200, _LISTING, framing, content_type="application/xml", x_amz_request_id="1")
        facts = {"ETag": f'"{ETAG}"', "x-amz-request-id": "1", "content-type": "application/octet-stream"}
        if kind == "head":
            return _head_of(http(200, DATA, framing, **facts))
        ranges = [line for line in head.decode().split("\r\n") if line.lower().startswith("range: bytes=")]
        start, _, last = ranges[0].partition("=")[2].partition("-")
        facts["Content-Range"] = f"bytes {start}-{last}/{len(DATA)}"
        return http(206, DATA[int(start) : int(last) + 1], framing, **facts)
