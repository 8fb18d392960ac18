"""Tokenizer files that the operator offers in a folder. Clients name a file; no path from a client is ever opened.

The folder's path is an environment variable, which the daemon's workers inherit like other settings.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd.errors import BadRecipe

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE: Final = "_FEEDD_TOKENIZERS"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_BYTES_MAX: Final = 256 << 20


@contextmanager
def offered(folder: Path | None) -> Iterator[None]:
    """Offer the files of ``folder`` to this process and its children while the context lasts; None: no files."""
    before = os.environ.pop(VARIABLE, None)
    if folder is not None:
        os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def read(name: str) -> bytes:
    """Return the bytes of a tokenizer's file.

    Raises:
        BadRecipe: the operator offers no such file; the message lists the offered ones.
    """
    try:
        path = _path(name)
        if path.stat().st_size > _BYTES_MAX:
            raise BadRecipe(f"expected a tokenizer of at most {_BYTES_MAX} bytes, got {name!r}", stage="decode")
        return path.read_bytes()
    except OSError as error:
        raise BadRecipe(f"expected to read the tokenizer {name!r}, got {error.strerror}", stage="decode") from error


def digest(name: str) -> str:
    """Return the first 32 hex digits of the SHA-256 of a tokenizer's file: another file makes another recipe.

    Raises:
        BadRecipe: the operator offers no such file; the message lists the offered ones.
    """
    try:
        found = _path(name).stat()
    except OSError as error:
        raise BadRecipe(f"expected to read the tokenizer {name!r}, got {error.strerror}", stage="decode") from error
    return _digest(name, found.st_mtime_ns, found.st_size, found.st_ino)


@functools.lru_cache(maxsize=64)
def _digest(name: str, *version: int) -> str:  # noqa: ARG001 - a changed file has another version and is read again
    return digest_of(read(name))


def digest_of(data: bytes) -> str:
    """Return the ``digest`` of a tokenizer file's bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


def _path(name: str) -> Path:
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise BadRecipe(
            f"expected tokenizers that the operator offers, got none for {name!r}",
            hint="set the daemon's option decode.tokenizers to a folder of tokenizer.json files",
            stage="decode",
        )
    path = Path(folder, name)
    if _NAME.fullmatch(name) is None or not path.is_file():
        there = sorted(one.name for one in Path(folder).glob("*") if _NAME.fullmatch(one.name) and one.is_file())
        raise BadRecipe(
            f"expected one of the tokenizers {', '.join(there[:50]) or '(none)'}, got {name!r}", stage="decode"
        )
    return path
