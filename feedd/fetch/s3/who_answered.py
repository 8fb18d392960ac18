"""Names the sender of an HTTP answer, and what is wrong with a TLS handshake, before any error code is read. Pure.

Proxies, web filters, consoles and login pages use the same statuses as a store. Their status says nothing about
credentials, buckets or keys.
"""

from __future__ import annotations

import html
import re
import ssl
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

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
