"""Objects on a web server: ``https://host/path``. A server lists nothing, so each object is named.

Redirects may move an object to another host, such as that of a content delivery network.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from feedd.errors import BadResponse, NotFound, ObjectChanged, StoreUnavailable, Throttled, Unsupported
from feedd.fetch.hints import CHANGED_HINT
from feedd.fetch.s3.errors import FOREIGN
from feedd.fetch.web.client import WebClient, WebRequest, broken, refusal
from feedd.fetch.web.target import lifetime_s, object_target
from feedd.flow.lru import WeightedLru
from feedd.flow.range_sinks import MemorySink
from feedd.units import MIB, format_size
from feedd.values import ByteRange, ObjectRef, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from feedd.errors import FeeddError
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.connection import Answer
    from feedd.fetch.web.target import Target
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectChecksum

WHOLE_BYTES_MAX: Final = 8 * MIB
"""Largest object that is read from a server without ranges, whole for each of its ranges."""

_LOCATIONS_MAX: Final = 4096
_EXPIRED: Final = frozenset({400, 401, 403, 404, 410})
"""Statuses of a redirect's target that a new redirect may cure."""
_FIRST: Final = ByteRange(0, 1)
_CONTENT_RANGE: Final = re.compile(r"bytes (?:[0-9]+-[0-9]+|\*)/([0-9]{1,18})")
_NO_RANGES: Final = (
    "serve the file by a server with byte ranges (nginx, Caddy, any bucket), or copy it to a bucket or a local folder"
)
_WEAK: Final = "weak "
_DATED: Final = "date "
_NAME_EACH: Final = "name each object: shard-{000000..000099}.tar, a list of URLs, or a manifest (manifest+https://...)"


class WholeAnswer(BadResponse):
    """A server sends the whole object in place of a range; raised to leave its body unread."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How a store's objects are asked for, and what their answers must be.

    Attributes:
        start: where the first request goes.
        headers: condition of the requests.
        version: returns the version in the head of a good answer. May raise a FeeddError.
        hop: called with each redirecting answer; may raise a FeeddError.
        secrets: returns the credentials for a target.
        refused: returns the error for a refusal by its status and headers; None: those of web servers.
        moves: redirects lead to hosts whose answers do not state the version, so a known redirect is trusted.
    """

    start: Target
    headers: Mapping[str, str]
    version: Callable[[Answer], str]
    hop: Callable[[Answer, Target], object] = lambda answer, target: None  # noqa: ARG005 - the field's signature
    secrets: Callable[[Target], Mapping[str, str]] = lambda target: {}  # noqa: ARG005 - the field's signature
    refused: Callable[[int, Mapping[str, str]], FeeddError] | None = None
    moves: bool = False


