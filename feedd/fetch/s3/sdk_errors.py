"""The border with botocore and aiohttp: translates their exceptions once, with a helpful hint."""

from __future__ import annotations

import errno
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Mapping

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

_SSE_C = "objects encrypted with a customer's key (SSE-C) cannot be read: copy them to SSE-S3 or SSE-KMS"


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
    def table(self) -> str:
        """The table of feedd.toml that holds this bucket's settings."""
        return f'[s3."{self.url.removeprefix("s3://").partition("/")[0]}"]'


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


def translate(error: BaseException, request: RequestContext) -> FeeddError:
    """Return the translated error; raise it ``from`` the original."""
    if isinstance(error, boto.ClientError):
        return _answered(error, request)
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
    if isinstance(error, ResponseParserError):
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
    if isinstance(error, (boto.SSLError, ssl.SSLError)) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        hint = (
            f"set AWS_CA_BUNDLE, or ca_bundle under {request.table} in feedd.toml, to the store's certificate authority"
        )
        return BadConfig("the store's certificate is not trusted", object=request.endpoint, hint=hint, stage="source")
    if isinstance(error, (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)):
        message = f"cannot connect to {request.endpoint}: {_cause(error)}"
        hint = "check endpoint_url, region, proxy and network"
        return StoreUnavailable(message, object=request.url, hint=hint, stage="source")
    if isinstance(error, (boto.ReadTimeoutError, TimeoutError)):
        return StoreUnavailable("no answer in time", object=request.url, stage="source")
    return StoreUnavailable(f"the answer broke off: {_cause(error)}", object=request.url, stage="source")


def _answered(error: boto.ClientError, request: RequestContext) -> FeeddError:  # noqa: PLR0911 - one return per row of a table
    code = code_of(error)
    meta: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    headers: Mapping[str, str] = meta.get("HTTPHeaders", {})
    status = int(meta.get("HTTPStatusCode", 0))
    where = {"object": request.url, "stage": "source"}
    said = f"{status} {code}" if code != str(status) else code
    if code in _MISSING:
        return _missing(code, request)
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
    # An answer to a HEAD gives no reason.
    hint = _SSE_C if code == "400" or "Server Side Encryption" in str(error) else ""
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
    if code == "NoSuchBucket" or request.op == "list":
        hint = "check the bucket's name and region"
        return NotFound(f"there is no such bucket at {request.endpoint}", object=request.url, hint=hint, stage="source")
    return NotFound("the object does not exist", object=request.url, hint=MISSING_HINT, stage="source")


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None  # missing, or the HTTP date form, which S3 does not use


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


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
