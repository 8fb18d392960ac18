"""Addresses of the status endpoint: ``host:port``."""

from __future__ import annotations

import ipaddress


def parse_address(text: str) -> tuple[str, int]:
    """Split ``host:port``; IPv6 hosts stand in brackets.

    Raises:
        ValueError: no port, or one outside 0 to 65535.
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not bare or (":" in bare and not bracketed) or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"expected host:port (like 127.0.0.1:7071 or [::1]:7071), got {text!r}")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