class WebRanges:
    """Reads ranges, and remembers where objects were found until the signature of that address ends.

    Args:
        client: sends the requests.
        limits: deadlines.
    """

    def __init__(self, client: WebClient, limits: SourceOptions) -> None:
        self._client = client
        self._limits = limits
        self._found: WeightedLru[tuple[str, str], tuple[Target, float]] = WeightedLru(_LOCATIONS_MAX)
        self._whole_only: set[str] = set()  # origins that ignored the range of a small object

    def __repr__(self) -> str:
        return f"WebRanges({len(self._found)} redirects known)"

    async def facts(self, asking: Asking, url: str) -> tuple[int, str]:
        """Return size and version of an object, by a request for its first byte.

        A HEAD would not tell whether the server has ranges, and signed URLs permit a GET only.

        Raises:
            Unsupported: the server sends no ranges, and the object is too large to be read whole.
            NotFound, PermissionDenied, StoreUnavailable, Throttled, BadResponse: as the server answered.
        """
        found: list[tuple[int, str]] = []

        def judge(answer: Answer) -> None:
            size_bytes = _size_of(answer, url)
            if answer.status != 206 and size_bytes > WHOLE_BYTES_MAX:
                raise _without_ranges(answer.status, size_bytes, url)
            found.append((size_bytes, asking.version(answer)))
            if answer.status != 206 and size_bytes != 1:
                raise WholeAnswer(f"expected status 206 for a range, got {answer.status}", object=url, stage="source")

        try:
            answer, _ = await self._send(asking, url, _FIRST, MemorySink(memoryview(bytearray(1))), judge)
            if answer.status == 416:  # an empty object has no first byte
                answer, _ = await self._send(asking, url, None, MemorySink(memoryview(bytearray())), judge)
        except WholeAnswer:
            return found[-1]
        if answer.status < 300:
            return found[-1]
        raise self._refused(asking, answer, url)

    async def read(
        self, asking: Asking, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress
    ) -> None:
        """Write a range of a version of an object to ``sink``; see ``ObjectStore.read_into``."""
        if asking.start.origin in self._whole_only and ref.size_bytes <= WHOLE_BYTES_MAX:
            await self._read_whole(asking, ref, span, sink, progress)
            return
        try:
            await self._read_range(asking, ref, span, sink, progress)
        except WholeAnswer:
            self._whole_only.add(asking.start.origin)
            await self._read_whole(asking, ref, span, sink, progress)
        except StoreUnavailable as error:
            if not isinstance(error, Throttled):
                self._found.pop((ref.key, ref.etag))  # its host may be gone: the next try asks where the object is now
            raise

    async def _read_range(
        self, asking: Asking, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress
    ) -> None:
        name = (ref.key, ref.etag)
        known: Target | None = None

        def judge(answer: Answer) -> None:
            progress.answered_by = f"address {answer.address or 'unknown'}"
            if known is None or not asking.moves:
                _check_version(asking.version(answer), ref)
            wanted, got = _content_range(ref, span), answer.headers.get("content-range")
            if answer.status == 206 and got != wanted:
                raise BadResponse(f"expected content-range {wanted!r}, got {got!r}", object=ref.url, stage="source")
            if answer.status != 206 and span.size_bytes != ref.size_bytes:
                if ref.size_bytes > WHOLE_BYTES_MAX:
                    raise _without_ranges(answer.status, ref.size_bytes, ref.url)
                raise WholeAnswer(f"expected status 206, got {answer.status}", object=ref.url, stage="source")

        for known in (self._location(name), None):
            one = asking if known is None else replace(asking, start=known)
            answer, target = await self._send(one, ref.url, span, sink, judge, progress, name)
            if answer.status < 300:
                self._remember(name, asking.start, target)
                return
            if known is None or answer.status not in _EXPIRED:
                raise self._refused(asking, answer, ref.url, ref.etag)

    async def _read_whole(
        self, asking: Asking, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress
    ) -> None:
        """Read an object of a server without ranges, which is small, and keep the range."""
        data = bytearray(ref.size_bytes)

        def judge(answer: Answer) -> None:
            progress.answered_by = f"address {answer.address or 'unknown'}"
            _check_version(asking.version(answer), ref)

        answer, _ = await self._send(asking, ref.url, None, MemorySink(memoryview(data)), judge)
        if answer.status >= 300:
            raise self._refused(asking, answer, ref.url, ref.etag)
        progress.first_byte_s = time.monotonic()
        await sink.write(0, memoryview(data)[span.start : span.end])
        progress.filled_bytes = span.size_bytes

    async def _send(
        self,
        asking: Asking,
        url: str,
        span: ByteRange | None,
        sink: RangeSink,
        judge: Callable[[Answer], object],
        progress: ReadProgress | None = None,
        subject: tuple[str, str] | None = None,
    ) -> tuple[Answer, Target]:
        """Send one request within its deadline; translate the errors of connections."""
        headers = dict(asking.headers)
        if span is not None:
            headers["Range"] = f"bytes={span.start}-{span.end - 1}"
        noted = progress or ReadProgress()
        # a resumed part starts later but ends at the same byte
        same = None if subject is None or span is None else (*subject, span.end)
        request = WebRequest(url, headers, sink, judge, noted, same, asking.hop, asking.secrets)
        try:
            async with asyncio.timeout(self._limits.read_deadline_s(sink.size_bytes)):
                return await self._client.send(asking.start, request)
        except BadResponse as error:
            noted.filled_bytes = 0
            error.object = url  # a connection does not know its object
            raise
        except FOREIGN as error:
            raise broken(error, url, asking.start.origin) from error

    def _location(self, name: tuple[str, str]) -> Target | None:
        """Return where an object was found, if that address is still valid."""
        found = self._found.get(name)
        if found is None:
            return None
        if time.monotonic() >= found[1]:
            self._found.pop(name)
            return None
        return found[0]

    def _remember(self, name: tuple[str, str], start: Target, target: Target) -> None:
        if target == start:
            self._found.pop(name)  # the server no longer redirects
            return
        known = self._found.get(name)
        if known is None or known[0] != target:
            valid_s = lifetime_s(target, time.time())  # noqa: TID251 - signed URLs end at a date
            self._found.put(name, (target, time.monotonic() + valid_s), 1)

    @staticmethod
    def _refused(asking: Asking, answer: Answer, url: str, etag: str = "") -> FeeddError:
        if asking.refused is not None:
            return asking.refused(answer.status, answer.headers)
        return refusal(answer.status, answer.headers, url, etag)


