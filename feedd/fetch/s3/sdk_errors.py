"""The border with botocore and aiohttp: translates their exceptions once, with a helpful hint."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiobotocore import httpsession
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from feedd.errors import (
    BadConfig,
    BadRequest,
    BadResponse,
    FeeddError,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    ResourceExhausted,
    StoreUnavailable,
    Throttled,
)
from feedd.fetch.hints import ARCHIVED, ARCHIVED_HINT, CHANGED_HINT, MISSING_HINT
from feedd.fetch.proxy_rules import proxy_of, proxy_variable
from feedd.fetch.s3.who_answered import LOGIN_STATUSES, Sender, tls_failure, who_answered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.fetch.s3.who_answered import Answerer

EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})

RENEWABLE = EXPIRED | {"InvalidToken"}
"""After these, other credentials may help."""
SKEWED = frozenset({"RequestTimeTooSkewed"})
BARE = frozenset({"403"})
"""Refusals without a body, as in every answer to a HEAD; they give no reason."""

_MISSING = frozenset({"NoSuchKey", "NoSuchBucket", "NotFound", "404", "MethodNotAllowed", "405", "NoSuchVersion"})
DENIED = frozenset({"AccessDenied", "Forbidden", "403", "AllAccessDisabled", "AccountProblem", "UnauthorizedAccess"})
_CREDENTIALS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "401", "InvalidClientTokenId"})
_THROTTLED = frozenset({"SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException", "RequestLimitExceeded"})
_TRANSIENT = frozenset({"RequestTimeout", "InternalError", "BandwidthLimitExceeded"})
_CHANGED = frozenset({"PreconditionFailed", "412", "InvalidRange", "416", "ConditionalRequestConflict"})
MOVED = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "301", "307"}
    | {"IllegalLocationConstraintException"}
)
_PERMISSIONS = {"list": "s3:ListBucket", "head": "s3:GetObject", "read": "s3:GetObject", "write": "s3:PutObject"}

_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.UnauthorizedSSOTokenError,
    boto.SSOError,
    boto.TokenRetrievalError,
    boto.NoAuthTokenError,
)
_BAD_CONFIG = (
    boto.ProfileNotFound,
    boto.ConfigParseError,
    boto.ConfigNotFound,
    boto.InvalidConfigError,
    boto.NoRegionError,
    boto.UnknownEndpointError,
    boto.InvalidRegionError,
    boto.InvalidS3AddressingStyleError,
    boto.UnknownRegionError,
    boto.EndpointProviderError,
    boto.UnsupportedS3ArnError,
    boto.UnsupportedS3ConfigurationError,
    boto.UnsupportedS3AccesspointConfigurationError,
    boto.MissingDependencyException,
)

_OF_PROXIES = (
    boto.ProxyConnectionError,
    httpsession.aiohttp.ClientHttpProxyError,
    httpsession.aiohttp.ClientProxyConnectionError,
)

_SSE_C = "objects encrypted with a customer's key (SSE-C) cannot be read: copy them to SSE-S3 or SSE-KMS"
_REDIRECT_HINT = (
    "feedd sends requests for a bucket to its endpoint only, and follows no Location: "
    "set endpoint_url to the address that serves objects itself"
)
_REPR = re.compile(r"\s*(?:\bssl:)?<[^<>]* at 0x[0-9a-f]+>")
_LOCATION = re.compile(r"([A-Za-z]+://)(?:[^/?#@]*@)?([^/?#@\s]+)")
_BUSY = frozenset({429, 503})
_UNSAID = frozenset({304, 412, 416})
"""Statuses that some stores send without a body."""
_TRY_AGAIN = frozenset({408, 425})


class ForeignAnswer(boto.BotoCoreError):
    """An answer with an error status that does not come from a store, so that its status is not the store's.

    Attributes:
        status: HTTP status.
        headers: names in lower case.
        answerer: its sender.
    """

    fmt = "expected an s3 answer, got one from {name}"

    def __init__(self, status: int, headers: Mapping[str, str], answerer: Answerer) -> None:
        super().__init__(name=answerer.name)
        self.status, self.headers, self.answerer = status, headers, answerer


def foreign_answer(method: str, status: int, headers: Mapping[str, str], body: bytes) -> ForeignAnswer | None:
    """Return the error for an answer with an error status if its status is not the store's own, else None.

    Also for a redirect of a HEAD that names no region. botocore would look for the region by a HEAD again, without end.

    Args:
        method: of the request.
        status: HTTP status, 300 or more.
        headers: names in lower case.
        body: the beginning of the body, or all of it.
    """
    answerer = who_answered(status, headers, body)
    lost = method == "HEAD" and 300 <= status < 400 and status != 304 and "x-amz-bucket-region" not in headers
    return ForeignAnswer(status, headers, answerer) if answerer.is_foreign or lost else None


def of_another(error: BaseException | None, request: RequestContext) -> bool:
    """Whether an answer does not come from a store, as far as it shows; S3 has a body in each refusal of a GET."""
    if isinstance(error, ForeignAnswer):
        return True
    if not isinstance(error, boto.ClientError) or request.op not in {"read", "list"}:
        return False
    meta: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode", 0))
    unsaid = code_of(error) == str(status) and status not in _UNSAID
    return unsaid and who_answered(status, meta.get("HTTPHeaders", {}), b"").sender is not Sender.STORE


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The operation during which a foreign exception came.

    Attributes:
        op: ``list``, ``head``, ``read`` or ``write``.
        url: URL of the object or prefix.
        endpoint: the store's address as configured, or ``AWS``.
        etag: requested version; empty: any.
        pays: the request accepts charges.
    """

    op: str
    url: str
    endpoint: str
    etag: str = ""
    pays: bool = False

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def table(self) -> str:
        """The table of feedd.toml that holds this bucket's settings."""
        return f'[s3."{self.bucket}"]'


