"""Bare HTTP for the arms without a client library: unsigned ranged GETs, one connection per thread."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from tests.bench.ingest.arms.job import Job, Part

_HEAD_BYTES = 4096
_TIMEOUT_S = 60.0


def connect(job: Job, timeout_s: float | None = _TIMEOUT_S) -> socket.socket:
    """Open a connection, with TLS where the endpoint asks for it."""
    place = urlsplit(job.endpoint)
    assert place.hostname is not None
    assert place.port is not None
    raw = socket.create_connection((place.hostname, place.port), timeout=timeout_s)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if place.scheme == "http":
        return raw
    return tls_context(job).wrap_socket(raw, server_hostname=place.hostname)


def tls_context(job: Job) -> ssl.SSLContext:
    """Trust what the job trusts."""
    return ssl.create_default_context(cafile=job.ca_file or None)


def request(job: Job, part: Part) -> bytes:
    """Return the head that asks for a part."""
    host = urlsplit(job.endpoint).netloc
    span = f"Range: bytes={part.start}-{part.end - 1}"
    return f"GET /{job.bucket}/{quote(part.key)} HTTP/1.1\r\nHost: {host}\r\n{span}\r\n\r\n".encode()


def read_head(connection: socket.socket) -> bytes:
    """Read the answer's head; return what of the body came with it."""
    head = b""
    while (end := head.find(b"\r\n\r\n")) < 0:
        piece = connection.recv(_HEAD_BYTES)
        assert piece, "expected a head, got the end of the connection"
        head += piece
    assert head.startswith(b"HTTP/1.1 206"), f"expected 206, got {head[:80]!r}"
    return head[end + 4 :]
