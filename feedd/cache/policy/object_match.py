"""Matches objects against a pattern that a user typed."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(url: str, pattern: str) -> bool:
    """Return whether a URL matches a shell pattern, or a prefix if there is no ``*``, ``?`` or ``[``."""
    if any(character in pattern for character in "*?["):
        return fnmatchcase(url, pattern)
    return url.startswith(pattern)
