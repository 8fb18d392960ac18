"""Translates the refusals of web servers, and errors of connections to them."""

from __future__ import annotations

import email.utils
import re
import time
from typing import TYPE_CHECKING, Final

from feedd.errors import (
    BadConfig,
    BadRequest,
    FeeddError,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    StoreUnavailable,
    Throttled,
)
from feedd.fetch.hints import CHANGED_HINT
from feedd.fetch.s3.errors import (
    LOGIN_STATUSES,
    PROXY_HINT,
    RequestContext,
    Sender,
    tls_failure,
    translate,
    who_answered,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_RATE_LIMIT: Final = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*([0-9]{1,6})")
_CERTIFICATE: Final = "feedd shows web servers none: let a gateway add it"
_BUNDLE: Final = "SSL_CERT_FILE, where the daemon runs,"
_MISSING_HINT: Final = "check the URL; a web server has no prefixes, so each object is named whole"
_DENIED_HINT: Final = "feedd sends no credentials to web servers: copy the data to a bucket, or open it to this machine"


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
