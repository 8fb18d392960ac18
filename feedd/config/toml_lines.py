"""Finds the line of a TOML file that sets a name, because ``tomllib`` does not report lines."""

from __future__ import annotations

import re
import tomllib

_HEADER = re.compile(r"\s*\[(?P<name>[^\[\]]+)\]\s*(#.*)?")
_KEY = re.compile(r"\s*(?P<name>(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_.\s-])+?)\s*=")


def _path(name: str) -> tuple[str, ...]:
    try:
        at: object = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while isinstance(at, dict):
        ((key, at),) = at.items()
        path.append(key)
    return tuple(path)


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """Return the 1-based line that sets ``path``; None if it is unclear (multi-line texts, inline tables)."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.fullmatch(line)
        if header:
            table = _path(header["name"])
            continue
        key = _KEY.match(line)
        if key is None:
            continue
        found = (*table, *_path(key["name"]))
        if found and path[: len(found)] == found:
            return number
    return None
