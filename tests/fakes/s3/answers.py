"""What the fake S3 server answers to a request: pure, but for the objects' files."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote_plus, unquote
from xml.sax.saxutils import escape

from tests.fakes.s3.checksums import Checksums

if TYPE_CHECKING:
    from tests.fakes.s3.faults import Fault
    from tests.fakes.s3.objects import Objects, Stored

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_METADATA = "x-amz-meta-"
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_MESSAGES = {
    "NoSuchKey": "The specified key does not exist.",
    "NoSuchBucket": "The specified bucket does not exist",
    "AccessDenied": "Access Denied",
    "SlowDown": "Please reduce your request rate.",
    "ExpiredToken": "The provided token has expired.",
    "InvalidObjectState": "The operation is not valid for the object's storage class",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in; header names in lower case."""

    method: str
    op: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""

    @property
    def range(self) -> str | None:
        """The Range header."""
        return self.headers.get("range")


@dataclass(slots=True)
class Reply:
    """An answer: body bytes, or ``[start, start + size)`` of a stored object."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    stored: Stored | None = None
    start: int = 0
    size: int = 0


def _error(status: int, code: str, request: Request, message: str = "", **headers: str) -> Reply:
    said = escape(message or _MESSAGES.get(code, code))
    text = f"{_XML}<Error><Code>{code}</Code><Message>{said}</Message>"
    text += f"<Resource>/{escape(request.bucket)}/{escape(request.key)}</Resource><RequestId>fake</RequestId></Error>"
    return Reply(status, {"Content-Type": "application/xml", **headers}, text.encode())


def operation(method: str, key: str, query: dict[str, str]) -> str:
    """Name what is asked for, as scripts and statistics name it."""
    if key:
        return "ATTRIBUTES" if method == "GET" and "attributes" in query else method
    if method == "GET":
        return "SESSION" if "session" in query else "LOCATION" if "location" in query else "LIST"
    return f"{method}_BUCKET"


def parse_head(head: bytes) -> Request:
    """Take a request's head apart, blank line included; its body, if it has one, is the caller's to read."""
    first, *rest = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    path, _, text = target.partition("?")
    query = {name: values[0] for name, values in parse_qs(text, keep_blank_values=True).items()} if text else {}
    bucket, _, key = path.lstrip("/").partition("/")
    bucket, key = unquote(bucket), unquote(key)
    return Request(method, operation(method, key, query), bucket, key, query, headers)


def encoded_key(text: str) -> str:
    """Encode a key for a listing with ``encoding-type=url``, as AWS does: a space is ``+`` and a plus ``%2B``."""
    return quote_plus(text, safe="/*").replace("~", "%7E")


class Answers:
    """From request to reply; no I/O but the objects'.

    Attributes:
        archived: headers of objects in an archive, which can be read if ``x-amz-restore`` says that they are restored.
    """

    def __init__(self, objects: Objects, checksums: Checksums | None = None) -> None:
        self._objects = objects
        self._session_count = 0
        self._checksums = checksums or Checksums()
        self._metadata: dict[tuple[str, str], dict[str, str]] = {}  # of objects that came by PUT
        self.archived: dict[tuple[str, str], dict[str, str]] = {}

    def answer(self, request: Request, fault: Fault) -> Reply:
        """Return the good reply, or the error the fault asks for."""
        if fault.status:
            return _error(fault.status, fault.code, request, fault.message, **dict(fault.headers))
        if request.op == "PUT_BUCKET":
            self._objects.create(request.bucket)
        elif not request.bucket:
            names = "".join(f"<Bucket><Name>{name}</Name></Bucket>" for name in self._objects.buckets())
            text = f"<ListAllMyBucketsResult><Buckets>{names}</Buckets></ListAllMyBucketsResult>"
            return Reply(body=(_XML + text).encode())
        elif not self._objects.has(request.bucket):
            return _error(404, "NoSuchBucket", request)
        elif request.op in {"GET", "HEAD"}:
            return self._get(request, fault)
        elif request.op == "ATTRIBUTES":
            return self._attributes(request)
        return self._other(request)

    def _attributes(self, request: Request) -> Reply:
        stored = self._objects.find(request.bucket, request.key)
        if stored is None:
            return _error(404, "NoSuchKey", request)
        body = self._checksums.attributes(request.bucket, request.key, stored, request.headers)
        return Reply(headers={"Content-Type": "application/xml"}, body=body)

    def _other(self, request: Request) -> Reply:
        reply = Reply()
        match request.op:
            case "LIST":
                reply = self._list(request)
            case "LOCATION":
                reply.body = f"{_XML}<LocationConstraint></LocationConstraint>".encode()
            case "PUT":
                reply = self._put(request)
            case "SESSION":
                reply = self._session()
            case "DELETE":
                self._objects.delete(request.bucket, request.key)
                reply.status = 204
            case "HEAD_BUCKET":
                reply.headers["x-amz-bucket-region"] = "us-east-1"
            case "PUT_BUCKET":
                pass
            case _:
                reply = _error(405, "MethodNotAllowed", request)
        return reply

    def _put(self, request: Request) -> Reply:
        there = self._objects.find(request.bucket, request.key)
        wanted = request.headers.get("if-match")
        if wanted is not None and there is None:
            return _error(404, "NoSuchKey", request)
        other = wanted is not None and there is not None and wanted.strip('"') != there.etag
        if other or (there is not None and request.headers.get("if-none-match") == "*"):
            return _error(412, "PreconditionFailed", request)
        digest = request.headers.get("x-amz-checksum-sha256")
        if digest is not None and base64.b64decode(digest) != hashlib.sha256(request.body).digest():
            return _error(400, "BadDigest", request, "The SHA256 you specified did not match the calculated checksum.")
        stored = self._objects.put(request.bucket, request.key, request.body)
        self._metadata[request.bucket, request.key] = {
            name: value for name, value in request.headers.items() if name.startswith(_METADATA)
        }
        return Reply(headers={"ETag": f'"{stored.etag}"'})

    def _session(self) -> Reply:
        """Open a session with a directory bucket: the next key of a row."""
        self._session_count += 1
        now = datetime.now(UTC)  # noqa: TID251 - credentials end at a date
        ends = (now + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
        number = self._session_count
        text = f"<AccessKeyId>session{number}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
        text += f"<SessionToken>session-token-{number}</SessionToken><Expiration>{ends}</Expiration>"
        name = "http://s3.amazonaws.com/doc/2006-03-01/"
        text = f'{_XML}<CreateSessionResult xmlns="{name}"><Credentials>{text}</Credentials></CreateSessionResult>'
        return Reply(headers={"Content-Type": "application/xml"}, body=text.encode())

    def _get(self, request: Request, fault: Fault) -> Reply:
        stored = self._objects.find(request.bucket, request.key)
        if stored is None:
            return _error(404, "NoSuchKey", request)
        etag = fault.etag or stored.etag
        wanted = request.headers.get("if-match", "*").strip('"')
        if not fault.etag and wanted not in {"*", etag}:
            return _error(412, "PreconditionFailed", request)
        headers = {"ETag": f'"{etag}"', "Accept-Ranges": "bytes", "Content-Type": "binary/octet-stream"}
        headers["Last-Modified"] = "Wed, 01 Jan 2025 00:00:00 GMT"
        headers.update(self._metadata.get((request.bucket, request.key), {}))
        archive = self.archived.get((request.bucket, request.key), {})
        if archive and request.op == "GET" and 'ongoing-request="false"' not in archive.get("x-amz-restore", ""):
            return _error(403, "InvalidObjectState", request)
        headers.update(archive)
        headers.update(fault.headers)
        start, end = 0, stored.size_bytes
        match = _RANGE.fullmatch(request.range or "")
        if match is None or fault.ignore_range:
            if request.headers.get("x-amz-checksum-mode") == "ENABLED":  # S3 tells it with no range
                wrong = fault.wrong_checksum
                headers |= self._checksums.headers(request.bucket, request.key, stored, wrong=wrong)
            return Reply(200, headers, stored=stored, start=0, size=end)
        if match[1]:
            start = int(match[1])
            end = min(end, int(match[2]) + 1) if match[2] else end
        else:
            start = max(0, end - int(match[2]))
        if start >= end:
            return _error(416, "InvalidRange", request)
        moved = fault.body_shift if end + fault.body_shift <= stored.size_bytes else -fault.body_shift
        start, end = start + moved, end + moved
        shift = fault.range_shift
        headers["Content-Range"] = f"bytes {start + shift}-{end - 1 + shift}/{stored.size_bytes}"
        return Reply(206, headers, stored=stored, start=start, size=end - start)

    def _storage_class(self, bucket: str, key: str) -> str:
        return self.archived.get((bucket, key), {}).get("x-amz-storage-class", "STANDARD")

    def _list(self, request: Request) -> Reply:
        query = request.query
        prefix, count = query.get("prefix", ""), min(1000, int(query.get("max-keys", "1000")))
        token = query.get("continuation-token", "")
        after = bytes.fromhex(token).decode() if token else query.get("start-after", "")
        url = query.get("encoding-type") == "url"
        shown = encoded_key if url else escape
        page, more = self._objects.page(request.bucket, prefix, after, count)
        parts = [f"<Name>{request.bucket}</Name><Prefix>{shown(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"]
        parts.append(f"<MaxKeys>{count}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>")
        if url:
            parts.append("<EncodingType>url</EncodingType>")
        if more:
            parts.append(f"<NextContinuationToken>{page[-1][0].encode().hex()}</NextContinuationToken>")
        parts += [
            f"<Contents><Key>{shown(key)}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{stored.etag}&quot;</ETag><Size>{stored.size_bytes}</Size>"
            f"<StorageClass>{self._storage_class(request.bucket, key)}</StorageClass></Contents>"
            for key, stored in page
        ]
        name = "http://s3.amazonaws.com/doc/2006-03-01/"
        text = f'{_XML}<ListBucketResult xmlns="{name}">{"".join(parts)}</ListBucketResult>'
        return Reply(headers={"Content-Type": "application/xml"}, body=text.encode())
