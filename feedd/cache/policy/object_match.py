"""Which objects a user means by what he typed."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(url: str, pattern: str) -> bool:
    """Tell whether a URL is meant: by shell pattern, or by prefix where there is no ``*``, ``?`` or ``[``."""
    if any(character in pattern for character in "*?["):
        return fnmatchcase(url, pattern)
    return url.startswith(pattern)
