"""Which proxy the environment names for a URL. NO_PROXY may hold networks, as Go and curl read it.

``urllib`` and botocore read host names and domains in NO_PROXY, but no networks like ``10.0.0.0/8``.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from feedd.errors import BadConfig

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy for requests to one endpoint.

    Attributes:
        scheme: ``http`` or ``https``, which encrypts the connection to the proxy itself.
        host: name or literal address, without brackets.
        port: TCP port.
        login: value of Proxy-Authorization; empty: there is none. Never shown.
    """

    scheme: str
    host: str
    port: int
    login: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """The proxy's URL without user name and password, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy that the environment names for ``url``; None: there is none, or NO_PROXY excludes it.

    Raises:
        BadConfig: the proxy has no host, or is none of HTTP.
    """
    named = proxy_of(url)
    if not named:
        return None
    try:
        parts = urlsplit(named if "://" in named else f"http://{named}")
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme not in _PORTS:
        message = f"expected {proxy_variable(url) or 'the proxy'} like http://host:3128, got a proxy of another form"
        raise BadConfig(message, object=url, hint="correct it in the environment of the daemon", stage="source")
    login = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Proxy(parts.scheme, host, port, login)


def proxy_of(url: str) -> str:
    """Return the proxy that the environment names for ``url``; empty: there is none, or NO_PROXY excludes it."""
    proxy = getproxies().get(urlsplit(url).scheme, "")
    return "" if not proxy or bypasses_proxies(url) else proxy


def bypasses_proxies(url: str) -> bool:
    """Whether NO_PROXY names a URL's host, with or without its port, its domain, or a network of its address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if proxy_bypass(host) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False  # a name: it is not resolved for this
    for part in getproxies().get("no", "").split(","):
        with contextlib.suppress(ValueError):  # a name
            if address in ipaddress.ip_network(part.strip(), strict=False):
                return True
    return False


def proxy_variable(url: str) -> str:
    """Return the name of the variable that sets the proxy for ``url``, as urllib reads them; empty: there is none."""
    lower = f"{urlsplit(url).scheme}_proxy"
    return next((name for name in (lower, lower.upper()) if os.environ.get(name)), "")
