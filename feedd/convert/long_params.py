"""Conversion parameters that are too long for a name: a digest stands for them while the daemon runs.

A conversion is part of the identity of a cache entry and of each shard in a listing. Types of thousands of columns are
too long for that. The full text is needed only to convert a shard, and the session that requests the shard has stored
it before. Workers get the full text.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import zlib
from typing import Final

from feedd.errors import BadRecipe, Internal

PARAMS_BYTES_MAX: Final = 4096
"""Maximum length of parameters that need no digest."""

_DIGEST: Final = "#"
_PACKED: Final = "z"
_PACKED_BYTES_MAX: Final = 48 << 10  # fits into a message to a worker
_KEPT_BYTES_MAX: Final = 64 << 20


class _RecentTexts:
    """Texts by their digests; the oldest are dropped first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, str] = {}
        self._size_bytes = 0

    def keep(self, name: str, text: str) -> None:
        """Store a text."""
        with self._lock:
            self._size_bytes += len(text) - len(self._texts.pop(name, ""))
            self._texts[name] = text
            while self._size_bytes > _KEPT_BYTES_MAX and len(self._texts) > 1:
                self._size_bytes -= len(self._texts.pop(next(iter(self._texts))))

    def find(self, name: str) -> str | None:
        """Return the text of a name, or None if it was dropped."""
        with self._lock:
            return self._texts.get(name)


_KEPT: Final = _RecentTexts()


def named(text: str) -> str:
    """Return parameters as a conversion's name has them: unchanged, or as a digest if they are long.

    Raises:
        BadRecipe: they are too long for a worker.
    """
    if len(text.encode()) <= PARAMS_BYTES_MAX:
        return text
    if len(_packed(text)) > _PACKED_BYTES_MAX:
        message = f"expected column types of at most {_PACKED_BYTES_MAX} bytes, got {len(_packed(text))}"
        raise BadRecipe(message, hint="name fewer columns in fields", stage="decode")
    name = _DIGEST + hashlib.sha256(text.encode()).hexdigest()[:32]
    _KEPT.keep(name, text)
    return name


def spelled(params: str) -> str:
    """Return the full text of a conversion's parameters.

    Raises:
        Internal: the text of the digest is not stored.
    """
    if params.startswith(_PACKED):
        return zlib.decompress(base64.b85decode(params[len(_PACKED) :])).decode()
    if not params.startswith(_DIGEST):
        return params
    text = _KEPT.find(params)
    if text is None:
        raise Internal(f"the column types of digest {params} are unknown", stage="decode")
    return text


def is_long(params: str) -> bool:
    """Whether parameters are a digest."""
    return params.startswith(_DIGEST)


def for_worker(form: str) -> str:
    """Return a conversion with its full parameters, for a worker, which stores no digests."""
    name, colon, params = form.partition(":")
    return f"{name}{colon}{_packed(spelled(params))}" if params.startswith(_DIGEST) else form


def _packed(text: str) -> str:
    return _PACKED + base64.b85encode(zlib.compress(text.encode())).decode()
