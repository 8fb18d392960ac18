"""Addresses of web requests, and where redirects may lead. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, urljoin, urlsplit

from feedd.access import climbs
from feedd.errors import BadRequest, BadResponse, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

_PORTS: Final = {"http": 80, "https": 443}
_URL_SAFE: Final = "%/:?[]@!$&'()*+,;=~-._"
_PATH_SAFE: Final = "%/:?@!$&'()*+,;=~-._"
_SHOWN_CHARS: Final = 80
_CONTROL: Final = re.compile(r"[\x01-\x1f\x7f]")
_UNSIGNED_S: Final = 60.0  # how long a redirect without an end is followed without asking again
_SIGNED_MAX_S: Final = 3600.0
_MARGIN_S: Final = 30.0  # a read may begin this long before the end
_COMPACT: Final = "%Y%m%dT%H%M%SZ"
_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""Gateways send these on to IPv4 addresses, also private ones."""
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"))
)
"""Metadata services of Azure, Alibaba, AWS and Google that have no link-local address."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where one web request goes.

    Attributes:
        scheme: ``http`` or ``https``.
        host: name or literal address, lower case, without brackets.
        port: TCP port.
        path: path and query, percent-encoded, as they are sent.
        admit: which addresses the host may have, if a redirect named it; None: any.
    """

    scheme: str
    host: str
    port: int
    path: str
    admit: Callable[[str], bool] | None = None

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme and authority."""
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        """The whole URL."""
        return self.origin + self.path


def target_of(url: str) -> Target:
    """Return the target of an absolute URL; characters that a request cannot hold are percent-encoded.

    Raises:
        BadRequest: the URL has another scheme, names a user, or has no host.
    """
    try:
        parts = urlsplit(quote(url, safe=_URL_SAFE))
        port = parts.port
    except ValueError as error:
        raise BadRequest(f"expected a web URL, got {error}", object=url, stage="source") from error
    if parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        raise BadRequest("expected https://HOST/PATH without a user name", object=url, stage="source")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path)


def object_target(root: str, key: str) -> Target:
    """Return the target of an object below ``https://host``; the key may already be percent-encoded.

    Raises:
        BadRequest: the key climbs out of its folder.
    """
    check_key(root, key)
    return target_of(f"{root}/{quote(key, safe=_PATH_SAFE)}")


def check_key(root: str, key: str) -> None:
    """Refuse a key that a server might take for a path out of its folder, whatever named it.

    Control characters in names that a store lists are sent percent-encoded. A server that drops them must not climb.

    Raises:
        BadRequest: it climbs.
    """
    if climbs(root, _CONTROL.sub("", key)):
        message = f"expected a key below its folder, got {key[:_SHOWN_CHARS]!r}"
        raise BadRequest(message, object=root, stage="source")


def redirected(before: Target, location: str, answered_by: str, url: str) -> Target:
    """Return where a redirect leads.

    Args:
        before: the request that was redirected.
        location: the answer's Location header.
        answered_by: address of the server that redirects; empty: a proxy hides it.
        url: the object, for errors.

    Raises:
        BadResponse: the header is missing or no URL.
        Unsupported: the redirect would give up TLS.
    """
    if not location:
        raise BadResponse("expected a redirect with a location, got none", object=url, stage="source")
    try:
        found = target_of(urljoin(before.url, location).partition("#")[0])
    except BadRequest as error:
        message = f"expected a redirect to a web URL, got one from {before.host}: {error.message}"
        raise BadResponse(message, object=url, stage="source") from error
    if before.scheme == "https" and found.scheme != "https":
        message = f"expected a redirect to https, got one from {before.host} to http://{found.authority}"
        hint = "the bytes would cross the network without encryption: name a server that stays with https"
        raise Unsupported(message, object=url, hint=hint, stage="source")
    if found.host == before.host:
        return replace(found, admit=before.admit)
    return replace(found, admit=admission(answered_by))


def lifetime_s(target: Target, now_s: float) -> float:
    """Return how long a redirect's target stays valid, from the signature in its query; 0: not any more.

    Args:
        target: where the redirect led.
        now_s: seconds since 1970.
    """
    query = {name.lower(): value for name, value in parse_qsl(target.path.partition("?")[2])}
    ends_s = _ends_s(query)
    if ends_s is None:
        return _UNSIGNED_S
    return max(0.0, min(_SIGNED_MAX_S, ends_s - now_s - _MARGIN_S))


def _ends_s(query: dict[str, str]) -> float | None:
    try:
        for kind in ("x-amz", "x-goog"):
            if f"{kind}-expires" in query:
                begins = datetime.strptime(query.get(f"{kind}-date", ""), _COMPACT).replace(tzinfo=UTC)
                return begins.timestamp() + float(query[f"{kind}-expires"])
        if re.fullmatch(r"[0-9]{10}", query.get("expires", "")):
            return float(query["expires"])
        if "se" in query and "sig" in query:  # a shared access signature of Azure
            return datetime.fromisoformat(query["se"]).timestamp()
    except ValueError:
        return None
    return None


def admission(answered_by: str) -> Callable[[str], bool]:
    """Return which addresses the target of a redirect may have, given the address of the server that redirects.

    A public server may redirect to public addresses only. Otherwise, its owner could read from the private network
    of this machine. A server behind a proxy counts as public. Link-local addresses, where clouds have their
    metadata services, are never admitted, and neither are metadata services elsewhere.
    """
    if not answered_by or _is_public(answered_by):
        return _is_public
    return _is_not_link_local


def _is_public(address: str) -> bool:
    try:
        found = _plain(address)
    except ValueError:
        return False
    return found.is_global and found not in _METADATA


def _is_not_link_local(address: str) -> bool:
    try:
        found = _plain(address)
    except ValueError:
        return False
    return not found.is_link_local and found not in _METADATA


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address; of an IPv6 address that stands for one of IPv4, the latter."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if not isinstance(found, ipaddress.IPv6Address):
        return found
    if found in _TRANSLATED:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.ipv4_mapped or found.sixtofour or found
