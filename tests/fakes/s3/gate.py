"""Whom the scripted S3 server lets in: credentials that ran out, buckets that live elsewhere, clocks that are off."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

from tests.fakes.s3.faults import Fault

if TYPE_CHECKING:
    from tests.fakes.s3.answers import Request

_SCOPE = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/")
_SKEW_MAX = timedelta(minutes=15)  # as S3 has it


class Gate:
    """Judges a request by its signature's scope and time, as S3 does before it looks at anything else.

    Thread-safe: tests write, the server reads. Signatures themselves are not verified.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refused: dict[str, str] = {}
        self._regions: dict[str, Fault] = {}
        self._ahead: timedelta | None = None

    def refuse(self, access_key: str, code: str = "ExpiredToken") -> None:
        """Answer all requests signed with that key with 400 and ``code`` from now on."""
        with self._lock:
            self._refused[access_key] = code

    def place(self, bucket: str, region: str, code: str = "PermanentRedirect") -> None:
        """Refuse requests for ``bucket`` that are signed for another region, and name that in a header."""
        status = 301 if code == "PermanentRedirect" else 400
        with self._lock:
            self._regions[bucket] = Fault(status=status, code=code, headers=(("x-amz-bucket-region", region),))

    def set_clock(self, ahead_s: float) -> None:
        """Refuse requests that are signed at another time than this far ahead of the machine's."""
        with self._lock:
            self._ahead = timedelta(seconds=ahead_s)

    def refusal(self, request: Request) -> Fault | None:
        """Return what to answer instead; None lets the request pass."""
        scope = _SCOPE.search(request.headers.get("authorization", ""))
        if scope is None:
            return None
        with self._lock:
            code, elsewhere, ahead = self._refused.get(scope[1]), self._regions.get(request.bucket), self._ahead
        if code is not None:
            return Fault(status=400, code=code)
        if elsewhere is not None and scope[2] != elsewhere.headers[0][1]:
            return elsewhere
        if ahead is not None:
            return _judge_time(request, datetime.now(UTC) + ahead)  # noqa: TID251 - a signature states its date
        return None


def _judge_time(request: Request, now: datetime) -> Fault | None:
    signed_at = datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if abs(signed_at - now) <= _SKEW_MAX:
        return None
    return Fault(status=403, code="RequestTimeTooSkewed", headers=(("Date", format_datetime(now, usegmt=True)),))
