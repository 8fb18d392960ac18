"""What an answer means: first its sender, then its error code. The border with the exceptions of botocore and aiohttp.

Proxies, web filters, consoles and login pages use the same statuses as a store. Their status says nothing about
credentials, buckets or keys. So ``who_answered`` names the sender of an HTTP answer before any error code is read.
Exceptions are translated once, with a helpful hint. The head of an answer is checked before its body counts.
"""

from __future__ import annotations

import errno
import html
import re
import ssl
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.values import ByteRange, ObjectRef

FIRST_BYTES: Final = 2048
"""How much of a body is enough to name its sender."""
SCHEME_HINT: Final = "http:// or https://? check the scheme and the port of endpoint_url"
CERTIFICATE_HINT: Final = "set client_certificate and client_key in the bucket's table of feedd.toml"
_AGREE_HINT: Final = (
    "the server must offer TLS 1.2 or newer for the host name in {place}; "
    "if it wants a client certificate: {certificate}"
)
_TLS_SCHEME_HINT: Final = "http:// or https://? check the scheme and the port of {place}"
PROXY_HINT: Final = "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY in the environment of the daemon"
_PLACE_HINT: Final = (
    "check host and port of endpoint_url: they must be those of the S3 API, not of a console, a website or a proxy"
)
_SHOWN_CHARS: Final = 80
_SECRET: Final = re.compile(r"[A-Za-z0-9+_=-]{24,}")  # a page may repeat a token or a signature
_STORE_HEADERS: Final = (
    *("x-amz-", "x-amzn-", "x-goog-", "x-guploader-", "x-minio-", "x-rgw-", "x-oss-", "x-cos-", "x-obs-"),
    "opc-request-id",
)
_PROXY_HEADERS: Final = frozenset(
    {"via", "proxy-authenticate", "proxy-connection", "proxy-status", "x-squid-error", "x-bluecoat-via"}
)
_PROXY_SERVERS: Final = re.compile(
    r"squid|bluecoat|zscaler|web gateway|fortinet|forcepoint|tinyproxy|privoxy", re.IGNORECASE
)
_PROLOGUE: Final = rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*"
_ROOT: Final = re.compile(_PROLOGUE + rb"<(?:[\w.-]+:)?([A-Za-z][\w.-]*)", re.DOTALL)
_HTML: Final = re.compile(
    _PROLOGUE + rb"<(?:!doctype\s+html|html|head|body|script|meta|title|center|h1|div|p)\b", re.DOTALL | re.IGNORECASE
)
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title", re.DOTALL | re.IGNORECASE)
_TAGS: Final = re.compile(r"<(script|style)\b.*?(?:</\1\s*>|$)|<[^>]*(?:>|$)", re.DOTALL | re.IGNORECASE)
_PLAIN_TO_TLS: Final = re.compile(
    rb"client sent an http request to an https server"  # Go: MinIO, SeaweedFS, Traefik
    rb"|plain http request was sent to https port"  # nginx
    rb"|speaking plain http to an ssl-enabled server port"  # Apache
    rb"|combination of host and port requires tls",  # Tomcat
    re.IGNORECASE,
)
_CERTIFICATE_WANTED: Final = re.compile(
    rb"no required ssl certificate was sent|the ssl certificate error", re.IGNORECASE
)
"""What nginx says, with status 400, to a client without a certificate, or with one that it does not accept."""
LOGIN_STATUSES: Final = frozenset({407, 511})
"""Statuses by which proxies and networks ask for a login; stores use neither."""
_PAGE_TYPES: Final = frozenset({"text/html", "application/xhtml+xml"})
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_FOREIGN_HOST: Final = frozenset({62, 64})
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG"})
_NEVER_AGREE: Final = (
    *("PROTOCOL", "HANDSHAKE_FAILURE", "CIPHER", "UNRECOGNIZED_NAME", "INSUFFICIENT_SECURITY", "LEGACY"),
    *("KEY_TOO_SMALL", "TOO_WEAK", "SIGNATURE_TYPE"),
)
"""Parts of OpenSSL's reasons for a handshake that fails each time; after other reasons, another try may pass."""
TLS_ALERT: Final = b"\x15\x03"
"""The first bytes of a TLS alert, which a TLS port may send for a request without TLS."""
_NO_CLIENT_CERTIFICATE: Final = "ALERT_CERTIFICATE_REQUIRED"
"""Part of OpenSSL's reason; with TLS 1.3 it comes after the handshake, when libraries keep the text only."""
_CLIENT_REFUSED: Final = re.compile(
    r"ALERT_(?:UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_(?:EXPIRED|REVOKED|UNKNOWN)|UNSUPPORTED_CERTIFICATE"
    r"|ACCESS_DENIED|DECRYPT_ERROR)"
)
"""Alerts about the certificate of the client, or about its absence in TLS 1.2."""
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
FOREIGN: tuple[type[BaseException], ...] = (
    boto.BotoCoreError,
    boto.ClientError,
    ResponseParserError,
    httpsession.aiohttp.ClientError,
    OSError,  # includes TimeoutError and socket errors
)
"""Exceptions that calls into aiobotocore may raise."""
_NO_ETAG_HINT: Final = (
    "feedd tells versions of an object apart by their ETags: let the store, or its gateway, send them"
)


