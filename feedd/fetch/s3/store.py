"""S3 and compatible stores: ranged GETs go straight into the sink, without the SDK.

botocore still finds credentials and endpoint, signs, lists, and does everything else that is rare.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from botocore.exceptions import ClientError
from botocore.parsers import create_parser

from feedd.errors import (
    BadRequest,
    BadResponse,
    FeeddError,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    StoreUnavailable,
    Unsupported,
)
from feedd.fetch.checksums import ALGORITHMS, digest_of
from feedd.fetch.hints import CHANGED_HINT
from feedd.fetch.once import Once
from feedd.fetch.s3.bodies import Files
from feedd.fetch.s3.client import S3Clients, is_google, trusted_authorities
from feedd.fetch.s3.connection import UnframedBody
from feedd.fetch.s3.errors import (
    MOVED,
    ForeignAnswer,
    RequestContext,
    Sender,
    answered_by,
    check_head,
    code_of,
    foreign_answer,
    plain_etag,
    who_answered,
)
from feedd.fetch.s3.listing import ARCHIVED, list_pages
from feedd.fetch.s3.pool import ConnectionPool, endpoint_of
from feedd.fetch.s3.sign import Template, catch_template
from feedd.fetch.s3.tls import Trust, shown_by
from feedd.fetch.s3.transfer import TransferThreads
from feedd.flow.pools import LOCAL_FILES
from feedd.values import ArchivedRef, ObjectChecksum, ObjectRef, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.connection import Answer
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange

_log = structlog.get_logger(__name__)

_FIELDS = {name: f"Checksum{name.upper()}" for name in ALGORITHMS}  # botocore's field names
_PARTS_PER_PAGE = 1000
_PARTS_MAX = 10_000
_GOOGLE_CRC = re.compile(r"\bcrc32c=([A-Za-z0-9+/=]+)")
_TOTAL = re.compile(r"bytes (?:0-0|\*)/([0-9]{1,16})")
_ETAGS_HINT = "name the objects in a manifest (manifest+s3://...): then a HEAD of each object tells its ETag"
_TRANSCODED = "if the store decompresses the object on the way (Content-Encoding: gzip), clear its Content-Encoding"


class S3Checksums:
    """Gets checksums of one bucket: a HEAD per object, and for composite checksums the parts, a thousand at a time."""

    def __init__(self, clients: S3Clients, bucket: str, payer: Mapping[str, str], deadline_s: float) -> None:
        self._clients = clients
        self._bucket = bucket
        self._payer = payer
        self._deadline_s = deadline_s
        self._logged = False

    async def of(self, ref: ObjectRef, request: RequestContext) -> ObjectChecksum | None:
        """Return the object's checksum, or None if there is none or its parts are unknown.

        Raises:
            BadResponse: the store contradicts itself, or the digest is malformed.
            Whatever ``ObjectStore.checksum`` raises.
        """
        answer = await self._call("head_object", request, ref, ChecksumMode="ENABLED", IfMatch=f'"{ref.etag}"')
        _check_version(answer, ref, request)
        # A proxy that compresses leaves the length out. The ETag has just told the version.
        if int(answer.get("ContentLength", ref.size_bytes)) != ref.size_bytes:
            message = f"expected {ref.size_bytes} bytes, got an object of {answer['ContentLength']}"
            raise BadResponse(message, object=request.url, stage="source")
        for algorithm, name in _FIELDS.items():
            if answer.get(name):
                return await self._read(algorithm, str(answer[name]), str(answer.get("ChecksumType", "")), ref, request)
        google = _GOOGLE_CRC.search(answer["ResponseMetadata"]["HTTPHeaders"].get("x-goog-hash", ""))
        return None if google is None else ObjectChecksum("crc32c", _decode("crc32c", google[1], request))

    async def _read(
        self, algorithm: str, text: str, kind: str, ref: ObjectRef, request: RequestContext
    ) -> ObjectChecksum | None:
        encoded, _, count = text.partition("-")
        digest = _decode(algorithm, encoded, request)
        # A store that names no type predates other types of multipart uploads, whose ETags look like "...-3".
        untold = not kind and "-" in ref.etag and algorithm != "crc64nvme"
        if kind != "COMPOSITE" and not count and not untold:
            return ObjectChecksum(algorithm, digest)
        parts = await self._parts(algorithm, ref, request)
        sizes, digests = tuple(size for size, _ in parts), tuple(found for _, found in parts if found is not None)
        if sum(sizes) != ref.size_bytes or (count and count != str(len(parts))) or not parts:
            self._log_unknown_parts(ref, "the store does not list them")
            return None
        return ObjectChecksum(algorithm, digest, sizes, digests if len(digests) == len(sizes) else ())

    async def _parts(self, algorithm: str, ref: ObjectRef, request: RequestContext) -> list[tuple[int, bytes | None]]:
        """Return size and digest of each part; empty if the store does not list them, or lists what cannot be."""
        found: list[tuple[int, bytes | None]] = []
        marker = 0
        while True:
            try:
                page = await self._call(
                    "get_object_attributes",
                    request,
                    ref,
                    ObjectAttributes=["ETag", "ObjectParts"],
                    MaxParts=_PARTS_PER_PAGE,
                    PartNumberMarker=marker,
                )
                _check_version(page, ref, request)  # the request has no If-Match
            except (BadRequest, BadResponse, NotFound, PermissionDenied) as error:
                self._log_unknown_parts(ref, error.message)
                return []
            except StoreUnavailable as error:
                if not _is_unknown_request(error.__cause__):
                    raise
                self._log_unknown_parts(ref, error.message)
                return []
            listed = page.get("ObjectParts", {})
            parts = listed.get("Parts", [])
            for part in parts:
                text = part.get(_FIELDS[algorithm])
                found.append((int(part.get("Size", 0)), _decode(algorithm, text, request) if text else None))
            size_bytes = [0, *(size for size, _ in found)]
            before, marker = marker, int(listed.get("NextPartNumberMarker", marker + len(parts)))
            ends = not parts or not listed.get("IsTruncated")
            wrong = min(size_bytes) < 0 or sum(size_bytes) > ref.size_bytes or len(found) > _PARTS_MAX
            if wrong or (marker <= before and not ends):
                self._log_unknown_parts(ref, "the store lists parts that cannot be")
                return []
            if ends:
                return found

    async def _call(self, name: str, request: RequestContext, ref: ObjectRef, **arguments: object) -> Mapping[str, Any]:
        async def ask(client: Any) -> Mapping[str, Any]:  # noqa: ANN401 - see open_client
            method = getattr(client, name)
            more = {**arguments, **self._payer}
            if is_google(client.meta.endpoint_url):
                more.pop("ChecksumMode", None)  # it states its checksum unasked, and refuses the signed header
            answer: Mapping[str, Any] = await method(Bucket=self._bucket, Key=ref.key, **more)
            return answer

        return await self._clients.call(ask, request, self._deadline_s)

    def _log_unknown_parts(self, ref: ObjectRef, reason: str) -> None:
        if not self._logged:
            self._logged = True
            hint = "grant s3:GetObjectAttributes to have such objects checked"
            _log.warning("parts of a composite checksum are unknown", object=ref.url, reason=reason, hint=hint)


def _is_unknown_request(cause: BaseException | None) -> bool:
    """Whether the store does not know the request for parts.

    It may refuse it, or answer with the object itself or with a page, which botocore takes for an error 500.
    """
    if not isinstance(cause, ClientError):
        return False
    headers = cause.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    other = "etag" in headers or who_answered(200, headers, b"").sender is Sender.PAGE
    return code_of(cause) == "NotImplemented" or (code_of(cause) == "500" and other)


def _check_version(answer: Mapping[str, Any], ref: ObjectRef, request: RequestContext) -> None:
    etag = plain_etag(str(answer.get("ETag", "")), request, answer["ResponseMetadata"]["HTTPHeaders"])
    if etag != ref.etag:
        message = f"expected etag {ref.etag}, got {etag}"
        raise ObjectChanged(message, object=request.url, hint=CHANGED_HINT, stage="source")


def _decode(algorithm: str, text: str, request: RequestContext) -> bytes:
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error:
        digest = b""
    if len(digest) != len(digest_of(algorithm, b"")):
        raise BadResponse(f"expected a {algorithm} in base64, got {text!r}", object=request.url, stage="source")
    return digest


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


@dataclass(frozen=True, slots=True)
class _Part:
    """One read: the range, its sink, and its name in errors."""

    ref: ObjectRef
    span: ByteRange
    sink: RangeSink
    progress: ReadProgress
    request: RequestContext


class S3Store:
    """One bucket. Receives ranges by itself; the SDK sends all other requests.

    Sends each request once, except on a kept connection that the server had closed already. Limits, retries and
    measurements are wrappers.

    Attributes:
        clients: lends the SDK's client.
    """

    def __init__(self, bucket: str, limits: SourceOptions) -> None:
        self._bucket = bucket
        self._limits = limits
        self._s3 = limits.for_bucket(bucket)
        self.clients = S3Clients(self._s3, limits)
        self._payer = {"RequestPayer": "requester"} if self._s3.requester_pays else {}
        self._endpoint = self._s3.endpoint_url or "the configured endpoint"
        self._checksums = S3Checksums(self.clients, bucket, self._payer, limits.read_deadline_s(0))
        self._templates: tuple[object, Once[Template]] | None = None  # with the client they were caught from
        self._pools: dict[str, ConnectionPool] = {}
        self._trust = Trust(lambda: trusted_authorities(self._s3), shown_by(self._s3))
        self._transfer_threads: TransferThreads | None = None
        self._logged: set[str] = set()
        self._obstacle = ""  # why only the SDK can receive this store's answers

    def __repr__(self) -> str:
        return f"S3Store({self.root})"

    @property
    def root(self) -> str:
        """The root URL, ``s3://bucket``."""
        return f"s3://{self._bucket}"

    @property
    def transfer_busy_s(self) -> float:
        """Seconds that its transfer threads have spent on bodies."""
        return 0.0 if self._transfer_threads is None else self._transfer_threads.busy_s

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
        """Receive one range straight into ``sink``; see ``ObjectStore.read_into``."""
        assert sink.size_bytes == span.size_bytes, "the sink must be exactly as long as the range"
        if not span.size_bytes:
            return
        request = self.request_context("read", ref.key, ref.etag)
        if not ref.etag.isascii() or not ref.etag.isprintable():
            raise BadResponse(
                f"expected an etag fit for a header, got {ref.etag!r}", object=request.url, stage="source"
            )
        part = _Part(ref, span, sink, progress or ReadProgress(), request)

        async def ask(client: Any) -> None:  # noqa: ANN401 - see open_client
            await self._read(client, part)

        try:
            await self.clients.call(ask, request, self._limits.read_deadline_s(span.size_bytes))
        except BadResponse as error:
            part.progress.filled_bytes = 0
            error.object = request.url  # a connection does not know its object
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
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.clients.aclose)
            if self._transfer_threads is not None:
                stack.push_async_callback(LOCAL_FILES.run, self._transfer_threads.close)
            for pool in self._pools.values():
                stack.push_async_callback(pool.aclose)

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

    async def _read(self, client: Any, part: _Part) -> None:  # noqa: ANN401 - see open_client
        """Read the part; the SDK reads what only the SDK can address or receive."""
        template = await self._template(client)
        obstacle = template.obstacle or self._obstacle
        try:
            if not obstacle:
                await self._read_directly(client, template, part)
                return
        except UnframedBody:
            obstacle = self._obstacle = "the store sends bodies without content-length"
        if obstacle not in self._logged:
            self._logged.add(obstacle)
            _log.info("reads go through the sdk", bucket=self._bucket, reason=obstacle)
        await self._read_by_sdk(client, part)

    async def _read_directly(self, client: Any, template: Template, part: _Part) -> None:  # noqa: ANN401 - see open_client
        refusal = await self._exchange(template, part)
        if refusal is not None and code_of(refusal) in MOVED:
            refusal = await self._exchange(await self._moved(client, template, part.ref.key), part)
        if refusal is not None:
            raise refusal

    async def _exchange(self, template: Template, part: _Part) -> ClientError | None:
        """Receive the part and return None, or return the refusal."""
        ref, span, progress = part.ref, part.span, part.progress
        headers = {"Range": f"bytes={span.start}-{span.end - 1}", "If-Match": f'"{ref.etag}"'}
        request = await template.sign(ref.key, headers)
        pool = await self._pool(template)

        def judge(answer: Answer) -> None:
            head = answer.headers
            progress.answered_by = answered_by(head, answer.address)
            check_head(answer.status, head, answer.size_bytes, ref, span, part.request, answer.first_bytes)

        # a resumed part starts later but ends at the same byte
        answer = await pool.request(request, part.sink, judge, progress=progress, subject=(ref.key, span.end))
        if answer.status < 300:
            return None
        template.refused()
        progress.answered_by = answered_by(answer.headers, answer.address)
        foreign = foreign_answer("GET", answer.status, answer.headers, answer.body)
        if foreign is not None:
            raise foreign
        return _client_error(answer)

    async def _moved(self, client: Any, template: Template, key: str) -> Template:  # noqa: ANN401 - see open_client
        """Return the template for the bucket's actual region; one of many redirected requests finds it."""
        known = self._templates
        if known is not None and known[1].value is template:
            self._templates = (client, Once(lambda: self._find(client, key)))
        return await self._template(client)

    async def _find(self, client: Any, key: str) -> Template:  # noqa: ANN401 - see open_client
        # The GET that follows gives the better error, since an answer to a HEAD has no body.
        with contextlib.suppress(ClientError, ForeignAnswer):
            # The SDK follows the redirect and remembers it.
            await client.head_object(Bucket=self._bucket, Key=key, **self._payer)
        template = await catch_template(client, self._bucket, self._payer)
        _log.debug("the bucket is in another region", bucket=self._bucket, origin=template.origin)
        return template

    async def _template(self, client: Any) -> Template:  # noqa: ANN401 - see open_client
        if self._templates is None or self._templates[0] is not client:
            self._templates = (client, Once(lambda: catch_template(client, self._bucket, self._payer)))
        return await self._templates[1].get()

    async def _pool(self, template: Template) -> ConnectionPool:
        if template.scheme == "https":
            await self._trust.context()  # files that changed count for later connections
        pool = self._pools.get(template.origin)
        if pool is None:
            endpoint = await endpoint_of(template.origin, template.host, template.port, self._trust)
            pool = self._pools.get(template.origin)  # another request may have opened it meanwhile
        if pool is None:
            if self._transfer_threads is None:
                self._transfer_threads = TransferThreads(self._limits.transfer_threads)
            pool = self._pools[template.origin] = ConnectionPool(endpoint, self._limits, Files(self._transfer_threads))
        return pool

    async def _read_by_sdk(self, client: Any, part: _Part) -> None:  # noqa: ANN401 - see open_client
        ref, span, noted = part.ref, part.span, part.progress
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
            status = answer["ResponseMetadata"]["HTTPStatusCode"]
            check_head(status, headers, answer.get("ContentLength"), ref, span, part.request)
            await _receive(raw.content, part.sink, part.request, noted)
        except BaseException:
            raw.close()  # the rest of the body is unread, so this connection cannot serve another request
            raise


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


def _client_error(answer: Answer) -> ClientError:
    fields = {"status_code": answer.status, "headers": answer.headers, "body": answer.body, "context": {}}
    no_shape: Any = None  # botocore needs no shape to parse errors of S3
    parsed: Any = create_parser("rest-xml").parse(fields, no_shape)
    parsed.setdefault("Error", {"Code": str(answer.status)})
    return ClientError(parsed, "GetObject")
