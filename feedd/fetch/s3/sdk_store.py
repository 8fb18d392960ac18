"""S3 and compatible stores, through aiobotocore."""

from __future__ import annotations

import base64
import contextlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from feedd.errors import BadResponse, FeeddError, NotFound, ObjectChanged, StoreUnavailable, Unsupported
from feedd.fetch.hints import CHANGED_HINT
from feedd.fetch.s3.bucket_listing import list_pages
from feedd.fetch.s3.listing_contents import ARCHIVED
from feedd.fetch.s3.range_answer import RangeHead, answered_by, check_head, plain_etag
from feedd.fetch.s3.sdk_client import S3Clients
from feedd.fetch.s3.sdk_errors import RequestContext, code_of
from feedd.fetch.s3.stored_checksums import S3Checksums
from feedd.values import ArchivedRef, ObjectRef, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.region import BucketFacts
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectChecksum

_TOTAL = re.compile(r"bytes (?:0-0|\*)/([0-9]{1,16})")
_ETAGS_HINT = "name the objects in a manifest (manifest+s3://...): then a HEAD of each object tells its ETag"
_TRANSCODED = "if the store decompresses the object on the way (Content-Encoding: gzip), clear its Content-Encoding"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What is written with an object.

    Attributes:
        sha256: digest of the content, which the store verifies and keeps.
        metadata: texts by name, ASCII.
    """

    sha256: bytes
    metadata: Mapping[str, str]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a PUT, by the SDK's names."""
        return {"ChecksumSHA256": base64.b64encode(self.sha256).decode(), "Metadata": dict(self.metadata)}