def code_of(error: BaseException) -> str:
    """Return the S3 error code of a botocore exception; empty if there is none."""
    if not isinstance(error, boto.ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def date_of(error: BaseException) -> str:
    """Return the Date header of the answer behind ``error``; empty if there is none."""
    if not isinstance(error, boto.ClientError):
        return ""
    meta: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    return str(meta.get("HTTPHeaders", {}).get("date", ""))


def region_of(response: Mapping[str, Any]) -> str:
    """Return the bucket's region as an answer states it; empty if it does not."""
    headers: Mapping[str, str] = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("x-amz-bucket-region") or response.get("Error", {}).get("Region", ""))


def translate(error: BaseException, request: RequestContext) -> FeeddError:  # noqa: PLR0911 - one return per row of a table
    """Return the translated error; raise it ``from`` the original."""
    if isinstance(error, boto.ClientError):
        return _answered(error, request)
    if isinstance(error, ForeignAnswer):
        return _foreign(error, request)
    if isinstance(inner := _inner(error), FeeddError):  # raised inside of the SDK
        inner.object = inner.object or request.url
        return inner
    if isinstance(error, _NO_CREDENTIALS):
        return PermissionDenied(
            f"there are no usable credentials: {_line(error)}",
            object=request.url,
            hint=_credentials_hint(request),
            stage="source",
        )
    if isinstance(error, _BAD_CONFIG):
        return BadConfig(f"the s3 configuration cannot be used: {_line(error)}", object=request.url, stage="source")
    if isinstance(error, boto.ParamValidationError):
        return BadRequest(f"s3 does not allow this bucket or key: {_line(error)}", object=request.url, stage="source")
    if isinstance(error, ResponseParserError) or _unread(error):
        return BadResponse(f"the answer is no s3 answer: {_line(error)}", object=request.url, stage="source")
    return _transport(error, request)


def _credentials_hint(request: RequestContext) -> str:
    return (
        "give credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role, "
        f"or, for a public bucket, set anonymous = true under {request.table} in feedd.toml"
    )


def _transport(error: BaseException, request: RequestContext) -> FeeddError:
    if _errno(error) in {errno.EMFILE, errno.ENFILE}:
        hint = "raise the limit of open files (ulimit -n)"
        message = f"no descriptor is free for a connection: {_cause(error)}"
        return ResourceExhausted(message, object=request.url, hint=hint, stage="source")
    failure = tls_failure(error)
    if failure is not None:
        bundle = f"AWS_CA_BUNDLE, or ca_bundle under {request.table} in feedd.toml,"
        shown = f"set client_certificate and client_key under {request.table} in feedd.toml"
        hint = failure.hint.format(bundle=bundle, certificate=shown, place="endpoint_url")
        if failure.foreign_host and "." in request.bucket:
            hint = f'set addressing_style = "path" under {request.table}: no certificate covers a bucket with dots'
        return BadConfig(f"no TLS connection: {failure.message}", object=request.endpoint, hint=hint, stage="source")
    if isinstance(error, _OF_PROXIES):
        return _proxy(error, request)
    behind = _proxy_hint(request.endpoint) if proxy_of(request.endpoint) else ""  # it may answer with silence
    if isinstance(error, (boto.EndpointConnectionError, boto.ConnectTimeoutError)):
        message = f"cannot connect to {request.endpoint}: {_cause(error)}"
        hint = behind or "check endpoint_url, region, proxy and network"
        return StoreUnavailable(message, object=request.url, hint=hint, stage="source")
    if isinstance(error, (boto.ReadTimeoutError, TimeoutError)):
        came = f": {error}" if type(error) is TimeoutError and str(error) else ""
        return StoreUnavailable(f"no answer in time{came}", object=request.url, hint=behind, stage="source")
    message = f"the answer broke off: {_cause(error)}"
    return StoreUnavailable(message, object=request.url, hint=behind, stage="source")


