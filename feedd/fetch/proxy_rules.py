"""Which proxy the environment names for a URL. NO_PROXY may hold networks, as Go and curl read it.

``urllib`` and botocore read host names and domains in NO_PROXY, but no networks like ``10.0.0.0/8``.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def proxy_variable(url: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the name of the variable that sets the proxy for ``url``, as urllib reads them; empty: there is none."""
    found = os.environ if environment is None else environment
    lower = f"{urlsplit(url).scheme}_proxy"
    return next((name for name in (lower, lower.upper()) if found.get(name)), "")
