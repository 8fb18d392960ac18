"""The SDK's HTTP session: it names who answered, bounds answers, follows no redirect, and waits for its sockets."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import ClientPayloadError
from aiohttp.client_proto import ResponseHandler
from botocore.httpsession import ProxyConfiguration, get_cert_path

from feedd.errors import BadResponse
from feedd.fetch.proxy_rules import bypasses_proxies
from feedd.fetch.s3.connection import INTERIM_MAX
from feedd.fetch.s3.errors import TLS_ALERT, foreign_answer
from feedd.fetch.s3.tls import Shown, Trust, trusting
from feedd.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_CLOSE_S = 5.0
ANSWER_BYTES_MAX = 8 * MIB
"""Largest answer that is no object's body: a page of 1,000 keys of 1,024 letters, each written as %XX, has 4 MiB."""


class Transports:
    """The open connections of one session, including those that the session no longer knows."""

    def __init__(self) -> None:
        self._open: dict[object, Any] = {}  # of whichever loop: uvloop's are no asyncio.Transport
        self._all_gone: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"Transports({len(self._open)} open)"

    def opened(self, owner: object, transport: object) -> None:
        """Record a connection."""
        self._open[owner] = transport

    def lost(self, owner: object) -> None:
        """Record that a connection's socket is closed."""
        self._open.pop(owner, None)
        if not self._open and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    async def gone(self, deadline_s: float) -> None:
        """Abort all open connections, and wait until they are closed or the deadline is over."""
        for transport in list(self._open.values()):
            transport.abort()
        if self._open:
            self._all_gone = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._all_gone], timeout=deadline_s)