def _proxy(error: BaseException, request: RequestContext) -> FeeddError:
    """Return the error of a connection to a proxy, or of a proxy that opens no tunnel."""
    named = f"the proxy that {_variable(request.endpoint)} names"
    status = getattr(_inner(error), "status", 0)
    where = {"object": request.url, "hint": _proxy_hint(request.endpoint), "stage": "source"}
    if status == 407:
        return BadConfig(f"{named} wants a user name and a password (status 407)", **where)
    if status and status < 500:
        return BadConfig(f"{named} refuses connections to {request.endpoint}: status {status}", **where)
    if status:
        return StoreUnavailable(f"{named} cannot reach {request.endpoint}: status {status}", **where)
    return StoreUnavailable(f"cannot connect to {named}: {_cause(error)}", **where)


def _variable(endpoint: str) -> str:
    return proxy_variable(endpoint) or "HTTPS_PROXY or HTTP_PROXY"


def _proxy_hint(endpoint: str) -> str:
    host = urlsplit(endpoint).hostname or "the store's host"
    return f"correct {_variable(endpoint)}, or add {host} to NO_PROXY, in the environment of the daemon"


def _foreign(error: ForeignAnswer, request: RequestContext) -> FeeddError:
    """Return the error for an answer of someone else: no code of it says anything about credentials or keys."""
    status, answerer = error.status, error.answerer
    if 300 <= status < 400:
        return _redirected(error.headers, str(status), request)
    proxied = answerer.sender is Sender.PROXY and proxy_of(request.endpoint)
    hint = _proxy_hint(request.endpoint) if proxied else answerer.hint
    message = f"expected an s3 answer from {request.endpoint}, got one from {answerer.name}"
    where = {"object": request.url, "hint": hint, "stage": "source"}
    if status in _BUSY:
        return Throttled(message, retry_after_s=_retry_after_s(error.headers), **where)
    if (status >= 500 or status in _TRY_AGAIN) and status not in LOGIN_STATUSES:
        return StoreUnavailable(message, **where)
    return BadConfig(message, **where)


def _answered(error: boto.ClientError, request: RequestContext) -> FeeddError:  # noqa: PLR0911 - one return per row of a table
    code = code_of(error)
    meta: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    headers: Mapping[str, str] = meta.get("HTTPHeaders", {})
    status = int(meta.get("HTTPStatusCode", 0))
    where = {"object": request.url, "stage": "source"}
    said = f"{status} {code}" if code != str(status) else code
    if code in _MISSING:
        return _missing(code, request)
    if 300 <= status < 400 and "location" in headers and not region_of(error.response):
        return _redirected(headers, said, request)
    if code in MOVED:
        region = region_of(error.response)
        name = region or "its region"
        told = f"set AWS_DEFAULT_REGION to {name}, or region = {name!r} under {request.table} in feedd.toml"
        return BadConfig(f"the bucket is not in the configured region: {said}", hint=told, **where)
    if code in EXPIRED:
        hint = "the credentials expired and their source gave no fresh ones; renew them"
        return PermissionDenied(f"the credentials have expired: {said}", hint=hint, **where)
    if code == "RequestTimeTooSkewed":
        return PermissionDenied(f"the request's time is wrong: {said}", hint="set this machine's clock", **where)
    if code in _CREDENTIALS:
        return PermissionDenied(f"the store refused the credentials: {said}", hint=_credentials_hint(request), **where)
    if code == "InvalidObjectState":
        return PermissionDenied(ARCHIVED, hint=ARCHIVED_HINT, **where)
    if code in DENIED or code.startswith("KMS.") or status in {401, 403}:
        return PermissionDenied(f"access denied: {said}", hint=_grant(error, code, request), **where)
    if code in _CHANGED:
        got = headers.get("etag", "").strip('"') or "another"
        return ObjectChanged(f"expected etag {request.etag or 'none'}, got {got} ({said})", hint=CHANGED_HINT, **where)
    if code in _THROTTLED or status in {429, 503}:
        return Throttled(f"the store asked to slow down: {said}", retry_after_s=_retry_after_s(headers), **where)
    if code in _TRANSIENT or not 400 <= status < 500:
        return StoreUnavailable(f"the store failed: {said}", **where)
    # S3 gives no reason in its answer to a HEAD.
    of_s3 = "x-amz-request-id" in headers
    bare = code == "400" and of_s3 and request.op in {"head", "read"}
    elsewhere = "" if of_s3 else who_answered(status, headers, b"").hint
    hint = _SSE_C if bare or "Server Side Encryption" in str(error) else elsewhere if code == str(status) else ""
    return BadRequest(f"the store refused the request: {said}: {_line(error)}", hint=hint, **where)


