"""How a shard is made of an object that cannot be read at random, as a value."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from typing import Final

PARAMS_BYTES_MAX: Final = 4096
"""Maximum length of a conversion's parameters that are identified by themselves and not by a digest."""

_DIGEST: Final = "#"
_DIGEST_CHARS: Final = 32


@functools.lru_cache(maxsize=32)  # all shards of a source have the same parameters
def _key_of(params: str) -> str:
    encoded = params.encode()
    if len(encoded) <= PARAMS_BYTES_MAX:
        return params
    return _DIGEST + hashlib.sha256(encoded).hexdigest()[:_DIGEST_CHARS]


@dataclass(frozen=True, slots=True)
class Conversion:
    """What makes a shard of an object that cannot be read at random. Shards and cache entries are told apart by it.

    Conversions are equal if the same converter gets the same parameters. Long parameters are compared by their digest.

    Attributes:
        name: the converter, such as ``parquet``; behind one that decompresses: ``gunzip+csv``.
        params: its parameters as text, as the converter defines them; empty: none. A digest, which no converter
            accepts, if a name on disk was parsed.
        key: the parameters, or ``#`` and half of their SHA-256 if they are long.
    """

    name: str
    params: str = field(default="", compare=False, repr=False)
    key: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", _key_of(self.params))

    @staticmethod
    def parse(text: str) -> Conversion | None:
        """Return the conversion of a ``text``; None if the text is empty."""
        name, _, key = text.partition(":")
        return Conversion(name, key) if text else None

    @property
    def text(self) -> str:
        """Name and key as one text, for names on disk and for people."""
        return f"{self.name}:{self.key}" if self.key else self.name


def text_of(conversion: Conversion | None) -> str:
    """Return a conversion's ``text``, or an empty string for an object that is a shard itself."""
    return "" if conversion is None else conversion.text