class Sender(Enum):
    """The kinds of senders of an answer."""

    STORE = "store"
    """S3, a store that speaks S3, or another service of AWS."""
    UNKNOWN = "unknown"
    """Nothing contradicts a store, and nothing proves one: the answer has no body, or XML that others send too."""
    TEXT = "text"
    """JSON, plain text or other bytes; S3 answers with neither, but the metadata service does."""
    PAGE = "page"
    PROXY = "proxy"
    TLS_PORT = "tls-port"
    """A TLS port that got a request without TLS."""


@dataclass(frozen=True, slots=True)
class Answerer:
    """The sender of an answer.

    Attributes:
        sender: its kind.
        name: the sender, for a sentence: ``a web page "MinIO Console" (status 200, text/html)``.
        hint: what the user can do about it; empty for a store, whose error code tells more.
    """

    sender: Sender
    name: str
    hint: str = ""

    @property
    def is_foreign(self) -> bool:
        """Whether the answer is certainly not an S3 answer. Its status then says nothing about buckets and keys."""
        return self.sender not in {Sender.STORE, Sender.UNKNOWN}


def who_answered(status: int, headers: Mapping[str, str], first_bytes: bytes) -> Answerer:  # noqa: PLR0911 - one return per row of a table
    """Return the sender of an answer.

    Words of a good answer that is no page are left out, because it may hold credentials.

    Args:
        status: HTTP status.
        headers: the headers, with names in any case.
        first_bytes: the beginning of the body, ``FIRST_BYTES`` are enough; empty: there is none, or it is not known.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    first = first_bytes[:FIRST_BYTES]
    root = _ROOT.match(first)
    kind = lower.get("content-type", "").partition(";")[0].strip().lower()
    page = bool(_HTML.match(first)) or (kind in _PAGE_TYPES and not root)
    said = ", ".join(part for part in (f"status {status}", _short(kind), _server(lower)) if part)
    if status in LOGIN_STATUSES:
        return Answerer(Sender.PROXY, f"a proxy that wants a user name and a password ({said})", PROXY_HINT)
    if 400 <= status < 500 and _PLAIN_TO_TLS.search(first):
        return Answerer(Sender.TLS_PORT, f"a TLS port that got a request without TLS ({said})", SCHEME_HINT)
    if 400 <= status < 500 and _CERTIFICATE_WANTED.search(first):
        return Answerer(
            Sender.PAGE,
            f"a server that does not accept the client certificate, or wants one ({said})",
            CERTIFICATE_HINT,
        )
    if any(name.startswith(_STORE_HEADERS) for name in lower) or (root and root[1] in {b"Error", b"ErrorResponse"}):
        return Answerer(Sender.STORE, f"a store ({said})")
    words = _words(first) if (page or not root) and "content-encoding" not in lower else ""
    certain = "x-squid-error" in lower or bool(_PROXY_SERVERS.search(lower.get("server", "")))
    if (certain and status >= 400) or ((page or words) and not _PROXY_HEADERS.isdisjoint(lower)):
        return Answerer(Sender.PROXY, f"a proxy or a web filter{words} ({said})", PROXY_HINT)
    if page:
        return Answerer(Sender.PAGE, f"a web page{words} ({said})", _PLACE_HINT)
    if words:
        shown = f"a server that said{words}" if status >= 300 else "a server that sent neither XML nor a page"
        return Answerer(Sender.TEXT, f"{shown} ({said})", _PLACE_HINT)
    return Answerer(Sender.UNKNOWN, f"a server that sent no header of S3 ({said})", _PLACE_HINT)


def _server(headers: Mapping[str, str]) -> str:
    named = headers.get("server") or headers.get("via", "")
    return f"server {_short(named)}" if named else ""


def _words(first: bytes) -> str:
    """Return the title of a page, or its first words, in quotes after a space; empty if there are none."""
    if b"\0" in first:
        return ""
    text = first.decode("utf-8", "replace")
    title = _TITLE.search(text)
    short = _short(html.unescape(title[1])) if title else ""
    short = short or _short(html.unescape(_TAGS.sub(" ", text)))
    return f' "{short}"' if short else ""


def _short(text: str) -> str:
    line = _SECRET.sub("(redacted)", " ".join("".join(char if char.isprintable() else " " for char in text).split()))
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}..."


@dataclass(frozen=True, slots=True)
class TlsFailure:
    """What ended a TLS handshake.

    Attributes:
        message: the cause, with OpenSSL's own words and code.
        hint: what the user can do about it. ``{bundle}`` stands for the settings that name the authorities,
            ``{certificate}`` for what gives a client certificate, and ``{place}`` for the setting that names the host.
        foreign_host: the certificate is another host's.
    """

    message: str
    hint: str
    foreign_host: bool = False


def tls_failure(error: BaseException) -> TlsFailure | None:  # noqa: PLR0911 - one return per row of a table
    """Return why a TLS handshake cannot succeed, however often it is tried; None: another try may pass.

    Args:
        error: as a library raised it; it may wrap the error of the ``ssl`` module.
    """
    chain = _chain(error)
    text = " ".join(map(str, chain))
    tls = [one for one in chain if isinstance(one, ssl.SSLError)]
    # Errors of libraries inherit from ssl.SSLError as well, without its reason.
    found = next((one for one in tls if getattr(one, "reason", "") or hasattr(one, "verify_code")), None)
    if repr(TLS_ALERT)[:-1] in text:
        return TlsFailure("a TLS port got a request without TLS", _TLS_SCHEME_HINT)
    if _NO_CLIENT_CERTIFICATE in text:
        return TlsFailure("the server wants a client certificate", "{certificate}")
    if refused := _CLIENT_REFUSED.search(text):
        return TlsFailure(
            f"the server does not accept the client certificate, or wants one ({refused[0]})", "{certificate}"
        )
    if isinstance(found, ssl.SSLCertVerificationError):
        code, said = getattr(found, "verify_code", 0), getattr(found, "verify_message", "") or str(found)
        message = f"the certificate is not accepted: {said} (OpenSSL's code {code})"
        return TlsFailure(message, _certificate_hint(code), code in _FOREIGN_HOST)
    reason = getattr(found, "reason", "") or ""
    if reason in _NO_TLS:
        return TlsFailure(f"the port does not speak TLS ({reason})", _TLS_SCHEME_HINT)
    if any(part in reason for part in _NEVER_AGREE):
        return TlsFailure(f"client and server agree on no TLS connection ({reason})", _AGREE_HINT)
    return None


def _certificate_hint(code: int) -> str:
    if code == _EXPIRED:
        return "renew the certificate, or set this machine's clock"
    if code == _NOT_YET_VALID:
        return "set this machine's clock, or wait until the certificate is valid"
    if code in _FOREIGN_HOST:
        return "the certificate is another host's: use a host name that it lists (subjectAltName) in {place}"
    return "set {bundle} to the certificate authority that signed it"


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and those that it wraps. A mere cause is left out, because it may come after the handshake."""
    found: list[BaseException] = []
    todo: list[object] = [error]
    while todo:
        one = todo.pop(0)
        if isinstance(one, BaseException) and not any(one is other for other in found):
            found.append(one)
            todo += [getattr(one, name, None) for name in ("certificate_error", "os_error")]
            held = getattr(one, "kwargs", None)
            todo.append(held.get("error") if isinstance(held, dict) else None)
    return found


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


