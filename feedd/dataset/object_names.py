"""Names of objects, taken apart. Pure."""

from __future__ import annotations


def split_name(key: str) -> tuple[str, str]:
    """Return a key without its extension, and the extension in lower case; the extension may be empty.

    A name that begins with a dot has no extension.
    """
    stem, dot, extension = key.rpartition(".")
    if not dot or "/" in extension or not stem or stem[-1] == "/":
        return key, ""
    return stem, extension.lower()
