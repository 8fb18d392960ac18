"""An S3 store that receives ranged GETs straight into the sink, without the SDK.

botocore still finds credentials and endpoint, signs, lists, and does everything else that is rare; see S3Store.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from botocore.exceptions import ClientError
from botocore.parsers import create_parser

from feedd.errors import BadResponse, ObjectChanged
from feedd.fetch.once import Once
from feedd.fetch.pages import closing_pages
from feedd.fetch.s3.bodies import Files
from feedd.fetch.s3.connection import UnframedBody
from feedd.fetch.s3.connection_pool import ConnectionPool, endpoint_of
from feedd.fetch.s3.range_answer import RangeHead, answered_by, check_head
from feedd.fetch.s3.request_signing import Template, catch_template
from feedd.fetch.s3.sdk_client import trusted_authorities
from feedd.fetch.s3.sdk_errors import MOVED, ForeignAnswer, code_of, foreign_answer
from feedd.fetch.s3.sdk_store import S3Store
from feedd.fetch.s3.transfer_threads import TransferThreads
from feedd.fetch.s3.trust import Trust, shown_by
from feedd.flow.pools import LOCAL_FILES
from feedd.values import ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.http_answer import Answer
    from feedd.fetch.s3.region import BucketFacts
    from feedd.fetch.s3.sdk_errors import RequestContext
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectChecksum, ObjectRef

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Part:
    """One read: the range, its sink, and its name in errors."""

    ref: ObjectRef
    span: ByteRange
    sink: RangeSink
    progress: ReadProgress
    request: RequestContext


class _ObstacleError(Exception):
    """Only the SDK can receive an answer; the text says why."""


class DirectStore:
    """One bucket. Reads by itself, and leaves listings, HEADs and proxies to an ``S3Store``.

    Sends each request once, except on a kept connection that the server had closed already.
    """

    def __init__(self, bucket: str, limits: SourceOptions, facts: BucketFacts | None = None) -> None:
        self._bucket = bucket
        self._limits = limits
        self._s3 = limits.for_bucket(bucket)
        self._sdk = S3Store(bucket, limits, facts)
        self._payer = {"RequestPayer": "requester"} if self._s3.requester_pays else {}
        self._templates: tuple[object, Once[Template]] | None = None  # with the client they were caught from
        self._pools: dict[str, ConnectionPool] = {}
        self._trust = Trust(lambda: trusted_authorities(self._s3), shown_by(self._s3))
        self._transfer_threads: TransferThreads | None = None
        self._logged: set[str] = set()
        self._obstacle = ""  # why only the SDK can receive this store's answers

    def __repr__(self) -> str:
        return f"DirectStore({self._sdk!r})"

    @property
    def root(self) -> str:
        """The root URL, ``s3://bucket``."""
        return self._sdk.root

    @property
    def transfer_busy_s(self) -> float:
        """Seconds that its transfer threads have spent on bodies."""
        return 0.0 if self._transfer_threads is None else self._transfer_threads.busy_s

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the SDK's pages; see ``ObjectStore.list``."""
        async with closing_pages(self._sdk.list(prefix, start_after)) as pages:
            async for page in pages:
                yield page

    async def head(self, key: str) -> ObjectRef:
        """Send a HEAD through the SDK; see ``ObjectStore.head``."""
        return await self._sdk.head(key)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Get the checksum through the SDK; see ``ObjectStore.checksum``."""
        return await self._sdk.checksum(ref)

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Receive one range straight into ``sink``; see ``ObjectStore.read_into``."""
        assert sink.size_bytes == span.size_bytes, "the sink must be exactly as long as the range"
        if not span.size_bytes:
            return
        request = self._sdk.request_context("read", ref.key, ref.etag)
        if not ref.etag.isascii() or not ref.etag.isprintable():
            raise BadResponse(
                f"expected an etag fit for a header, got {ref.etag!r}", object=request.url, stage="source"
            )

        noted = progress or ReadProgress()

        async def ask(client: Any) -> None:  # noqa: ANN401 - see open_client
            await self._read(client, _Part(ref, span, sink, noted, request))

        try:
            await self._sdk.clients.call(ask, request, self._limits.read_deadline_s(span.size_bytes))
        except BadResponse as error:
            noted.filled_bytes = 0
            error.object = request.url  # a connection does not know its object
            raise
        except ObjectChanged as changed:
            raise await self._sdk.explained(changed, ref) from changed.__cause__
        except _ObstacleError as obstacle:
            self._hand_over(str(obstacle))
            await self._sdk.read_into(ref, span, sink, noted)

    async def close(self) -> None:
        """Close all connections; idempotent."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._sdk.close)
            if self._transfer_threads is not None:
                stack.push_async_callback(LOCAL_FILES.run, self._transfer_threads.close)
            for pool in self._pools.values():
                stack.push_async_callback(pool.aclose)

    async def _read(self, client: Any, part: _Part) -> None:  # noqa: ANN401 - see open_client
        """Read the part, or raise why the SDK must read it."""
        template = await self._template(client)
        obstacle = template.obstacle or self._obstacle
        if obstacle:
            raise _ObstacleError(obstacle)
        try:
            refusal = await self._exchange(template, part)
            if refusal is not None and code_of(refusal) in MOVED:
                refusal = await self._exchange(await self._moved(client, template, part.ref.key), part)
        except UnframedBody:
            self._obstacle = "the store sends bodies without content-length"
            raise _ObstacleError(self._obstacle) from None
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
            etag, content_range = head.get("etag", ""), head.get("content-range")
            got = RangeHead(answer.status, etag, content_range, answer.size_bytes, head, answer.first_bytes)
            check_head(got, ref, span, part.request)

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
        template = await self._caught(client)
        _log.debug("the bucket is in another region", bucket=self._bucket, origin=template.origin)
        return template

    async def _template(self, client: Any) -> Template:  # noqa: ANN401 - see open_client
        if self._templates is None or self._templates[0] is not client:
            self._templates = (client, Once(lambda: self._caught(client)))
        return await self._templates[1].get()

    async def _caught(self, client: Any) -> Template:  # noqa: ANN401 - see open_client
        return await catch_template(client, self._bucket, self._payer)

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

    def _hand_over(self, reason: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            _log.info("reads go through the sdk", bucket=self._bucket, reason=reason)


def _client_error(answer: Answer) -> ClientError:
    fields = {"status_code": answer.status, "headers": answer.headers, "body": answer.body, "context": {}}
    no_shape: Any = None  # botocore needs no shape to parse errors of S3
    parsed: Any = create_parser("rest-xml").parse(fields, no_shape)
    parsed.setdefault("Error", {"Code": str(answer.status)})
    return ClientError(parsed, "GetObject")
