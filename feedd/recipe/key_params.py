"""``key``: which value of a JSON document a field is, where it is not all of it. Pure.

A member's name, or the way there from the outside in: names of members and places in arrays, counted from 0. The empty
way is the document itself.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from feedd.errors import BadRecipe

Key: TypeAlias = tuple[str | int, ...]
_STEPS_MAX: Final = 16
_NAME_CHARS_MAX: Final = 1000
NAMES: Final = ("json", "jsn")
"""Extensions of fields that hold JSON documents."""


class KeyedParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Of codecs that read a value of a JSON document; without ``key`` they read the field as it is."""

    key: Key | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key)


def check_key(key: Key) -> None:
    """Make sure that it is one.

    Raises:
        ValueError: too long a way, or a place below 0.
    """
    if len(key) > _STEPS_MAX:
        raise ValueError(f"expected a key of at most {_STEPS_MAX} steps, got {len(key)}")
    for step in key:
        if isinstance(step, int) and step < 0:
            raise ValueError(f"expected places in arrays from 0, got {step}")
        if isinstance(step, str) and len(step) > _NAME_CHARS_MAX:
            raise ValueError(f"expected names of at most {_NAME_CHARS_MAX} characters, got {len(step)}")


def key_list(given: object) -> object:
    """Return what a user wrote as a way: one name stands for the way of it alone."""
    return [given] if isinstance(given, str) else given


def key_text(key: Key) -> str:
    """Return it for messages."""
    return repr(key[0]) if len(key) == 1 and isinstance(key[0], str) else repr(list(key))


def check_told(name: str, codec: str, key: Key | None, *, is_json: bool) -> None:
    """Make sure that text to be tokenized is not a whole JSON document by oversight.

    Raises:
        BadRecipe: it is, and nobody said so.
    """
    if codec == "tokenize" and key is None and is_json:
        raise BadRecipe(
            'expected "key", which names the text in each JSON document, got none',
            object=name,
            hint='"key": "text" takes that member; "key": [] tokenizes documents as they are, braces and all',
            stage="decode",
        )