def plain_etag(
    header: str, request: RequestContext, headers: Mapping[str, str], status: int = 200, first: bytes | memoryview = b""
) -> str:
    """Return an ETag without quotes.

    Args:
        header: the ETag header; empty: there is none.
        request: the request, for errors.
        headers: all headers, which name the sender of a wrong answer.
        status: HTTP status.
        first: beginning of the body, as far as known.

    Raises:
        BadResponse: there is none.
    """
    etag = header.removeprefix("W/").strip('"')
    if not etag:
        answerer = who_answered(status, headers, bytes(first[:FIRST_BYTES]))
        message = f"expected an object with an ETag header, got none from {answerer.name}"
        foreign = ForeignAnswer(status, headers, answerer) if answerer.is_foreign else None
        raise BadResponse(message, object=request.url, hint=answerer.hint or _NO_ETAG_HINT, stage="source") from foreign
    return etag


def answered_by(headers: Mapping[str, str], address: str) -> str:
    """Return the sender of an answer, in the form that messages and S3's support need."""
    return f"request id {headers.get('x-amz-request-id', 'unknown')}, address {address or 'unknown'}"


def check_head(
    status: int,
    headers: Mapping[str, str],
    size_bytes: int | None,
    ref: ObjectRef,
    span: ByteRange,
    request: RequestContext,
    first: bytes | memoryview = b"",
) -> None:
    """Refuse an answer that is not the requested range.

    Args:
        status: HTTP status.
        headers: names in lower case.
        size_bytes: Content-Length; None: the body ends in another way, and its receiver counts its bytes.
        ref: the requested version.
        span: the requested range.
        request: the request, for errors.
        first: beginning of the body, as far as known.

    Raises:
        ObjectChanged: the answer is of another version.
        BadResponse: the answer has another range or length.
    """
    whole = span.size_bytes == ref.size_bytes
    wanted = f"bytes {span.start}-{span.end - 1}/{ref.size_bytes}"
    etag = plain_etag(headers.get("etag", ""), request, headers, status, first)
    content_range = headers.get("content-range")
    problem = ""
    if status == 206 and content_range != wanted:
        problem = f"expected content-range {wanted!r}, got {content_range!r}"
    elif status != 206 and not (status == 200 and whole):
        problem = f"expected status 206 for a range, got {status}"
    elif size_bytes is not None and size_bytes != span.size_bytes:
        problem = f"expected {span.size_bytes} bytes, got an answer of {size_bytes}"
    if problem and headers.get("content-encoding", "identity") != "identity":
        problem += f" with Content-Encoding {headers['content-encoding'][:40]!r}: a gateway may compress answers"
    if etag != ref.etag:
        message = f"expected etag {ref.etag}, got {etag}"
        raise ObjectChanged(message, object=request.url, hint=CHANGED_HINT, stage="source")
    if problem:
        raise BadResponse(problem, object=request.url, stage="source")
