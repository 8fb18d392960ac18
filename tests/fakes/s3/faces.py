"""The S3 faces of other stores, as their documentation says they differ from S3."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from feedd.fetch.checksums import digest_of
from tests.fakes.s3.answers import Answers, Reply
from tests.fakes.s3.faults import Fault
from tests.fakes.s3.server import S3Server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.fakes.s3.answers import Request
    from tests.fakes.s3.objects import Objects, Stored

_SCOPE = re.compile(r"Credential=[^/]+/[0-9]{8}/([^/]+)/([^/]+)/aws4_request")
_CHECKSUM_HEADERS = ("x-amz-checksum-", "x-amz-sdk-checksum-algorithm")


class FaceServer(S3Server):
    """An S3 server with the manners of ``gcs`` or ``oci``; signatures themselves are not verified.

    ``gcs``: requests signed for the region ``auto``; a signed header about checksums does not match what Google signs;
    HEAD and GET state ``x-goog-hash``. ``oci``: requests signed for ``region``; no checksums, no GetObjectAttributes.
    """

    def __init__(self, face: str, region: str = "auto") -> None:
        super().__init__()
        self._answers = _FaceAnswers(self._objects, face, region)


class _FaceAnswers(Answers):
    def __init__(self, objects: Objects, face: str, region: str) -> None:
        super().__init__(objects)
        self._face, self._region, self._all = face, region, objects

    def answer(self, request: Request, fault: Fault) -> Reply:
        """Refuse as the face does, else answer as S3 does, with the face's headers."""
        scope = _SCOPE.search(request.headers.get("authorization", ""))
        wrong = scope is None or scope[1] != self._region or scope[2] != "s3"
        if self._face == "gcs" and any(name.startswith(_CHECKSUM_HEADERS) for name in request.headers):
            wrong = True
        if wrong:
            return super().answer(request, Fault(status=403, code="SignatureDoesNotMatch"))
        if request.op == "ATTRIBUTES":
            return super().answer(request, Fault(status=501, code="NotImplemented"))
        reply = super().answer(request, fault)
        stored = self._all.find(request.bucket, request.key) if request.op in {"GET", "HEAD"} else None
        if stored is not None and self._face == "gcs":
            reply.headers |= _google(stored)
        return reply


def _google(stored: Stored) -> Mapping[str, str]:
    data = bytes(stored.data or b"")
    crc = base64.b64encode(digest_of("crc32c", data)).decode()
    md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
    return {"x-goog-hash": f"crc32c={crc},md5={md5}", "x-goog-generation": "1", "x-goog-storage-class": "STANDARD"}


class ExpressServer(S3Server):
    """An S3 server with the manners of directory buckets.

    Requests for objects and listings need the token of a session that lasts ``lifetime_s``, and a signature for
    ``s3express``. A listing needs a prefix that is empty or ends in a slash, takes no ``start-after``, and is in any
    order.
    """

    def __init__(self, lifetime_s: float = 300.0) -> None:
        super().__init__()
        self._answers = _ExpressAnswers(self._objects, lifetime_s)


class _ExpressAnswers(Answers):
    def __init__(self, objects: Objects, lifetime_s: float) -> None:
        super().__init__(objects)
        self._lifetime_s = lifetime_s
        self._ends_s: dict[str, float] = {}

    def answer(self, request: Request, fault: Fault) -> Reply:
        """Refuse requests without a session, and listings that a directory bucket does not give."""
        scope = _SCOPE.search(request.headers.get("authorization", ""))
        if request.op != "SESSION":
            ends_s = self._ends_s.get(request.headers.get("x-amz-s3session-token", ""))
            if scope is None or scope[2] != "s3express" or ends_s is None:
                return super().answer(request, Fault(status=403, code="AccessDenied"))
            if time.monotonic() > ends_s:
                return super().answer(request, Fault(status=400, code="ExpiredToken"))
        if request.op == "LIST" and (
            request.query.get("prefix", "/")[-1:] not in {"", "/"} or "start-after" in request.query
        ):
            return super().answer(request, Fault(status=400, code="InvalidRequest"))
        return super().answer(request, fault)

    def _session(self) -> Reply:
        self._session_count += 1
        token = f"session-token-{self._session_count}"
        self._ends_s[token] = time.monotonic() + self._lifetime_s
        ends = datetime.now(UTC) + timedelta(seconds=self._lifetime_s)  # noqa: TID251 - credentials end at a date
        text = f"<AccessKeyId>session{self._session_count}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
        text += f"<SessionToken>{token}</SessionToken><Expiration>{ends:%Y-%m-%dT%H:%M:%S.%fZ}</Expiration>"
        name = "http://s3.amazonaws.com/doc/2006-03-01/"
        body = f'<CreateSessionResult xmlns="{name}"><Credentials>{text}</Credentials></CreateSessionResult>'
        return Reply(headers={"Content-Type": "application/xml"}, body=body.encode())

    def _list(self, request: Request) -> Reply:
        reply = super()._list(request)
        rows = re.findall(rb"<Contents>.*?</Contents>", reply.body)
        head, tail = reply.body[: reply.body.find(b"<Contents>")], b"</ListBucketResult>"
        return Reply(headers=reply.headers, body=head + b"".join(reversed(rows)) + tail) if rows else reply
