"""S3 without the SDK in the way of the bytes: ranged GETs are received straight into the target.

botocore still finds credentials and endpoint, signs, lists, and does whatever else comes up once; see S3Store.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from botocore.exceptions import ClientError
from botocore.parsers import create_parser

from feedd.errors import BadResponse
from feedd.source.once import Once
from feedd.source.pages import closing_pages
from feedd.source.s3.answer import RangeHead, check_head
from feedd.source.s3.client import trusted_authorities
from feedd.source.s3.direct.pool import ConnectionPool, Endpoint
from feedd.source.s3.direct.sign import Template, catch_template
from feedd.source.s3.errors import MOVED, code_of
from feedd.source.s3.store import S3Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from feedd.source.options import SourceOptions
    from feedd.source.s3.direct.answer import Answer
    from feedd.source.s3.errors import Asked
    from feedd.values import ByteRange, ObjectChecksum, ObjectRef, ReadProgress

_log = structlog.get_logger(__name__)


class DirectStore:
    """One bucket. Reads by itself, and hands to an ``S3Store`` what it cannot: listings, HEADs, redirects, proxies.

    Sends each request once, but for one on a kept connection that the server had closed already.
    """

    def __init__(self, bucket: str, limits: SourceOptions) -> None:
        self._bucket = bucket
        self._limits = limits
        self._s3 = limits.for_bucket(bucket)
        self._sdk = S3Store(bucket, limits)
        self._templates: tuple[object, Once[Template]] | None = None  # of the client they were caught from
        self._pools: dict[str, ConnectionPool] = {}
        self._tls: Once[ssl.SSLContext] = Once(lambda: asyncio.to_thread(_tls_context, trusted_authorities(self._s3)))
        self._logged: set[str] = set()

    def __repr__(self) -> str:
        return f"DirectStore({self._sdk!r})"

    @property
    def root(self) -> str:
        """``s3://bucket``."""
        return self._sdk.root

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the SDK's pages; see ``ObjectStore.list``."""
        async with closing_pages(self._sdk.list(prefix, start_after)) as pages:
            async for page in pages:
                yield page

    async def head(self, key: str) -> ObjectRef:
        """Ask through the SDK; see ``ObjectStore.head``."""
        return await self._sdk.head(key)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Ask through the SDK; see ``ObjectStore.checksum``."""
        return await self._sdk.checksum(ref)

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, target: memoryview, progress: ReadProgress | None = None
    ) -> None:
        """Receive one range straight into ``target``; see ``ObjectStore.read_into``."""
        assert target.nbytes == span.size_bytes, "the target must be exactly as long as the range"
        if not span.size_bytes:
            return
        asked = self._sdk.asked("read", ref.key, ref.etag)
        if not ref.etag.isascii() or not ref.etag.isprintable():
            raise BadResponse(f"expected an etag fit for a header, got {ref.etag!r}", object=asked.url, stage="source")

        async def ask(client: Any) -> str:  # noqa: ANN401 - see open_client
            return await self._read(client, ref, span, target, asked)

        obstacle = _bucket_obstacle(self._bucket)
        if not obstacle:
            obstacle = await self._sdk.clients.call(ask, asked, self._limits.read_deadline_s(span.size_bytes))
        if obstacle:
            self._hand_over(obstacle)
            await self._sdk.read_into(ref, span, target, progress)

    async def close(self) -> None:
        """Close connections; idempotent."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._sdk.close)
            for pool in self._pools.values():
                stack.push_async_callback(pool.aclose)

    async def _read(self, client: Any, ref: ObjectRef, span: ByteRange, target: memoryview, asked: Asked) -> str:  # noqa: ANN401 - see open_client
        """Do it, or say why the SDK must."""
        template = await self._template(client)
        obstacle = template.obstacle
        if template.proxied and self._limits.transport == "auto":
            obstacle = "a proxy is set for this endpoint"
        if obstacle:
            return obstacle
        headers = {"Range": f"bytes={span.start}-{span.end - 1}", "If-Match": f'"{ref.etag}"'}
        request = await template.sign(ref.key, headers)
        pool = await self._pool(template)

        def judge(answer: Answer) -> None:
            head = answer.headers
            got = RangeHead(answer.status, head.get("etag", ""), head.get("content-range"), answer.size_bytes)
            check_head(got, ref, span, asked)

        try:
            answer = await pool.request(request, target, judge)
        except BadResponse as error:
            error.object = asked.url  # a connection does not know what it carries
            raise
        if answer.status < 300:
            return ""
        refusal = _client_error(answer)
        if code_of(refusal) not in MOVED:
            raise refusal
        self._templates = None  # the next one has what the SDK is about to learn from the redirect
        return "the bucket is elsewhere"

    async def _template(self, client: Any) -> Template:  # noqa: ANN401 - see open_client
        if self._templates is None or self._templates[0] is not client:
            payer = self._s3.requester_pays
            self._templates = (client, Once(lambda: catch_template(client, self._bucket, requester_pays=payer)))
        return await self._templates[1].get()

    async def _pool(self, template: Template) -> ConnectionPool:
        tls = await self._tls.get() if template.scheme == "https" else None
        pool = self._pools.get(template.origin)
        if pool is None:
            endpoint = Endpoint(template.origin, template.host, template.port, tls)
            pool = self._pools[template.origin] = ConnectionPool(endpoint, self._limits)
        return pool

    def _hand_over(self, reason: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            _log.info("reads go through the sdk", bucket=self._bucket, reason=reason)


def _bucket_obstacle(bucket: str) -> str:
    """Name what only the SDK knows how to address."""
    if bucket.startswith("arn:"):
        return "the bucket is an access point"
    return "the bucket is a directory bucket" if bucket.endswith("--x-s3") else ""


def _client_error(answer: Answer) -> ClientError:
    fields = {"status_code": answer.status, "headers": answer.headers, "body": answer.body, "context": {}}
    no_shape: Any = None  # errors of S3 are not modelled, and botocore looks at no shape for them
    parsed: Any = create_parser("rest-xml").parse(fields, no_shape)
    parsed.setdefault("Error", {"Code": str(answer.status)})
    return ClientError(parsed, "GetObject")


def _tls_context(authorities: str) -> ssl.SSLContext:
    many = Path(authorities).is_dir()
    context = ssl.create_default_context(cafile=None if many else authorities, capath=authorities if many else None)
    context.set_alpn_protocols(["http/1.1"])
    return context
