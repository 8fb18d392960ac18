"""A small S3 server on loopback: path-style, any signature, scripted faults; in a thread or as its own process.

In a test::

    with S3Server() as server:
        server.put("bucket", "train/a.tar", data)
        server.script("bucket", "train/a.tar", slow_down(), None, reset_in_body(100))
        ...  # server.url, server.requests, server.stats()

As a bench server over files: ``python -m tests.fakes.s3.server --root DIR --port 0``; its first line is its URL. With
``--numbered`` each file stands for as many objects as its name says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import ssl
import struct
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.fakes.s3.answers import Answers, Reply, Request, parse_head
from tests.fakes.s3.checksums import Checksums, Kept
from tests.fakes.s3.faults import NO_FAULT, Fault, Script, SharedRate
from tests.fakes.s3.gate import Gate
from tests.fakes.s3.objects import FileObjects, MemoryObjects, NumberedObjects, Objects, endless_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_PIECE_BYTES = 1 << 20
_PACED_BYTES = 64 << 10
_SMALL_BYTES = 256 << 10  # sent with the head: that costs less than asyncio's sendfile


class _Sender:
    """Puts a reply on one connection, as far as the fault lets it."""

    def __init__(self, writer: asyncio.StreamWriter, rate: SharedRate | None = None) -> None:
        self._writer = writer
        self._rate = rate

    async def send(self, reply: Reply, fault: Fault, *, head_only: bool) -> int:
        """Send; return the body bytes sent. The connection is closed where the fault says so."""
        if fault.hang and fault.body_bytes is None:
            await asyncio.Event().wait()
        if fault.body_bytes == -1:
            self._end(fault)
            return 0
        whole = reply.size if reply.stored else len(reply.body)
        announced = whole - fault.short_bytes + fault.extra_bytes
        size = min(whole - fault.short_bytes, whole if fault.body_bytes is None else fault.body_bytes)
        lines = [f"HTTP/1.1 {reply.status} Fake", "x-amz-request-id: fake"]
        chunked = fault.framing == "chunked"
        if chunked:
            lines.append("Transfer-Encoding: chunked")
        elif fault.framing == "length":
            lines.append(f"Content-Length: {announced}")
        lines += [f"{name}: {value}" for name, value in reply.headers.items() if name not in fault.omit]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        small = fault is NO_FAULT and reply.stored and reply.stored.path and size <= _SMALL_BYTES
        if small and self._rate is None and not head_only:
            self._writer.write(b"".join((head, self._slice(reply, size))))
            await self._writer.drain()
            return size
        self._writer.write(head)
        if chunked:
            self._writer.write(f"{size:x}\r\n".encode())
        sent = 0 if head_only else await self._body(reply, size, fault)
        if chunked:
            self._writer.write(b"\r\n0\r\n\r\n")
        if not head_only:
            self._writer.write(bytes(fault.extra_bytes + fault.surplus_bytes))
        await self._writer.drain()
        if fault.hang:
            await asyncio.Event().wait()
        self._end(fault)
        return sent

    async def _body(self, reply: Reply, size: int, fault: Fault) -> int:
        if fault.flip_at >= 0 and 0 <= fault.flip_at - reply.start < size:
            flipped = bytearray(self._slice(reply, size))
            flipped[fault.flip_at - reply.start] ^= 1
            self._writer.write(flipped)
            await self._writer.drain()
        elif self._rate is not None:
            data = self._slice(reply, size)
            for at in range(0, size, _PACED_BYTES):
                await self._rate.take(min(_PACED_BYTES, size - at))
                self._writer.write(data[at : at + _PACED_BYTES])
                await self._writer.drain()
        elif fault.drip_bytes_s:
            data = self._slice(reply, size)
            step = max(1, fault.drip_bytes_s // 20)
            for at in range(0, size, step):
                self._writer.write(data[at : at + step])
                await self._writer.drain()
                await asyncio.sleep(step / fault.drip_bytes_s)
        elif reply.stored is not None and reply.stored.path and self._writer.get_extra_info("sslcontext"):
            await self._encrypted(Path(reply.stored.path), reply.start, size)
        elif reply.stored is not None and reply.stored.path:
            with Path(reply.stored.path).open("rb") as file:  # noqa: ASYNC230 - opening a local file; its bytes go by sendfile
                if size:
                    await asyncio.get_running_loop().sendfile(self._writer.transport, file, reply.start, size)
        else:
            self._writer.write(self._slice(reply, size))
            await self._writer.drain()
        return size

    async def _encrypted(self, path: Path, start: int, size: int) -> None:
        """Send a file in pieces: there is no sendfile through TLS."""
        with path.open("rb") as file:
            for at in range(0, size, _PIECE_BYTES):
                self._writer.write(os.pread(file.fileno(), min(_PIECE_BYTES, size - at), start + at))
                await self._writer.drain()

    @staticmethod
    def _slice(reply: Reply, size: int) -> bytes | memoryview:
        if reply.stored is None:
            return reply.body[:size]
        data = reply.stored.data
        if reply.stored.endless:
            return endless_bytes(reply.start, size)
        if data is None:
            return _read_file(reply.stored.path, reply.start, size)
        return memoryview(data)[reply.start : reply.start + size]

    def _end(self, fault: Fault) -> None:
        if fault.ending == "reset":
            raw = self._writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        elif fault.ending == "close":
            self._writer.close()


class S3Server:
    """The server in a thread of its own; a context manager."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        port: int = 0,
        latency_s: float = 0.0,
        cert: tuple[Path, Path] | None = None,
        host: str = "127.0.0.1",
        numbered: bool = False,
    ) -> None:
        self.url = ""
        self._host = host
        self._tls = None if cert is None else ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if self._tls is not None and cert is not None:
            self._tls.load_cert_chain(*cert)
        self.requests: list[Request] = []
        self.connection_count = 0
        files = NumberedObjects if numbered else FileObjects
        self._objects: Objects = MemoryObjects() if root is None else files(root)
        self._checksums = Checksums()
        self._answers = Answers(self._objects, self._checksums)
        self._script = Script()
        self.gate = Gate()
        self._port, self._latency_s = port, latency_s
        self._keep_log = root is None
        self._ops: Counter[str] = Counter()
        self._body_bytes = self._beside_count = 0
        self._started = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def put(self, bucket: str, key: str, data: bytes, kept: Kept | None = None) -> str:
        """Store an object, making its bucket, and keep that checksum of it; return its ETag."""
        self._objects.create(bucket)
        self._checksums.keep(bucket, key, kept)
        return self._objects.put(bucket, key, data).etag

    def put_endless(self, bucket: str, key: str, size_bytes: int) -> str:
        """Store an object of any size that needs no room; its bytes are ``endless_bytes``. Return its ETag."""
        assert isinstance(self._objects, MemoryObjects), "expected a server without files"
        self._objects.create(bucket)
        return self._objects.put_endless(bucket, key, size_bytes).etag

    def archive(self, bucket: str, key: str, **headers: str) -> None:
        """Put an object into an archive, told by these headers of ``x-amz-``: see ``Answers.archived``."""
        named = {f"x-amz-{name.replace('_', '-')}": value for name, value in headers.items()}
        self._answers.archived[bucket, key] = named

    def create_bucket(self, bucket: str) -> None:
        """Make an empty bucket."""
        self._objects.create(bucket)

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object."""
        self._objects.delete(bucket, key)

    def script(
        self, bucket: str, key: str, *faults: Fault | None, op: str = "GET", always: Fault | None = None
    ) -> None:
        """Let the coming requests of ``op`` (GET, HEAD, LIST, PUT, ``*``) on that key meet ``faults`` in turn.

        None lets a request pass; after the last one ``always`` holds, where given. For LIST the key is "".
        """
        self._script.add(op, bucket, key, faults, always)

    def follow(self, script: Script) -> None:
        """Follow another script, and send at its rate."""
        self._script = script

    def calm(self) -> None:
        """Forget all scripts."""
        self._script.clear()

    def forget(self) -> None:
        """Hold nothing any more, as if just started: no object, fault, request or connection."""
        assert isinstance(self._objects, MemoryObjects), "expected a server without files"
        self.calm()
        for bucket in self._objects.buckets():
            self._objects.remove(bucket)
        self._answers.archived.clear()
        self.hang_up()
        self.requests.clear()
        self._ops.clear()
        self._body_bytes = self.connection_count = 0

    def hang_up(self) -> None:
        """End all connections, and wait until they have ended."""
        assert self._loop is not None

        async def cancelled() -> None:
            tasks = list(self._connections)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await _turns(5)  # lets aborted transports close their sockets

        asyncio.run_coroutine_threadsafe(cancelled(), self._loop).result(10)

    def stats(self) -> dict[str, object]:
        """Return requests by op, body bytes sent, and how many requests were about listings and feedd's own files."""
        counts = {"connections": self.connection_count, "beside_count": self._beside_count}
        return {"requests": dict(self._ops), "body_bytes": self._body_bytes} | counts

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve()), name="s3server")
        self._thread.start()
        assert self._started.wait(10), "server did not start"
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self.stop)
        self._thread.join(10)
        assert not self._thread.is_alive(), "server did not stop"

    def stop(self) -> None:
        """End ``serve``; call on its loop."""
        assert self._stop is not None
        self._stop.set()

    async def serve(self, ready: Callable[[], object] | None = None) -> None:
        """Serve until ``stop``; call ``ready`` once the port is open."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tasks = self._connections

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await self._connection(reader, writer)
            except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
                pass  # the peer went away, or the server stops: either ends this connection only
            finally:
                tasks.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(
            connected, self._host, self._port, limit=1 << 20, backlog=1024, ssl=self._tls
        )
        scheme = "https" if self._tls else "http"
        self.url = f"{scheme}://{self._host}:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        if ready is not None:
            ready()
        await self._stop.wait()
        for listener in server.sockets:  # close() trips over a connection that was accepted and is not yet set up
            self._loop.remove_reader(listener.fileno())
        await _turns(5)
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _turns(5)  # lets aborted transports close their sockets

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        sender = _Sender(writer, self._script.rate)
        while not writer.transport.is_closing():
            request = await _read(reader, writer)
            if request is None:
                return
            if request.bucket == "__stats":
                await sender.send(Reply(body=json.dumps(self.stats()).encode()), NO_FAULT, head_only=False)
                continue
            self._ops[request.op] += 1
            self._beside_count += request.op == "LIST" or "/_feedd_" in request.key
            if self._keep_log:
                self.requests.append(request)
            fault = self.gate.refusal(request) or self._script.take(request.op, request.bucket, request.key)
            delay_s = self._latency_s + fault.delay_s
            if delay_s:
                await asyncio.sleep(delay_s)
            reply = self._answers.answer(request, fault)
            if fault.status:
                fault = Fault(framing=fault.framing, ending=fault.ending)
            sent_bytes = await sender.send(reply, fault, head_only=request.method == "HEAD")
            self._body_bytes += sent_bytes  # not in one line: += reads its left side before the await


def _read_file(path: str, start: int, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, start)
    finally:
        os.close(fd)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    request = parse_head(head)
    headers = request.headers
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    if "aws-chunked" in headers.get("content-encoding", ""):
        inner = asyncio.StreamReader(limit=1 << 20)
        inner.feed_data(body)
        inner.feed_eof()
        body = await _read_chunks(inner)
    return replace(request, body=body) if body else request


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """Read a chunked body: HTTP's own, or the same framing inside ``aws-chunked`` (signatures and trailers ignored)."""
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while (await reader.readline()).strip():
        pass
    return bytes(body)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve files until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="S3 server over files, for benches")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--numbered", action="store_true", help="ROOT/BUCKET/COUNT is COUNT objects of that content")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--tls", type=Path, nargs=2, metavar=("CERT", "KEY"), help="PEM files; serve https")
    chosen = parser.parse_args(arguments)
    cert = None if chosen.tls is None else tuple(chosen.tls)
    server = S3Server(
        chosen.root, port=chosen.port, latency_s=chosen.latency_ms / 1000, cert=cert, numbered=chosen.numbered
    )

    async def run() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, server.stop)
        await server.serve(ready=lambda: sys.stdout.write(server.url + "\n") and sys.stdout.flush())

    asyncio.run(run())


if __name__ == "__main__":
    main()
