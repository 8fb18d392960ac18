"""Parameters of forms that are too long for a name: they are told by a digest, and kept while the daemon runs.

A form is part of a cache entry's identity, and of each of a listing's shards. Types of thousands of columns are not.
What a digest stands for is needed only to make a shard, which who asks for it has kept before. Workers get all of it.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import zlib
from typing import Final

from feedd.errors import BadRecipe, Internal

PARAMS_BYTES_MAX: Final = 4096
"""Most of what is told as it is."""

_DIGEST: Final = "#"
_PACKED: Final = "z"
_PACKED_BYTES_MAX: Final = 48 << 10  # fits a message to a worker beside the rest
_KEPT_BYTES_MAX: Final = 64 << 20


class _Kept:
    """Texts by their digests; those that were kept last stay. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, str] = {}
        self._size_bytes = 0

    def keep(self, name: str, text: str) -> None:
        """Remember a text."""
        with self._lock:
            self._size_bytes += len(text) - len(self._texts.pop(name, ""))
            self._texts[name] = text
            while self._size_bytes > _KEPT_BYTES_MAX and len(self._texts) > 1:
                self._size_bytes -= len(self._texts.pop(next(iter(self._texts))))

    def find(self, name: str) -> str | None:
        """Return a text."""
        with self._lock:
            return self._texts.get(name)


_KEPT: Final = _Kept()


def named(text: str) -> str:
    """Return parameters as a form bears them: as they are, or by a digest where they are long.

    Raises:
        BadRecipe: they are too long for a worker.
    """
    if len(text.encode()) <= PARAMS_BYTES_MAX:
        return text
    if len(_packed(text)) > _PACKED_BYTES_MAX:
        message = f"expected types of columns that fit {_PACKED_BYTES_MAX} bytes, got {len(_packed(text))}"
        raise BadRecipe(message, hint="name fewer columns in fields", stage="decode")
    name = _DIGEST + hashlib.sha256(text.encode()).hexdigest()[:32]
    _KEPT.keep(name, text)
    return name


def spelled(params: str) -> str:
    """Return what a form's parameters stand for.

    Raises:
        Internal: nobody has kept what the digest stands for.
    """
    if params.startswith(_PACKED):
        return zlib.decompress(base64.b85decode(params[len(_PACKED) :])).decode()
    if not params.startswith(_DIGEST):
        return params
    text = _KEPT.find(params)
    if text is None:
        raise Internal(f"expected types of columns that are known, got {params}", stage="decode")
    return text


def is_long(params: str) -> bool:
    """Whether parameters are told by a digest."""
    return params.startswith(_DIGEST)


def for_worker(form: str) -> str:
    """Return a form as a worker understands it, who has kept nothing."""
    name, colon, params = form.partition(":")
    return f"{name}{colon}{_packed(spelled(params))}" if params.startswith(_DIGEST) else form


def _packed(text: str) -> str:
    return _PACKED + base64.b85encode(zlib.compress(text.encode())).decode()
