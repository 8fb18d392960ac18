"""The SDK's HTTP session, with a bound on answers, and with a close that waits for its sockets."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from aiobotocore.httpsession import AIOHTTPSession
from aiohttp.client_proto import ResponseHandler
from botocore.httpsession import create_urllib3_context, get_cert_path

from feedd.errors import BadResponse
from feedd.flow.file_versions import file_version
from feedd.units import MIB

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from types import TracebackType

    from feedd.flow.file_versions import FileVersion

_CLOSE_S = 5.0
ANSWER_BYTES_MAX = 8 * MIB
"""Largest answer that is no object's body: a page of 1,000 keys of 1,024 letters, each written as %XX, has 4 MiB."""


def trusting(verify: bool | str) -> ssl.SSLContext:  # noqa: FBT001 - as botocore has it
    """Return the TLS context of a certificate file, read once per file, since reading takes 30 ms for each listing.

    Raises:
        OSError: the file does not exist, or holds no certificates.
    """
    path = verify if isinstance(verify, str) else get_cert_path(verify=True) or ""
    return _trusting(path, file_version(path))


@functools.lru_cache(maxsize=4)
def _trusting(path: str, _version: FileVersion) -> ssl.SSLContext:
    context: ssl.SSLContext = create_urllib3_context()
    context.check_hostname = True
    context.load_verify_locations(path)
    return context


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
    """aiohttp's protocol, which also reports to ``Transports``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transports: Transports) -> None:
        super().__init__(loop)
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Transport: connected."""
        self._transports.opened(self, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Transport: gone."""
        self._transports.lost(self)
        super().connection_lost(exc)


class ClosingSession(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types
    """The SDK's session: it reads answers that are no object's body up to ``ANSWER_BYTES_MAX``, and closes its sockets.

    aiohttp waits for the connections it still keeps. Connections that it gave up because of an unread body may
    still be closing their TLS session, and no object tracks them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - handed through
        super().__init__(*args, **kwargs)
        self._transports = Transports()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, where)
        await self._transports.gone(_CLOSE_S)

    async def send(self, request: Any) -> Any:  # noqa: ANN401 - botocore's request and response
        """aiobotocore: send a request, and read the body of the answer unless the caller wants to.

        Raises:
            BadResponse: the answer is larger than ``ANSWER_BYTES_MAX``.
        """
        streams, request.stream_output = request.stream_output, True  # else the whole body would be read at once
        answer = await super().send(request)
        if not streams or answer.status_code >= 300:
            answer._content = await _bounded(answer.raw)  # noqa: SLF001 - where botocore looks for a body that was read
        return answer

    def _build_verify_context(self) -> ssl.SSLContext:
        """aiobotocore: build the TLS context, in a thread. It is shared, except with own certificates or a proxy."""
        own = self._cert_file or self._proxy_config.settings
        opened: ssl.SSLContext = super()._build_verify_context() if own or not self._verify else trusting(self._verify)
        return opened

    async def _create_connector(self, proxy_url: str | None) -> Any:  # noqa: ANN401 - aiohttp's connector, handed through
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
