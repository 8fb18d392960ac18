"""``key``: selects a value of a JSON document as the field, instead of the whole document. Pure.

A key is a member's name, or a path from the outside in: member names and array indices from 0. The empty path is the
document itself.
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
    """Parameters of codecs that may read a value of a JSON document; without ``key`` they read the whole field."""

    key: Key | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key)


def check_key(key: Key) -> None:
    """Check the length of the path and its steps.

    Raises:
        ValueError: the path or a name is too long, or an index is negative.
    """
    if len(key) > _STEPS_MAX:
        raise ValueError(f"expected a key of at most {_STEPS_MAX} steps, got {len(key)}")
    for step in key:
        if isinstance(step, int) and step < 0:
            raise ValueError(f"expected array indices from 0, got {step}")
        if isinstance(step, str) and len(step) > _NAME_CHARS_MAX:
            raise ValueError(f"expected names of at most {_NAME_CHARS_MAX} characters, got {len(step)}")


def key_list(given: object) -> object:
    """Return the user's key as a path; a single name becomes a path of one step."""
    return [given] if isinstance(given, str) else given


def key_text(key: Key) -> str:
    """Return the key as text for messages."""
    return repr(key[0]) if len(key) == 1 and isinstance(key[0], str) else repr(list(key))


def check_whole_documents(name: str, codec: str, key: Key | None, *, is_json: bool) -> None:
    """Check that whole JSON documents are tokenized only if the recipe says so.

    Raises:
        BadRecipe: the field holds JSON documents, and the recipe has no ``key``.
    """
    if codec == "tokenize" and key is None and is_json:
        raise BadRecipe(
            'expected "key", which names the text in each JSON document, got none',
            object=name,
            hint='"key": "text" takes that member; "key": [] tokenizes whole documents, including the braces',
            stage="decode",
        )
