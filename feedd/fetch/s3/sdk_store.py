"""S3 and compatible stores, through aiobotocore."""

from __future__ import annotations

import base64
import contextlib
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
                noted.answered_by = _sender(answer["ResponseMetadata"]["HTTPHeaders"], raw)
                head = RangeHead(
                    answer["ResponseMetadata"]["HTTPStatusCode"],
                    str(answer.get("ETag", "")),
                    answer.get("ContentRange"),
                    answer.get("ContentLength"),
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
        etag = plain_etag(str(answer.get("ETag", "")), request)
        if "ContentLength" not in answer:
            message = "expected an object of known length, got an answer without content-length"
            raise Unsupported(message, object=request.url, hint=_TRANSCODED, stage="source")
        ref = (ArchivedRef if _is_archived(answer) else ObjectRef)(self.root, key, int(answer["ContentLength"]), etag)
        return ref, answer.get("Metadata", {})

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
        return ObjectRef(self.root, key, len(data), plain_etag(str(answer.get("ETag", "")), request))

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self.clients.aclose()

    def request_context(self, op: str, key: str, etag: str = "") -> RequestContext:
        """Return the description of a request for its errors."""
        return RequestContext(op, f"{self.root}/{key}", self._endpoint, etag, pays=self._s3.requester_pays)

    async def explained(self, changed: ObjectChanged, ref: ObjectRef) -> FeeddError:
        """Return the error for a version that is gone, with the current version, which a refused GET does not name."""
        if changed.__cause__ is None:
            return changed  # the answer came from another version and named it
        try:
            now = await self.head(ref.key)
        except NotFound as gone:
            return gone
        except FeeddError:
            return changed
        if (now.etag, now.size_bytes) == (ref.etag, ref.size_bytes):
            message = f"the store refused a range of an unchanged object: {changed.__cause__}"
            return BadResponse(message, object=ref.url, stage="source")
        said = f"etag {ref.etag} of {ref.size_bytes} bytes, got {now.etag} of {now.size_bytes} bytes"
        return ObjectChanged(f"expected {said}", object=ref.url, hint=CHANGED_HINT, stage="source")


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