class _Handler(ResponseHandler):
    """aiohttp's protocol, which also reports to ``Transports``, and which bounds the answers before the final one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transports: Transports) -> None:
        super().__init__(loop)
        self._transports = transports
        self._interim_count = 0
        self._answer_seen = False

    def data_received(self, data: bytes) -> None:
        """Transport: hand bytes to aiohttp, which would wait for more if a TLS alert takes the place of an answer."""
        if not self._answer_seen and data.startswith(TLS_ALERT):
            self.set_exception(ClientPayloadError(f"expected an http answer, got {data[:8]!r}"))
            if self.transport is not None:
                self.transport.abort()
            return
        self._answer_seen = True
        super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:  # noqa: ANN401 - aiohttp's message and its body
        """ResponseHandler: queue a message; aiohttp itself queues 1xx answers without an end."""
        interim = 100 <= data[0].code < 200
        self._interim_count = self._interim_count + 1 if interim else 0
        if self._interim_count > INTERIM_MAX:
            if self.transport is not None:
                self.transport.abort()
            self.set_exception(ClientPayloadError(f"more than {INTERIM_MAX} answers of the kind 1xx"))
            return
        super().feed_data(data, size)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Transport: connected."""
        self._transports.opened(self, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Transport: gone."""
        self._transports.lost(self)
        super().connection_lost(exc)


class _Unredirected:
    """An aiohttp session that answers redirects like other answers.

    aiohttp would follow a Location to any host, with the session's token. botocore follows a bucket to its region.
    """

    def __init__(self, session: Any) -> None:  # noqa: ANN401 - aiohttp's ClientSession
        self._session = session

    def request(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - handed through
        """Begin a request; returns what aiohttp returns."""
        return self._session.request(*args, allow_redirects=False, **kwargs)


class _Proxies(ProxyConfiguration):
    """The proxies of a session; NO_PROXY may hold networks."""

    def proxy_url_for(self, url: str) -> Any:  # noqa: ANN401 - botocore's stubs forget that there may be none
        """botocore: return the proxy for a URL, or None."""
        proxy = super().proxy_url_for(url)  # first, because most sessions have none: NO_PROXY is read at each request
        return None if proxy is None or bypasses_proxies(url) else proxy


class ClosingSession(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types
    """The SDK's session. It follows no redirect, refuses answers of others than stores, and closes its sockets.

    aiohttp waits for the connections it still keeps. Connections that it gave up because of an unread body may
    still be closing their TLS session, and no object tracks them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - handed through
        pair = kwargs.pop("client_cert", None)  # aiobotocore would read the files too
        certificate, key = pair if isinstance(pair, tuple) else (pair, None)
        super().__init__(*args, **kwargs)
        self._proxy_config = _Proxies(kwargs.get("proxies"), kwargs.get("proxies_config"))
        shown = Shown(certificate, key or "") if certificate else None
        self._trust = Trust(lambda: str(get_cert_path(self._verify)), shown)
        self._tls: ssl.SSLContext | None = None
        self._transports = Transports()
        self._plain = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, where)
        await self._transports.gone(_CLOSE_S)

    async def send(self, request: Any) -> Any:  # noqa: ANN401 - botocore's request and answer
        """aiobotocore: send a request, and read the body of the answer unless the caller wants to.

        Raises:
            ForeignAnswer: a refusal, or an answer to a PUT without an ETag, that does not come from a store.
            BadResponse: the answer is larger than ``ANSWER_BYTES_MAX``.
        """
        self._plain = request.url.startswith("http:") and not self._proxy_config.proxy_url_for(request.url)
        if self._tls is not None:
            await self._trust.context()  # files that changed count for later connections
        streams, request.stream_output = request.stream_output, True  # else the whole body would be read at once
        answer = await super().send(request)
        if not streams or answer.status_code >= 300:
            answer._content = await _bounded(answer.raw)  # noqa: SLF001 - where botocore looks for a body that was read
        if answer.status_code >= 300 or (request.method == "PUT" and "etag" not in answer.headers):
            self._judge(request.method, answer)
        return answer

    def _judge(self, method: str, answer: Any) -> None:  # noqa: ANN401 - see send
        """Refuse an answer of another than a store."""
        foreign = foreign_answer(method, answer.status_code, answer.headers, answer._content)  # noqa: SLF001 - see send
        if foreign is not None:
            raise foreign

    def _build_verify_context(self) -> ssl.SSLContext:
        """aiobotocore: build the TLS context, in a thread. It is shared, except with settings of a proxy."""
        if self._plain:  # the authorities are not needed, and may be missing; this context trusts none
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        path = get_cert_path(self._verify)
        own = bool(self._proxy_config.settings)
        opened: ssl.SSLContext = trusting(path) if path and not own else super()._build_verify_context()
        return opened

    def _build_ssl_contexts(self, proxy_url: str | None) -> Any:  # noqa: ANN401 - the contexts of server and proxy
        """aiobotocore: build the TLS contexts, in a thread. A proxy does not get the client certificate."""
        server, proxy = super()._build_ssl_contexts(proxy_url)
        return self._tls or server, proxy

    async def _get_session(self, proxy_url: str | None) -> Any:  # noqa: ANN401 - takes the place of aiohttp's session
        return _Unredirected(await super()._get_session(proxy_url))

    async def _create_connector(self, proxy_url: str | None) -> Any:  # noqa: ANN401 - aiohttp's connector, handed through
        if not self._plain and self._verify:
            self._tls = await self._trust.context()
        connector = await super()._create_connector(proxy_url)
        loop, transports = asyncio.get_running_loop(), self._transports
        factory: Callable[[], ResponseHandler] = lambda: _Handler(loop, transports)  # noqa: E731 - typed here
        connector._factory = factory  # noqa: SLF001 - aiohttp offers nothing else that sees every connection
        return connector


async def _bounded(raw: Any) -> bytes:  # noqa: ANN401 - aiohttp's ClientResponse
    """Return the body of an answer."""
    body = bytearray()
    try:
        async for piece in raw.content.iter_any():
            body += piece
            if len(body) > ANSWER_BYTES_MAX:
                break
        else:
            return bytes(body)
    except BaseException:
        raw.close()
        raise
    raw.close()  # the rest is unread, so this connection cannot serve another request
    raise BadResponse(f"expected an answer of at most {ANSWER_BYTES_MAX} bytes, got more", stage="source")