def _check_version(version: str, ref: ObjectRef) -> None:
    if version != ref.etag:
        message = f"expected version {ref.etag}, got {version}"
        raise ObjectChanged(message, object=ref.url, hint=CHANGED_HINT, stage="source")


def _content_range(ref: ObjectRef, span: ByteRange) -> str:
    return f"bytes {span.start}-{span.end - 1}/{ref.size_bytes}"


def _size_of(answer: Answer, url: str) -> int:
    if answer.status != 206:
        if answer.size_bytes is None:
            message = "expected an answer with content-length, got one without"
            raise Unsupported(message, object=url, hint=_NO_RANGES, stage="source")
        return answer.size_bytes
    text = answer.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise BadResponse(f"expected content-range with the object's size, got {text!r}", object=url, stage="source")
    return int(match[1])


def _without_ranges(status: int, size_bytes: int, url: str) -> Unsupported:
    most = format_size(WHOLE_BYTES_MAX)
    message = f"expected status 206 for a range, got {status}: the server has no byte ranges"
    hint = (
        f"{_NO_RANGES}; without ranges, objects of at most {most} can be read, and this has {format_size(size_bytes)}"
    )
    return Unsupported(message, object=url, hint=hint, stage="source")


class WebStore:
    """The root and the connections of a store; see ``ObjectStore``.

    Args:
        root: the root URL, as the user named it.
        limits: bounds of its requests.
    """

    def __init__(self, root: str, limits: SourceOptions) -> None:
        self._root = root
        self._client = WebClient(limits)
        self._ranges = WebRanges(self._client, limits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._root})"

    @property
    def root(self) -> str:
        """The root URL."""
        return self._root

    @property
    def transfer_busy_s(self) -> float:
        """Seconds that its transfer threads have spent on bodies."""
        return self._client.transfer_busy_s

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._client.close()


class HttpStore(WebStore):
    """One web server, by scheme, host and port. Sends each request once.

    The version of an object is its strong ETag, else its weak ETag, else its date of change.
    """

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the object whose key is ``prefix``, if there is one; see ``ObjectStore.list``.

        Raises:
            Unsupported: the prefix is a folder.
        """
        if prefix[-1:] in {"", "/"}:
            message = "expected the URL of an object, got a folder, which a web server does not list"
            raise Unsupported(message, object=f"{self._root}/{prefix}", hint=_NAME_EACH, stage="source")
        try:
            found = await self.head(prefix)
        except NotFound:
            return
        if found.key > start_after:
            yield [found]

    async def head(self, key: str) -> ObjectRef:
        """Return the current version; see ``ObjectStore.head``."""
        url = f"{self._root}/{key}"
        asking = Asking(object_target(self._root, key), {}, lambda answer: _version_of(answer, url))
        size_bytes, version = await self._ranges.facts(asking, url)
        return ObjectRef(self._root, key, size_bytes, version)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:  # noqa: ARG002 - the seam's
        """Return None, because web servers state no checksum."""
        return None

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Receive one range into ``sink``; see ``ObjectStore.read_into``."""
        assert sink.size_bytes == span.size_bytes, "the sink must be exactly as long as the range"
        if not span.size_bytes:
            return
        headers = {} if ref.etag.startswith((_WEAK, _DATED)) else {"If-Match": f'"{ref.etag}"'}
        start = object_target(self._root, ref.key)
        asking = Asking(start, headers, lambda answer: _version_of(answer, ref.url))
        await self._ranges.read(asking, ref, span, sink, progress or ReadProgress())


def _version_of(answer: Answer, url: str) -> str:
    """Return the version in the head of an answer.

    Raises:
        Unsupported: the server states none.
    """
    etag = answer.headers.get("etag", "")
    plain = etag.removeprefix("W/").strip('"')
    if plain and plain.isascii() and plain.isprintable():
        return f"{_WEAK}{plain}" if etag.startswith("W/") else plain
    changed = answer.headers.get("last-modified", "")
    if changed:
        return f"{_DATED}{changed}"
    message = "expected an ETag or Last-Modified header, got neither: a change of the object could not be noticed"
    hint = "let the server send ETags, or copy the object to a bucket or a local folder"
    raise Unsupported(message, object=url, hint=hint, stage="source")
