"""Checks the head of an answer to a ranged GET before its body counts; the same for every transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.errors import BadResponse, ObjectChanged
from feedd.fetch.hints import CHANGED_HINT
from feedd.fetch.s3.sdk_errors import ForeignAnswer
from feedd.fetch.s3.who_answered import FIRST_BYTES, who_answered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.fetch.s3.sdk_errors import RequestContext
    from feedd.values import ByteRange, ObjectRef

_NO_ETAG_HINT: Final = (
    "feedd tells versions of an object apart by their ETags: let the store, or its gateway, send them"
)


@dataclass(frozen=True, slots=True)
class RangeHead:
    """The checked fields of an answer's head.

    Attributes:
        status: HTTP status.
        etag: the raw header; empty if missing.
        content_range: the raw header.
        size_bytes: Content-Length; None: the body ends in another way, and its receiver counts its bytes.
        headers: all headers, which name the sender of a wrong answer.
        first_bytes: beginning of the body, as far as known.
    """

    status: int
    etag: str
    content_range: str | None
    size_bytes: int | None
    headers: Mapping[str, str]
    first_bytes: bytes | memoryview = b""


def plain_etag(
    header: str, request: RequestContext, headers: Mapping[str, str], status: int = 200, first: bytes | memoryview = b""
) -> str:
    """Return an ETag without quotes.

    Args:
        header: the ETag header; empty: there is none.
        request: the request, for errors.
        headers: all headers, which name the sender of a wrong answer.
        status: HTTP status.
        first: beginning of the body, as far as known.

    Raises:
        BadResponse: there is none.
    """
    etag = header.removeprefix("W/").strip('"')
    if not etag:
        answerer = who_answered(status, headers, bytes(first[:FIRST_BYTES]))
        message = f"expected an object with an ETag header, got none from {answerer.name}"
        foreign = ForeignAnswer(status, headers, answerer) if answerer.is_foreign else None
        raise BadResponse(message, object=request.url, hint=answerer.hint or _NO_ETAG_HINT, stage="source") from foreign
    return etag


def answered_by(headers: Mapping[str, str], address: str) -> str:
    """Return the sender of an answer, in the form that messages and S3's support need."""
    return f"request id {headers.get('x-amz-request-id', 'unknown')}, address {address or 'unknown'}"


def check_head(head: RangeHead, ref: ObjectRef, span: ByteRange, request: RequestContext) -> None:
    """Refuse an answer that is not the requested range.

    Raises:
        ObjectChanged: the answer is of another version.
        BadResponse: the answer has another range or length.
    """
    whole = span.size_bytes == ref.size_bytes
    wanted = f"bytes {span.start}-{span.end - 1}/{ref.size_bytes}"
    etag = plain_etag(head.etag, request, head.headers, head.status, head.first_bytes)
    problem = ""
    if head.status == 206 and head.content_range != wanted:
        problem = f"expected content-range {wanted!r}, got {head.content_range!r}"
    elif head.status != 206 and not (head.status == 200 and whole):
        problem = f"expected status 206 for a range, got {head.status}"
    elif head.size_bytes is not None and head.size_bytes != span.size_bytes:
        problem = f"expected {span.size_bytes} bytes, got an answer of {head.size_bytes}"
    if problem and head.headers.get("content-encoding", "identity") != "identity":
        problem += f" with Content-Encoding {head.headers['content-encoding'][:40]!r}: a gateway may compress answers"
    if etag != ref.etag:
        message = f"expected etag {ref.etag}, got {etag}"
        raise ObjectChanged(message, object=request.url, hint=CHANGED_HINT, stage="source")
    if problem:
        raise BadResponse(problem, object=request.url, stage="source")