def _grant(error: boto.ClientError, code: str, request: RequestContext) -> str:
    if code.startswith("KMS.") or "kms:" in str(error):
        return f"grant these credentials kms:Decrypt on the object's key ({_line(error)})"
    hint = f"grant these credentials {_PERMISSIONS[request.op]} (and kms:Decrypt if the bucket has its own key)"
    return (
        hint
        if request.pays
        else f"{hint}; if the bucket is requester-pays, set requester_pays = true under {request.table} in feedd.toml"
    )


def _missing(code: str, request: RequestContext) -> NotFound:
    twice = _bucket_twice(request)
    if code == "NoSuchBucket" or request.op == "list":
        hint = twice or "check the bucket's name and region"
        return NotFound(f"there is no such bucket at {request.endpoint}", object=request.url, hint=hint, stage="source")
    return NotFound("the object does not exist", object=request.url, hint=twice or MISSING_HINT, stage="source")


def _bucket_twice(request: RequestContext) -> str:
    """Return the hint for an endpoint that holds the bucket as well, at the end of its path or before its host."""
    bucket, parts = request.bucket, urlsplit(request.endpoint)
    if parts.path.rstrip("/").endswith(f"/{bucket}"):
        right = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(f'/{bucket}')}"
    elif parts.netloc.startswith(f"{bucket}."):
        right = f"{parts.scheme}://{parts.netloc.removeprefix(f'{bucket}.')}{parts.path}"
    else:
        return ""
    return f"the endpoint already holds the bucket's name: set endpoint_url to {right}"


def _redirected(headers: Mapping[str, str], said: str, request: RequestContext) -> BadConfig:
    """Return the error for a redirect that names no region; of a Location, the path may hold a signature."""
    found = _LOCATION.match(headers.get("location", ""))
    place = found[1] + found[2] if found else "another path"
    message = f"{request.endpoint} redirects the request to {place}: {said}"
    return BadConfig(message, object=request.url, hint=_REDIRECT_HINT, stage="source")


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None  # missing, or the HTTP date form, which S3 does not use


def _line(error: BaseException) -> str:
    """Return the text of an error without the addresses of objects, which libraries print."""
    return _REPR.sub("", " ".join(str(error).split())) or type(error).__name__


def _unread(error: BaseException) -> bool:
    """Whether botocore could not read a date or a number of an answer."""
    return isinstance(error, ValueError) and not isinstance(error, (OSError, httpsession.aiohttp.ClientError))


def _inner(error: BaseException) -> BaseException:
    inner = error.kwargs.get("error") if isinstance(error, boto.BotoCoreError) else None
    return inner if isinstance(inner, BaseException) else error


def _errno(error: BaseException) -> int | None:
    inner = _inner(error)
    return inner.errno if isinstance(inner, OSError) else None


def _cause(error: BaseException) -> str:
    inner = error.kwargs.get("error") if isinstance(error, boto.BotoCoreError) else None
    return f"{type(inner or error).__name__}: {_line(inner or error)}"


FOREIGN: tuple[type[BaseException], ...] = (
    boto.BotoCoreError,
    boto.ClientError,
    ResponseParserError,
    httpsession.aiohttp.ClientError,
    OSError,  # includes TimeoutError and socket errors
)
"""Exceptions that calls into aiobotocore may raise."""
