"""Scripted misbehaviour of the fake S3 server: what goes wrong, for which key, at which request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Ending = Literal["keep", "close", "reset"]
Framing = Literal["length", "chunked", "close"]

_LATE_S: Final = 0.02
"""A sender that wakes so late goes on as if it had woken in time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One deviation from a good answer; fields combine.

    Attributes:
        status: answer with this error status and ``code`` instead.
        message: text of that error; empty: the usual one.
        headers: set on the answer.
        delay_s: wait before the first byte.
        hang: never answer.
        body_bytes: send only this much of the body, then do ``ending``; None: all of it.
        ending: what happens to the connection after the body.
        short_bytes: announce and send that much less.
        extra_bytes: announce and send that much more.
        ignore_range: 200 with the whole object although a range was asked for.
        range_shift: move the numbers of Content-Range by this.
        etag: pretend the object has this ETag, and ignore If-Match.
        drip_bytes_s: send no faster than this.
        surplus_bytes: send that much behind the end of the answer.
        framing: how the end of the body is told.
        omit: headers left out of the answer, spelled as the server spells them.
        flip_at: change one bit of the object's byte there, in answers that contain it; -1: none.
        body_shift: answer with the range that lies so many bytes further on (or back, at the object's end), and say so.
        wrong_checksum: tell a checksum with one bit changed.
    """

    status: int = 0
    code: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0
    hang: bool = False
    body_bytes: int | None = None
    ending: Ending = "keep"
    short_bytes: int = 0
    extra_bytes: int = 0
    ignore_range: bool = False
    range_shift: int = 0
    etag: str = ""
    drip_bytes_s: int = 0
    surplus_bytes: int = 0
    framing: Framing = "length"
    omit: tuple[str, ...] = ()
    message: str = ""
    flip_at: int = -1
    body_shift: int = 0
    wrong_checksum: bool = False


NO_FAULT = Fault()


def slow_down(retry_after_s: float | None = None) -> Fault:
    """503 SlowDown, with Retry-After where given."""
    headers = () if retry_after_s is None else (("Retry-After", f"{retry_after_s:g}"),)
    return Fault(status=503, code="SlowDown", headers=headers)


def internal_error() -> Fault:
    """500 InternalError."""
    return Fault(status=500, code="InternalError")


def reset_before() -> Fault:
    """RST instead of an answer."""
    return Fault(body_bytes=-1, ending="reset")


def reset_in_body(after_bytes: int) -> Fault:
    """RST after that much of the body."""
    return Fault(body_bytes=after_bytes, ending="reset")


def cut_body(after_bytes: int) -> Fault:
    """Clean close after that much of the body, before Content-Length is reached."""
    return Fault(body_bytes=after_bytes, ending="close")


def reset_at_end() -> Fault:
    """RST right after a whole, good body."""
    return Fault(ending="reset")


def short_body(missing_bytes: int) -> Fault:
    """A well-formed answer that is shorter than the range asked for."""
    return Fault(short_bytes=missing_bytes)


def extra_bytes(count: int) -> Fault:
    """A well-formed answer that is longer than the range asked for."""
    return Fault(extra_bytes=count)


def surplus(count: int) -> Fault:
    """A good answer, and then bytes that belong to nothing."""
    return Fault(surplus_bytes=count)


def chunked() -> Fault:
    """A good answer whose length is not told in advance."""
    return Fault(framing="chunked")


def until_close() -> Fault:
    """A good answer that ends where the connection does."""
    return Fault(framing="close", ending="close")


def wrong_content_range(shift: int = 1) -> Fault:
    """206 that claims another range."""
    return Fault(range_shift=shift)


def other_range(shift: int = 1) -> Fault:
    """206 with another range than asked for, and a Content-Range that is true of it."""
    return Fault(body_shift=shift)


def without(*headers: str) -> Fault:
    """A good answer that lacks those headers."""
    return Fault(omit=headers)


def refused(status: int, code: str, message: str = "") -> Fault:
    """An error."""
    return Fault(status=status, code=code, message=message)


def whole_object() -> Fault:
    """200 with the whole object for a range request."""
    return Fault(ignore_range=True)


def changed_etag(etag: str = "feedfeedfeedfeedfeedfeedfeedfeed") -> Fault:
    """A good answer of another version, in spite of If-Match."""
    return Fault(etag=etag)


def hang() -> Fault:
    """No answer, connection open."""
    return Fault(hang=True)


def hang_in_body(after_bytes: int) -> Fault:
    """That much of the body, then silence."""
    return Fault(hang=True, body_bytes=after_bytes)


def drip(bytes_s: int) -> Fault:
    """A good answer, very slowly."""
    return Fault(drip_bytes_s=bytes_s)


def late(delay_s: float) -> Fault:
    """A good answer whose first byte comes late."""
    return Fault(delay_s=delay_s)


def denied() -> Fault:
    """403 AccessDenied."""
    return Fault(status=403, code="AccessDenied")


def missing() -> Fault:
    """404 NoSuchKey although the key is there."""
    return Fault(status=404, code="NoSuchKey")


def expired_token() -> Fault:
    """400 ExpiredToken."""
    return Fault(status=400, code="ExpiredToken")


def flipped_bit(at: int) -> Fault:
    """A good answer but for one bit of the object's byte ``at``."""
    return Fault(flip_at=at)


def wrong_checksum() -> Fault:
    """A good answer to a HEAD, with the checksum of other bytes."""
    return Fault(wrong_checksum=True)


def moved(region: str) -> Fault:
    """301 that names the region to go to."""
    return Fault(status=301, code="PermanentRedirect", headers=(("x-amz-bucket-region", region),))


@dataclass(slots=True)
class _Line:
    op: str
    bucket: str
    key: str
    faults: deque[Fault | None]
    always: Fault | None


class SharedRate:
    """Lets bytes pass at a rate, in the order in which they come. A pause brings no bytes for later."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._free_s = 0.0

    async def take(self, count: int) -> None:
        """Wait until so many bytes may pass."""
        now_s = time.monotonic()
        if now_s - self._free_s > _LATE_S:
            self._free_s = now_s
        self._free_s += count / self._bytes_s
        if self._free_s > now_s:
            await asyncio.sleep(self._free_s - now_s)


class Script:
    """Which fault the next request meets. Thread-safe: tests write, the server reads.

    Attributes:
        rate: how fast all bodies together are sent; None: as fast as they go.
    """

    def __init__(self, rate: SharedRate | None = None) -> None:
        self.rate = rate
        self._lines: list[_Line] = []
        self._lock = threading.Lock()

    def add(self, op: str, bucket: str, key: str, faults: Sequence[Fault | None], always: Fault | None) -> None:
        """Queue ``faults`` for the coming requests that match; None lets one pass; ``*`` matches any."""
        with self._lock:
            self._lines.append(_Line(op, bucket, key, deque(faults), always))

    def clear(self) -> None:
        """Behave from now on."""
        with self._lock:
            self._lines.clear()

    def take(self, op: str, bucket: str, key: str) -> Fault:
        """Return what this request meets; the first matching line that still has something decides."""
        with self._lock:
            for line in self._lines:
                asked = ((line.op, op), (line.bucket, bucket), (line.key, key))
                if any(want not in {"*", got} for want, got in asked):
                    continue
                if line.faults:
                    return line.faults.popleft() or NO_FAULT
                if line.always is not None:
                    return line.always
        return NO_FAULT
