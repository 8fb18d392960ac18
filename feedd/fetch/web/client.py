"""Sends ranged GETs to web servers, follows their redirects, and translates their refusals."""

from __future__ import annotations

import contextlib
import email.utils
import os
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.errors import (
    BadConfig,
    BadRequest,
    BadResponse,
    FeeddError,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    StoreUnavailable,
    Throttled,
)
from feedd.fetch.fetch_options import S3Options
from feedd.fetch.hints import CHANGED_HINT
from feedd.fetch.s3.bodies import Files
from feedd.fetch.s3.client import trusted_authorities
from feedd.fetch.s3.errors import (
    LOGIN_STATUSES,
    PROXY_HINT,
    RequestContext,
    Sender,
    tls_failure,
    translate,
    who_answered,
)
from feedd.fetch.s3.pool import ConnectionPool, endpoint_of
from feedd.fetch.s3.tls import Trust
from feedd.fetch.s3.transfer import TransferThreads
from feedd.fetch.web.target import redirected
from feedd.flow.pools import LOCAL_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.connection import Answer
    from feedd.fetch.web.target import Target
    from feedd.range_sink import RangeSink
    from feedd.values import ReadProgress

_RATE_LIMIT: Final = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*([0-9]{1,6})")
_CERTIFICATE: Final = "feedd shows web servers none: let a gateway add it"
_BUNDLE: Final = "SSL_CERT_FILE, where the daemon runs,"
_MISSING_HINT: Final = "check the URL; a web server has no prefixes, so each object is named whole"
_DENIED_HINT: Final = "feedd sends no credentials to web servers: copy the data to a bucket, or open it to this machine"
REDIRECTS_MAX: Final = 5
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_POOLS_MAX: Final = 64


def of_another(status: int, headers: Mapping[str, str], url: str, *, pages: bool) -> BadConfig | None:
    """Return the error for a refusal that another than the server sent, such as a proxy; None: it may be the server's.

    Args:
        status: HTTP status.
        headers: names in lower case.
        url: the object.
        pages: the server itself refuses with web pages, as most web servers do.
    """
    if (status >= 500 or status in {408, 425, 429}) and status not in LOGIN_STATUSES:
        return None  # it may pass, whoever sent it
    # Content delivery networks send ``Via`` as well: there it is no sign of another sender.
    answerer = who_answered(status, {name: text for name, text in headers.items() if name != "via"}, b"")
    if answerer.sender is not Sender.PROXY and (pages or answerer.sender is not Sender.PAGE):
        return None
    message = f"expected an answer from the server, got one from {answerer.name}"
    return BadConfig(message, object=url, hint=PROXY_HINT, stage="source")


