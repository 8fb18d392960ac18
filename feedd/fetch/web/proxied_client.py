"""Sends GETs through the proxy that the environment names: HTTPS_PROXY, HTTP_PROXY, NO_PROXY."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

from feedd.errors import BadResponse, StoreUnavailable
from feedd.fetch.proxy_rules import proxy_of
from feedd.fetch.s3.http_answer import Answer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.web.web_client import WebRequest
    from feedd.fetch.web.web_target import Target


def through_proxy(target: Target, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return aiohttp's arguments for a request: by the proxy of HTTPS_PROXY, HTTP_PROXY and NO_PROXY, or directly.

    aiohttp's ``trust_env`` would name it too. But that option also sends passwords of ``~/.netrc`` to servers. The
    proxy's password goes into a header, because errors of aiohttp show URLs.
    """
    named = proxy_of(target.origin)
    if not named:
        return {"headers": headers}
    url = URL(named if "://" in named else f"http://{named}")
    if url.user is None:
        return {"headers": headers, "proxy": url}
    login = base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
    own = {"Proxy-Authorization": f"Basic {login}"}
    plain = url.with_user(None)
    if target.scheme == "https":  # the proxy sees the head of CONNECT only
        return {"headers": headers, "proxy": plain, "proxy_headers": own}
    return {"headers": {**headers, **own}, "proxy": plain}


class ProxiedClient:
    """One session of aiohttp, which knows proxies. Follows no redirects, keeps no cookies, reads no netrc."""

    def __init__(self, limits: SourceOptions, tls: ssl.SSLContext) -> None:
        timeout = aiohttp.ClientTimeout(sock_connect=limits.connect_timeout_s, sock_read=limits.read_timeout_s)
        connector = aiohttp.TCPConnector(ssl=tls, limit=limits.connections_max)
        jar = aiohttp.DummyCookieJar()
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=jar, auto_decompress=False
        )

    async def request(self, target: Target, headers: Mapping[str, str], request: WebRequest) -> Answer:
        """Send one GET; see ``WebClient.send``.

        Raises:
            aiohttp.ClientError, OSError: the connection broke.
        """
        url = URL(target.url, encoded=True)
        sending = through_proxy(target, headers)
        async with self._session.get(url, allow_redirects=False, **sending) as reply:
            answer = Answer()
            answer.drop_parser()
            answer.status, answer.complete = reply.status, True
            answer.headers = {name.lower(): ", ".join(reply.headers.getall(name)) for name in reply.headers}
            if answer.status < 300:
                request.judge(answer)
                await _receive(reply, request)
            return answer

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


async def _receive(reply: aiohttp.ClientResponse, request: WebRequest) -> None:
    size_bytes, progress = request.sink.size_bytes, request.progress
    progress.filled_bytes = 0
    async for chunk in reply.content.iter_any():
        if progress.first_byte_s is None:
            progress.first_byte_s = time.monotonic()
        end = progress.filled_bytes + len(chunk)
        if end > size_bytes:
            raise BadResponse(f"expected {size_bytes} bytes, got more", object=request.url, stage="source")
        await request.sink.write(progress.filled_bytes, chunk)
        progress.filled_bytes = end
    if progress.filled_bytes != size_bytes:
        message = f"expected {size_bytes} bytes, got {progress.filled_bytes}"
        raise StoreUnavailable(message, object=request.url, stage="source")
