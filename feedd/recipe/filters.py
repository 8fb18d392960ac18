"""``filter``: conditions that a sample must meet, on properties that are cheap to read.

Each condition is a JSON object::

    {"field": "txt", "min_bytes": 1, "max_bytes": 4096}      stored size
    {"field": "jpg", "min_height": 64, "min_width": 64}      from the image's header
    {"field": "score", "min": 0.5, "max": 1}                 a number, in text or binary; compared as float64
    {"field": "json", "key": "score", "min": 0.5}            a number in a JSON document (see ``recipe.key_params``)
    {"field": "json", "key": "text", "min_bytes": 200}       UTF-8 bytes of a text in a JSON document

If a field is decoded with a ``key``, conditions apply to the value there. If that value is not text, its bytes are
those of its JSON. A sample must meet all conditions. The field need not be decoded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from feedd.errors import BadRecipe
from feedd.recipe.encodings import is_member, member_encoding, of_member
from feedd.recipe.key_params import Key, check_key, key_list
from feedd.recipe.params import FloatParams, ImageParams, canonical, params_of
from feedd.recipe.text_params import JsonParams, StrParams
from feedd.values import FieldRecipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from feedd.recipe.params import Params

INSIDE: Final = frozenset({"str", "json"})
"""Codecs that read values inside documents; the values' sizes differ from the stored sizes."""

_HINT: Final = (
    'like {"field": "txt", "min_bytes": 1}; known: min_bytes, max_bytes, min_height, max_height, min_width, '
    "max_width, min, max, and key for values of JSON documents"
)


class Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One condition; omitted bounds are not checked.

    Attributes:
        field: batch key of a decoded field, or a field name in the data; ``a;b``: the first that a sample has.
        key: path of a value in the JSON document that the field holds.
    """

    field: str
    key: Key | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    min_height: int | None = None
    max_height: int | None = None
    min_width: int | None = None
    max_width: int | None = None
    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        asked = [pair for pair in (self.bytes, self.height, self.width, self.number) if pair != (None, None)]
        if not asked:
            raise ValueError("expected a condition for the field, got none")
        for low, high in asked:
            if low is not None and high is not None and low > high:
                raise ValueError(f"expected a minimum that is not above the maximum, got {low} and {high}")
        if self.key is not None:
            check_key(self.key)
            if self.height != (None, None) or self.width != (None, None):
                raise ValueError("expected bounds of numbers or bytes together with key, got bounds of an image")

    @property
    def bytes(self) -> tuple[int | None, int | None]:
        """Bounds of the stored size."""
        return self.min_bytes, self.max_bytes

    @property
    def height(self) -> tuple[int | None, int | None]:
        """Bounds of an image's height, in pixels."""
        return self.min_height, self.max_height

    @property
    def width(self) -> tuple[int | None, int | None]:
        """Bounds of an image's width, in pixels."""
        return self.min_width, self.max_width

    @property
    def number(self) -> tuple[float | None, float | None]:
        """Bounds of a number."""
        return self.min, self.max

    def readers(self, recipes: Iterable[FieldRecipe]) -> tuple[FieldRecipe, ...]:
        """Return recipes for the properties that must be read in addition to the stored size.

        These are an image's header (``image``), a number (``float``), and the bytes of a value inside a document
        (``str`` or ``json``).
        """
        recipes = tuple(recipes)
        sources, (key, is_text, encoding) = self.sources(recipes), self._checked_key(recipes)
        found: list[tuple[str, Params]] = []
        if self.height != (None, None) or self.width != (None, None):
            found.append(("image", ImageParams()))
        if self.number != (None, None):
            found.append(("float", FloatParams(key=key)))
        if key is not None and self.bytes != (None, None):
            found.append(("str", StrParams(key=key)) if is_text else ("json", JsonParams(key=key)))
        return tuple(FieldRecipe(self.field, sources, codec, canonical(params), encoding) for codec, params in found)

    def readers_of(self, readers: Sequence[FieldRecipe], sources: tuple[str, ...], encoding: str) -> list[FieldRecipe]:
        """Return the recipes that read a field with one encoding: of members of JSON objects, the member.

        The size of a member is that of its value, and not the stored size.

        Raises:
            BadRecipe: the field has alternatives, one of them a member.
        """
        if not is_member(encoding):
            return [replace(one, encoding=encoding) for one in readers]
        found = list(readers)
        if self.bytes != (None, None) and not any(one.codec in INSIDE for one in readers):
            is_text = encoding.startswith(member_encoding("str", ""))
            params = StrParams() if is_text else JsonParams()
            found.append(FieldRecipe(self.field, sources, "str" if is_text else "json", canonical(params)))
        return [one if is_member(one.encoding) else of_member(one, encoding) for one in found]

    def _checked_key(self, recipes: Iterable[FieldRecipe]) -> tuple[Key | None, bool, str]:
        """Return the key of the checked value, whether it must be text, and the encoding that the key belongs to.

        The key is the filter's, or else that of the decoded field.
        """
        if self.key is not None:
            return self.key, True, ""
        decoded = next((one for one in recipes if one.name == self.field), None)
        key = None if decoded is None else getattr(params_of(decoded), "key", None)
        if decoded is not None and decoded.codec == "tokenize":
            key = key or None  # for whole documents the stored size is used
        encoding = "" if decoded is None or key is None else decoded.encoding
        return key, decoded is not None and decoded.codec in {"str", "tokenize"}, encoding

    def sources(self, recipes: Iterable[FieldRecipe]) -> tuple[str, ...]:
        """Return the names that the field may have in the data; for a decoded field, those of its recipes."""
        decoded = [source for recipe in recipes if recipe.name == self.field for source in recipe.sources]
        return tuple(dict.fromkeys(decoded)) or tuple(part.strip().lower() for part in self.field.split(";"))


def within(values: NDArray[Any], bounds: tuple[float | None, float | None]) -> NDArray[np.bool_]:
    """Return bool: which values lie within the bounds, both included; NaN never does."""
    low, high = bounds
    fits = np.ones(values.shape, np.bool_)
    if low is not None:
        fits &= values >= low
    if high is not None:
        fits &= values <= high
    return fits


def parse_filter(text: str) -> Filter:
    """Return one parsed condition.

    Raises:
        BadRecipe: the text is not a valid condition.
    """
    try:
        given = msgspec.json.decode(text.encode())
        if isinstance(given, dict) and "key" in given:
            given["key"] = key_list(given["key"])
        return msgspec.convert(given, Filter)
    except (msgspec.DecodeError, RecursionError) as error:
        problem = str(error)
        raise BadRecipe(
            f"filter: {problem[:1].lower()}{problem[1:]} in {text!r}", object="filter", hint=_HINT, stage="decode"
        ) from error


def filter_text(one: Filter) -> str:
    """Return canonical JSON text: equal conditions give equal text."""
    return msgspec.json.encode(one, order="sorted").decode()
