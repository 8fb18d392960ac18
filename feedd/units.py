"""Sizes, durations and addresses in readable form: ``64MiB``, ``800GB``, ``30s``, ``1.5m``, ``[::1]:7071``."""

from __future__ import annotations

import ipaddress
import math
import re

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_SIZES = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kb": 1000,
    "kib": KIB,
    "m": MIB,
    "mb": 1000**2,
    "mib": MIB,
    "g": GIB,
    "gb": 1000**3,
    "gib": GIB,
    "t": 1024 * GIB,
    "tb": 1000**4,
    "tib": 1024 * GIB,
}
_DURATIONS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)\s*")


def _split(text: str, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = _NUMBER.fullmatch(text)
    unit = match["unit"].lower() if match else ""
    if match is None or unit not in units:
        known = ", ".join(u for u in units if u)
        raise ValueError(f"expected a number with one of the units {known} (like {example}), got {text!r}")
    found = float(match["number"]) * units[unit]
    if not math.isfinite(found):
        raise ValueError(
            f"expected a number with one of the units (like {example}), got a number of {len(text)} digits"
        )
    return found


def parse_size(text: str | int) -> int:
    """Return bytes for ``text``; single letters are binary, as in systemd and Kubernetes' Ki/Mi/Gi.

    Raises:
        ValueError: there is no number, the unit is unknown, or the size is negative.
    """
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"expected a size of 0 or more bytes, got {text}")
        return text
    return int(_split(text, _SIZES, "64MiB"))


def parse_duration_s(text: str | float) -> float:
    """Return seconds for ``text``.

    Raises:
        ValueError: there is no number, the unit is unknown, or the duration is negative.
    """
    if isinstance(text, int | float):
        if text < 0:
            raise ValueError(f"expected 0 or more seconds, got {text}")
        return float(text)
    return _split(text, _DURATIONS, "30s")


def format_size(size_bytes: float) -> str:
    """Render bytes with a binary unit and at most one decimal: ``8MiB``, ``1.5GiB``."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < KIB:
            return f"{value:.1f}".removesuffix(".0") + unit
        value /= KIB
    return f"{value:.1f}".removesuffix(".0") + "TiB"


def format_count(count: int, noun: str) -> str:
    """Render a number of things, whose plural ends in s: ``1 shard``, ``2 shards``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_duration(duration_s: float) -> str:
    """Render seconds for people: ``350us``, ``12ms``, ``4.2s``, ``3m20s``, ``2h05m``."""
    if duration_s < 1e-3:
        return f"{duration_s * 1e6:.0f}us"
    if duration_s < 1:
        return f"{duration_s * 1e3:.0f}ms"
    if duration_s < 60:
        return f"{duration_s:.1f}s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def parse_host_port(text: str) -> tuple[str, int]:
    """Split ``host:port``; IPv6 hosts are in brackets.

    Raises:
        ValueError: the port is missing or outside 0 to 65535.
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