class S3Store:
    """One bucket. Sends each request once: limits, retries and measurements are wrappers.

    Attributes:
        clients: lends the SDK's client.
    """

    def __init__(self, bucket: str, limits: SourceOptions, facts: BucketFacts | None = None) -> None:
        self._bucket = bucket
        self._limits = limits
        self._s3 = limits.for_bucket(bucket)
        self.clients = S3Clients(self._s3, limits, facts)
        self._payer = {"RequestPayer": "requester"} if self._s3.requester_pays else {}
        self._endpoint = self._s3.endpoint_url or "the configured endpoint"
        self._checksums = S3Checksums(self.clients, bucket, self._payer, limits.read_deadline_s(0))

    def __repr__(self) -> str:
        return f"S3Store({self.root})"

    @property
    def root(self) -> str:
        """The root URL, ``s3://bucket``."""
        return f"s3://{self._bucket}"

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield pages in byte order, produced in a separate thread; see ``ObjectStore.list``."""
        request = self.request_context("list", prefix)
        found = list_pages(self._bucket, request, self._limits, start_after, self.clients.facts)
        async with contextlib.aclosing(found) as pages:
            async for page in pages:
                yield page

    async def head(self, key: str) -> ObjectRef:
        """Return the current version; see ``ObjectStore.head``."""
        return (await self.describe(key))[0]

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Return the checksum that S3 stores, in one or two requests; see ``ObjectStore.checksum``."""
        try:
            return await self._checksums.of(ref, self.request_context("head", ref.key, ref.etag))
        except ObjectChanged as changed:
            raise await self.explained(changed, ref) from changed.__cause__

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Receive one range into ``sink``; see ``ObjectStore.read_into``."""
        assert sink.size_bytes == span.size_bytes, "the sink must be exactly as long as the range"
        if not span.size_bytes:
            return
        request = self.request_context("read", ref.key, ref.etag)
        noted = progress or ReadProgress()

        async def ask(client: Any) -> None:  # noqa: ANN401 - see open_client
            answer = await client.get_object(
                Bucket=self._bucket,
                Key=ref.key,
                Range=f"bytes={span.start}-{span.end - 1}",
                IfMatch=f'"{ref.etag}"',
                **self._payer,
            )
            raw = answer["Body"].raw_stream
            try:
                headers = answer["ResponseMetadata"]["HTTPHeaders"]
                noted.answered_by = _sender(headers, raw)
                head = RangeHead(
                    answer["ResponseMetadata"]["HTTPStatusCode"],
                    str(answer.get("ETag", "")),
                    answer.get("ContentRange"),
                    answer.get("ContentLength"),
                    headers,
                )
                check_head(head, ref, span, request)
                await _receive(raw.content, sink, request, noted)
            except BaseException:
                raw.close()  # the rest of the body is unread, so this connection cannot serve another request
                raise

        try:
            await self.clients.call(ask, request, self._limits.read_deadline_s(span.size_bytes))
        except BadResponse:
            noted.filled_bytes = 0
            raise
        except ObjectChanged as changed:
            raise await self.explained(changed, ref) from changed.__cause__

    async def describe(self, key: str) -> tuple[ObjectRef, Mapping[str, str]]:
        """Return the current version and the metadata that its writer gave it; raises what ``head`` raises."""
        request = self.request_context("head", key)

        async def ask(client: Any) -> Mapping[str, Any]:  # noqa: ANN401 - see open_client
            answer: Mapping[str, Any] = await client.head_object(Bucket=self._bucket, Key=key, **self._payer)
            return answer

        answer = await self.clients.call(ask, request, self._limits.read_deadline_s(0))
        etag = _etag_of(answer, request)
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        if status != 200:  # its length says nothing about the object
            message = f"expected status 200 for a HEAD, got {status}"
            raise BadResponse(message, object=request.url, stage="source")
        size_bytes = answer.get("ContentLength")
        if size_bytes is None:  # a proxy that compresses leaves it out
            size_bytes = await self._size_by_range(key, etag, request)
        ref = (ArchivedRef if _is_archived(answer) else ObjectRef)(self.root, key, int(size_bytes), etag)
        return ref, answer.get("Metadata", {})

    async def _size_by_range(self, key: str, etag: str, request: RequestContext) -> int:
        """Return an object's size as the answer to a GET of its first byte states it.

        Raises:
            Unsupported: that answer does not state it either.
            FeeddError: as the store answered.
        """

        async def ask(client: Any) -> str:  # noqa: ANN401 - see open_client
            answer = await client.get_object(
                Bucket=self._bucket, Key=key, Range="bytes=0-0", IfMatch=f'"{etag}"', **self._payer
            )
            answer["Body"].raw_stream.close()
            return str(answer.get("ContentRange", ""))

        try:
            stated = await self.clients.call(ask, request, self._limits.read_deadline_s(1))
        except ObjectChanged as refused:  # an empty object has no first byte
            stated = _stated_range(refused.__cause__)
            if not stated:
                raise
        match = _TOTAL.fullmatch(stated)
        if match is None:
            message = "expected an object of known length, got an answer without content-length"
            raise Unsupported(message, object=request.url, hint=_TRANSCODED, stage="source")
        return int(match[1])

    async def put(self, key: str, data: bytes, over: str | None = None, facts: ObjectFacts | None = None) -> ObjectRef:
        """Create or replace one object and return its ref.

        If the store has no conditional PUT, the condition is dropped and a warning logged.

        Args:
            key: key of the object.
            data: the whole content.
            over: etag of the version to replace; empty: the object must not exist; None: replace any version.
            facts: checksum that the store verifies, and metadata; None: neither.

        Raises:
            ObjectChanged: another version exists, or a version exists although none was expected.
            PermissionDenied, NotFound, StoreUnavailable: as S3 answered.
        """
        request = self.request_context("write", key, over or "")
        fixed = {} if facts is None else facts.arguments
        try:
            return await self._put(key, data, request, _condition(over) | fixed)
        except StoreUnavailable as error:
            if over is None or error.__cause__ is None or code_of(error.__cause__) != "NotImplemented":
                raise
            _log.warning(
                "the store has no conditional PUT: of two concurrent writes, one may be lost", object=request.url
            )
            return await self._put(key, data, request, fixed)

    async def _put(self, key: str, data: bytes, request: RequestContext, arguments: Mapping[str, Any]) -> ObjectRef:
        async def ask(client: Any) -> Mapping[str, Any]:  # noqa: ANN401 - see open_client
            answer: Mapping[str, Any] = await client.put_object(
                Bucket=self._bucket, Key=key, Body=data, **arguments, **self._payer
            )
            return answer

        answer = await self.clients.call(ask, request, self._limits.whole_deadline_s(len(data)))
        return ObjectRef(self.root, key, len(data), _etag_of(answer, request))

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self.clients.aclose()

    def request_context(self, op: str, key: str, etag: str = "") -> RequestContext:
        """Return the description of a request for its errors."""
        return RequestContext(op, f"{self.root}/{key}", self._endpoint, etag, pays=self._s3.requester_pays)

    async def explained(self, changed: ObjectChanged, ref: ObjectRef) -> FeeddError:
        """Return the error for a version that is gone, with the current version, which a refused GET does not name."""
        got = ""
        if changed.__cause__ is not None:  # else the answer came from another version and named it
            try:
                now = await self.head(ref.key)
            except NotFound as gone:
                return gone
            except FeeddError:
                return changed
            if (now.etag, now.size_bytes) == (ref.etag, ref.size_bytes):
                message = f"the store refused a range of an unchanged object: {changed.__cause__}"
                return BadResponse(message, object=ref.url, stage="source")
            got = f"got {now.etag} of {now.size_bytes} bytes"
        if await self._listed_etag(ref.key) == ref.etag:
            message = f"the store's ETags disagree: its listing still says {ref.etag} ({got or changed.message})"
            return Unsupported(message, object=ref.url, hint=_ETAGS_HINT, stage="source")
        if not got:
            return changed
        message = f"expected etag {ref.etag} of {ref.size_bytes} bytes, {got}"
        return ObjectChanged(message, object=ref.url, hint=CHANGED_HINT, stage="source")

    async def _listed_etag(self, key: str) -> str:
        """Return the ETag that a listing has for an object now; empty if it has none, or if there is no answer."""

        async def ask(client: Any) -> Mapping[str, Any]:  # noqa: ANN401 - see open_client
            page: Mapping[str, Any] = await client.list_objects_v2(
                Bucket=self._bucket, Prefix=key, MaxKeys=1, **self._payer
            )
            return page

        try:
            page = await self.clients.call(ask, self.request_context("list", key), self._limits.read_deadline_s(0))
        except FeeddError:
            return ""
        found: Mapping[str, Any] = next((one for one in page.get("Contents", ()) if one.get("Key") == key), {})
        return str(found.get("ETag", "")).removeprefix("W/").strip('"')


def _etag_of(answer: Mapping[str, Any], request: RequestContext) -> str:
    return plain_etag(str(answer.get("ETag", "")), request, answer["ResponseMetadata"]["HTTPHeaders"])


def _stated_range(refusal: BaseException | None) -> str:
    """Return the Content-Range of a refused range; empty if the refusal states none."""
    response: Mapping[str, Any] = getattr(refusal, "response", {})
    return str(response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("content-range", ""))


def _is_archived(answer: Mapping[str, Any]) -> bool:
    """Whether a HEAD is about an object that must be restored. A listing does not tell this of Intelligent-Tiering."""
    restored = 'ongoing-request="false"' in answer.get("Restore", "")
    return not restored and (answer.get("StorageClass") in ARCHIVED or "ArchiveStatus" in answer)


def _condition(over: str | None) -> dict[str, Any]:
    if over is None:
        return {}
    return {"IfMatch": f'"{over}"'} if over else {"IfNoneMatch": "*"}


async def _receive(body: Any, sink: RangeSink, request: RequestContext, noted: ReadProgress) -> None:  # noqa: ANN401 - aiohttp's StreamReader, which only this function touches
    at, size_bytes = 0, sink.size_bytes
    async for chunk, _ in body.iter_chunks():  # chunk by chunk, because joining them would copy once more
        if not at:
            noted.first_byte_s = time.monotonic()
        end = at + len(chunk)
        if end > size_bytes:
            raise BadResponse(f"expected {size_bytes} bytes, got more", object=request.url, stage="source")
        await sink.write(at, chunk)
        at = noted.filled_bytes = end
    if at != size_bytes:
        # not a BadResponse, because the received bytes are good and the rest can be requested
        raise StoreUnavailable(f"expected {size_bytes} bytes, got {at}", object=request.url, stage="source")


def _sender(headers: Mapping[str, str], raw: Any) -> str:  # noqa: ANN401 - aiohttp's ClientResponse
    connection = raw.connection  # None if the whole body came with the head
    peer = None if connection is None else connection.transport.get_extra_info("peername")
    return answered_by(headers, peer[0] if peer else "")
