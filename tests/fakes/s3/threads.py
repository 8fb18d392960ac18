"""The bench server: files over HTTP or TLS as fast as a kernel sends them, a blocking thread per connection.

Plain connections are served by ``sendfile``; TLS encrypts straight out of the mapped file. Between two requests there
are some fifty microseconds of Python, and none while bytes flow. ``S3Server`` is the one with scripted faults.

``python -m tests.fakes.s3.threads --root DIR [--tls CERT KEY] [--latency-ms 20 --delayed 0.02 --errors 0.05]``; its
first line is its URL. ``GET /__stats`` tells what it did, ``GET /__reset`` starts the draws over.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.s3.answers import Answers, Reply, Request, parse_head
from tests.fakes.s3.draws import Draws, Odds
from tests.fakes.s3.faults import NO_FAULT, Fault
from tests.fakes.s3.objects import FileObjects

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEND_BUFFER_BYTES = 4 << 20
_HEAD_BYTES = 16 << 10
_TLS_PIECE_BYTES = 1 << 20  # one call into OpenSSL, during which other threads run
_MAX_PACING_RATE = 47  # SO_MAX_PACING_RATE: the kernel spreads what it sends, as far away stores do
_REASONS = {200: "OK", 206: "Partial Content", 503: "Slow Down"}


class _Files:
    """Open files and mappings by path, kept: a request costs no open."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, mmap.mmap]] = {}
        self._lock = threading.Lock()

    def get(self, path: str) -> tuple[int, mmap.mmap]:
        """Return descriptor and read-only mapping of a file that is not empty."""
        with self._lock:
            found = self._open.get(path)
            if found is None:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                found = self._open[path] = (fd, mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ))
        return found


class ThreadServer:
    """Serves ``root/<bucket>/<key>`` until its process ends."""

    def __init__(self, root: Path, odds: Odds, tls: ssl.SSLContext | None = None) -> None:
        self._answers = Answers(FileObjects(root))
        self._draws, self._odds = Draws(odds), odds
        self._tls = tls
        self._files = _Files()
        self._ops: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        self._body_bytes = 0
        self._connection_count = 0
        self._lock = threading.Lock()

    def stats(self) -> dict[str, object]:
        """Return requests by operation and status, body bytes, connections and CPU seconds so far."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        with self._lock:
            return {
                "requests": dict(self._ops),
                "statuses": dict(self._statuses),
                "body_bytes": self._body_bytes,
                "connections": self._connection_count,
                "cpu_s": usage.ru_utime + usage.ru_stime,
            }

    def serve(self, listener: socket.socket) -> None:
        """Accept for ever."""
        while True:
            raw, _ = listener.accept()
            threading.Thread(target=self._connection, args=(raw,), daemon=True).start()

    def _connection(self, raw: socket.socket) -> None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        if self._odds.rate_bytes_s:
            raw.setsockopt(socket.SOL_SOCKET, _MAX_PACING_RATE, self._odds.rate_bytes_s)
        with self._lock:
            self._connection_count += 1
        # a peer that goes away ends this connection only
        with contextlib.suppress(OSError), raw:
            if self._tls is None:
                self._requests(raw)
            else:
                with self._tls.wrap_socket(raw, server_side=True) as wrapped:
                    self._requests(wrapped)

    def _requests(self, connection: socket.socket) -> None:
        while (request := _read(connection)) is not None:
            if request.bucket in {"__stats", "__reset"}:
                if request.bucket == "__reset":
                    self._draws.forget()
                self._send(connection, Reply(body=json.dumps(self.stats()).encode()), head_only=False)
                continue
            fault = self._fault(request)
            if fault.delay_s:
                time.sleep(fault.delay_s)
            reply = self._answers.answer(request, fault)
            sent_bytes = self._send(connection, reply, head_only=request.method == "HEAD")
            with self._lock:
                self._ops[request.op] += 1
                self._statuses[reply.status] += 1
                self._body_bytes += sent_bytes

    def _fault(self, request: Request) -> Fault:
        if request.op != "GET":
            return NO_FAULT
        return self._draws.draw(request.key, request.range or "")

    def _send(self, connection: socket.socket, reply: Reply, *, head_only: bool) -> int:
        size = reply.size if reply.stored else len(reply.body)
        lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Answer')}", "x-amz-request-id: bench"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        head = ("\r\n".join([*lines, f"Content-Length: {size}"]) + "\r\n\r\n").encode()
        if head_only or not size:
            connection.sendall(head)
            return 0
        if reply.stored is None:
            connection.sendall(head + reply.body)
            return size
        fd, mapping = self._files.get(reply.stored.path)
        connection.sendall(head)
        if isinstance(connection, ssl.SSLSocket):
            with memoryview(mapping) as view:
                for at in range(reply.start, reply.start + size, _TLS_PIECE_BYTES):
                    connection.sendall(view[at : min(at + _TLS_PIECE_BYTES, reply.start + size)])
            return size
        at, end = reply.start, reply.start + size
        while at < end:
            at += os.sendfile(connection.fileno(), fd, at, end - at)
        return size


def _read(connection: socket.socket) -> Request | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # GETs and HEADs have no body, and nobody pipelines
        piece = connection.recv(_HEAD_BYTES)
        if not piece or len(head) > _HEAD_BYTES:
            return None
        head += piece
    return parse_head(head)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve files until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="fast S3 server over files, for benches")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--delayed", type=float, default=0.0, help="share of GETs, 0 to 1")
    parser.add_argument("--delay-factor", type=float, default=50.0)
    parser.add_argument("--errors", type=float, default=0.0, help="share of GETs answered 503, 0 to 1")
    parser.add_argument("--rate", type=int, default=0, help="most bytes per second of one connection")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tls", type=Path, nargs=2, metavar=("CERT", "KEY"), help="PEM files; serve https")
    chosen = parser.parse_args(arguments)
    tls = None
    if chosen.tls is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*chosen.tls)
    odds = Odds(chosen.latency_ms / 1000, chosen.delayed, chosen.delay_factor, chosen.errors, chosen.rate, chosen.seed)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))  # nothing is kept that would have to be put away
    with socket.create_server(("127.0.0.1", chosen.port), backlog=1024) as listener:
        scheme = "http" if tls is None else "https"
        sys.stdout.write(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        ThreadServer(chosen.root, odds, tls).serve(listener)


if __name__ == "__main__":
    main()