def refusal(status: int, headers: Mapping[str, str], url: str, etag: str = "") -> FeeddError:
    """Return the error for an answer that is neither the object nor a redirect.

    Args:
        status: HTTP status.
        headers: names in lower case.
        url: the object.
        etag: requested version; empty: any.
    """
    foreign = of_another(status, headers, url, pages=True)
    if foreign is not None or status in {401, 403}:
        said = f"access denied: status {status}"
        return foreign or PermissionDenied(said, object=url, hint=_DENIED_HINT, stage="source")
    if status in {404, 410}:
        return NotFound(f"the object does not exist: status {status}", object=url, hint=_MISSING_HINT, stage="source")
    if etag and status in {412, 416}:
        got = headers.get("etag", "").strip('"') or "another"
        message = f"expected version {etag}, got {got} (status {status})"
        return ObjectChanged(message, object=url, hint=CHANGED_HINT, stage="source")
    if status in {429, 503}:
        message = f"the server asked to slow down: status {status}"
        return Throttled(message, object=url, stage="source", retry_after_s=retry_after_s(headers))
    if status in {408, 425} or status >= 500 or status < 400:
        return StoreUnavailable(f"the server failed: status {status}", object=url, stage="source")
    return BadRequest(f"the server refused the request: status {status}", object=url, stage="source")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return how long a server asks to wait, by Retry-After or RateLimit; None: it does not say."""
    text = headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return float(text)
    if text:
        try:
            ends = email.utils.parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        return max(0.0, ends.timestamp() - time.time())  # noqa: TID251 - the header states a date
    limit = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    return float(limit[1]) if limit else None


def broken(error: BaseException, url: str, origin: str) -> FeeddError:
    """Return the translated error of a connection; raise it ``from`` the original.

    Args:
        error: what the connection raised.
        url: the object.
        origin: scheme and host of the connection.
    """
    failure = tls_failure(error)
    if failure is not None:
        message = f"no TLS connection to {origin}: {failure.message}"
        hint = failure.hint.format(bundle=_BUNDLE, certificate=_CERTIFICATE, place="the URL")
        return BadConfig(message, object=url, hint=hint, stage="source")
    found = translate(error, RequestContext("read", url, origin))
    if found.hint and "NO_PROXY" not in found.hint and isinstance(found, StoreUnavailable):
        found.hint = "check the host's name, proxy and network"
    return found


@dataclass(frozen=True, slots=True)
class WebRequest:
    """One GET, whose answer's body fills a sink.

    Attributes:
        url: the object, for errors.
        headers: headers besides Host, Accept-Encoding and those that ``secrets`` returns.
        sink: receives the body.
        judge: checks the head of a good answer before its body counts, and may raise a FeeddError.
        progress: follows the body.
        subject: requests with the same subject want the same bytes.
        hop: called with each answer that redirects, and where it was sent; may raise a FeeddError.
        secrets: returns the credentials for a target, which may be another host after a redirect.
    """

    url: str
    headers: Mapping[str, str]
    sink: RangeSink
    judge: Callable[[Answer], object]
    progress: ReadProgress
    subject: Hashable = None
    hop: Callable[[Answer, Target], object] = lambda answer, target: None  # noqa: ARG005 - the field's signature
    secrets: Callable[[Target], Mapping[str, str]] = lambda target: {}  # noqa: ARG005 - the field's signature


class WebClient:
    """Keeps connections to web servers. Certificates are verified. Belongs to one event loop.

    Each request is sent once to each of its hosts, except on a connection that a server had closed already.
    """

    def __init__(self, limits: SourceOptions) -> None:
        self._limits = limits
        self._pools: OrderedDict[tuple[str, object], ConnectionPool] = OrderedDict()
        self._transfer_threads: TransferThreads | None = None
        self.trust = Trust(web_authorities)

    def __repr__(self) -> str:
        return f"WebClient({len(self._pools)} hosts)"

    @property
    def transfer_busy_s(self) -> float:
        """Seconds that its transfer threads have spent on bodies."""
        return 0.0 if self._transfer_threads is None else self._transfer_threads.busy_s

    async def send(self, target: Target, request: WebRequest) -> tuple[Answer, Target]:
        """Send a GET and follow redirects; return the last answer, and where it came from, for later requests.

        If the status is below 300, the body fills the sink. Otherwise the sink is untouched.

        Raises:
            BadResponse: there are too many redirects, or one leads nowhere.
            Unsupported, PermissionDenied: a redirect leads where it must not.
            FeeddError: as ``judge`` and ``hop`` raised it.
            Whatever ``ConnectionPool.request`` raises, for the caller to translate.
        """
        for _ in range(REDIRECTS_MAX + 1):
            answer = await self._exchange(target, request)
            if answer.status not in REDIRECTS:
                return answer, target
            request.hop(answer, target)
            target = redirected(target, answer.headers.get("location", ""), answer.address, request.url)
        message = f"expected at most {REDIRECTS_MAX} redirects, got more, the last to {target.origin}"
        raise BadResponse(message, object=request.url, stage="source")

    async def close(self) -> None:
        """Close all connections; idempotent."""
        async with contextlib.AsyncExitStack() as stack:
            if self._transfer_threads is not None:
                stack.push_async_callback(LOCAL_FILES.run, self._transfer_threads.close)
            while self._pools:
                stack.push_async_callback(self._pools.popitem()[1].aclose)

    async def _exchange(self, target: Target, request: WebRequest) -> Answer:
        headers = {"Host": target.authority, "Accept-Encoding": "identity", "User-Agent": "feedd"}
        headers |= request.headers
        headers |= request.secrets(target)
        lines = [f"GET {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        pool = await self._pool(target)
        return await pool.request(
            "\r\n".join(lines).encode("latin-1"),
            request.sink,
            request.judge,
            progress=request.progress,
            subject=request.subject,
        )

    async def _pool(self, target: Target) -> ConnectionPool:
        if target.scheme == "https":
            await self.trust.context()  # files that changed count for later connections
        name = (target.origin, target.admit)
        if name in self._pools:
            self._pools.move_to_end(name)
            return self._pools[name]
        check = target.admit and _checked(target.admit, target)
        endpoint = await endpoint_of(target.origin, target.host, target.port, self.trust, check)
        if name in self._pools:  # another request has opened it meanwhile
            return self._pools[name]
        if self._transfer_threads is None:
            self._transfer_threads = TransferThreads(self._limits.transfer_threads)
        pool = self._pools[name] = ConnectionPool(endpoint, self._limits, Files(self._transfer_threads))
        if len(self._pools) > _POOLS_MAX:
            await self._pools.popitem(last=False)[1].aclose()
        return pool


def web_authorities() -> str:
    """Return the file or folder of certificates that web servers are verified with; reads AWS configuration files."""
    return os.environ.get("SSL_CERT_FILE") or trusted_authorities(S3Options())


def _checked(admit: Callable[[str], bool], target: Target) -> Callable[[str], None]:
    def check(address: str) -> None:
        if not admit(address):
            message = f"expected a redirect to a public address, got one to {target.origin} at {address}"
            hint = "the server sends clients into this machine's private network: name the object's own URL"
            raise PermissionDenied(message, object=target.origin, hint=hint, stage="source")

    return check
