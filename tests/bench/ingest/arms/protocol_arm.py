"""Receiver: a ``BufferedProtocol`` on uvloop, straight into the mapped file; nothing of feedd around it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import uvloop

from tests.bench.ingest.arms import plain
from tests.bench.ingest.arms.job import Job, finish, timed

if TYPE_CHECKING:
    from tests.bench.ingest.arms.job import Part

_HEAD_BYTES = 4096


class _Receiver(asyncio.BufferedProtocol):
    def __init__(self, job: Job, todo: deque[Part], views: dict[str, memoryview]) -> None:
        self._job, self._todo, self._views = job, todo, views
        self._scratch = memoryview(bytearray(_HEAD_BYTES))
        self._filled = self._at = 0
        self._part: Part | None = None
        self._target: memoryview | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._next()

    def _next(self) -> None:
        self._target = None
        if not self._todo:
            self._part = None
            self.done.set_result(None)
            self._transport.close()
            return
        self._part = self._todo.popleft()
        self._transport.write(plain.request(self._job, self._part))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch[self._filled :] if self._target is None else self._target[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._target is not None:
            self._at += nbytes
        else:
            self._filled += nbytes
            head = bytes(self._scratch[: self._filled])
            end = head.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            assert head.startswith(b"HTTP/1.1 206"), f"expected 206, got {head[:80]!r}"
            assert self._part is not None
            self._target = self._views[self._part.key][self._part.start : self._part.end]
            self._target[: len(head) - end] = head[end:]
            self._at, self._filled = len(head) - end, 0
        if self._at == len(self._target):
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("expected whole parts, got the end of the connection"))


async def _receive(job: Job) -> None:
    place = urlsplit(job.endpoint)
    assert place.hostname is not None
    assert place.port is not None
    host, port = place.hostname, place.port
    tls = None if place.scheme == "http" else plain.tls_context(job)
    todo = deque(job.parts())
    with job.mappings() as views:
        loop = asyncio.get_running_loop()
        opened = [
            await loop.create_connection(lambda: _Receiver(job, todo, views), host, port, ssl=tls)
            for _ in range(job.parts_in_flight)
        ]
        await asyncio.gather(*(receiver.done for _, receiver in opened))
        del opened
        await asyncio.sleep(0)  # transports let go of their protocols, and those of their views


async def _run(job: Job) -> dict[str, Any]:
    if job.recycled:
        await _receive(job)
    with timed() as row:
        await _receive(job)
    return row


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    finish(job, uvloop.run(_run(job)))


if __name__ == "__main__":
    main()
