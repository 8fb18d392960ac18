"""The requests that daemons send each other, as HTTP/1.1. Pure.

``POST /v1/ROOT/KEY?size=N`` with ``If-Match: "ETAG"`` asks for an entry. 200: the peer holds it. 202: the peer fetches
it. 404: the peer does not have it and will not fetch it. With ``&wait=1`` the answer comes when the fetch has ended.
Meanwhile a ``102`` every few milliseconds shows that the peer is alive. ``GET`` of the same target with ``Range`` reads
the entry, as from S3. ``GET /v1/ping`` does nothing. ROOT and KEY are percent-encoded, also their slashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from feedd.errors import BadRequest
from feedd.values import ByteRange, ObjectRef

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD_BYTES_MAX: Final = 16 * 1024
"""Longest head of a request. S3's longest key takes 3 KiB as percent-encoded text."""
PING: Final = "/v1/ping"
_PREFIX: Final = "/v1/"
_WAIT: Final = "&wait=1"


@dataclass(frozen=True, slots=True)
class EntryRequest:
    """One request, parsed.

    Attributes:
        ref: the entry; None: a ping.
        span: the bytes to read; None: the request asks for the entry.
        wait: the answer shall come when the entry is there.
    """

    ref: ObjectRef | None
    span: ByteRange | None = None
    wait: bool = False


def render(host: str, ref: ObjectRef | None, span: ByteRange | None = None, *, wait: bool = False) -> bytes:
    """Return the head of a request.

    Args:
        host: the peer, for the Host header.
        ref: the entry; None: a ping.
        span: the bytes to read; None: ask for the entry.
        wait: the answer shall come when the entry is there.
    """
    if ref is None:
        return f"GET {PING} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    target = f"{_PREFIX}{_quoted(ref.root)}/{_quoted(ref.key)}?size={ref.size_bytes}{_WAIT if wait else ''}"
    lines = [f"{'POST' if span is None else 'GET'} {target} HTTP/1.1", f"Host: {host}", f'If-Match: "{ref.etag}"']
    lines.append("Content-Length: 0" if span is None else f"Range: bytes={span.start}-{span.end - 1}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def parse(head: bytes) -> EntryRequest:
    """Return the request of a head, which ends with an empty line.

    Raises:
        BadRequest: it is not a request that ``render`` makes.
    """
    seen = _Head()
    parser = HttpRequestParser(seen)
    try:
        parser.feed_data(head)
    except (HttpParserError, HttpParserUpgrade) as error:
        raise BadRequest(f"expected an http request, got {type(error).__name__}", stage="peers") from error
    method = parser.get_method().decode("latin-1")
    if not seen.complete or parser.get_http_version() != "1.1":
        raise BadRequest("expected one http/1.1 request without a body", stage="peers")
    if (method, seen.target) == ("GET", PING):
        return EntryRequest(None)
    try:
        return _parsed(method, seen.target, seen.headers)
    except ValueError as error:
        message = f"expected a request for an entry, got {method} {seen.target[:200]!r}"
        raise BadRequest(message, stage="peers") from error


def _parsed(method: str, target: str, headers: Mapping[str, str]) -> EntryRequest:
    path, _, query = target.partition("?")
    root, slash, key = path.removeprefix(_PREFIX).partition("/")
    wait = query.endswith(_WAIT)
    name, _, size = query.removesuffix(_WAIT).partition("=")
    etag = headers.get("if-match", "")
    if not path.startswith(_PREFIX) or not (root and slash and key) or name != "size" or len(etag) < 3:
        raise ValueError(target)
    ref = ObjectRef(_unquoted(root), _unquoted(key), _count(size), etag[1:-1])
    if f'"{ref.etag}"' != etag or '"' in ref.etag:
        raise ValueError(etag)
    if method == "POST":
        return EntryRequest(ref, wait=wait)
    unit, _, span = headers.get("range", "").partition("=")
    first, _, last = span.partition("-")
    if method != "GET" or unit != "bytes":
        raise ValueError(method)
    wanted = ByteRange(_count(first), _count(last) + 1)
    if not wanted.start < wanted.end <= ref.size_bytes:
        raise ValueError(span)
    return EntryRequest(ref, wanted)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ValueError(text)
    return int(text)


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _unquoted(text: str) -> str:
    return unquote(text, errors="strict")


class _Head:
    """Receives the parts of a head from the parser."""

    def __init__(self) -> None:
        self.target = ""
        self.headers: dict[str, str] = {}
        self.complete = False

    def on_url(self, url: bytes) -> None:
        """Parser: a piece of the target."""
        self.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: a header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_message_complete(self) -> None:
        """Parser: the end of the request."""
        self.complete = True
