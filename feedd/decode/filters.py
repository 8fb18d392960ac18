"""``filter``: conditions a sample must meet, on what is cheap to look at.

Each is a JSON object::

    {"field": "txt", "min_bytes": 1, "max_bytes": 4096}      as the shard stores it
    {"field": "jpg", "min_height": 64, "min_width": 64}      from the image's header
    {"field": "score", "min": 0.5, "max": 1}                 a number, text or stored; compared as float64

A sample must meet all of them. The field need not be one that is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from feedd.errors import BadRecipe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from feedd.values import FieldRecipe

_HINT: Final = (
    'like {"field": "txt", "min_bytes": 1}; known: min_bytes, max_bytes, min_height, max_height, min_width, '
    "max_width, min, max"
)


class Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One condition; what is left out is not asked for.

    Attributes:
        field: batch key of a decoded field, or what the data calls it; ``a;b``: the first one a sample has.
    """

    field: str
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
            raise ValueError("expected a condition beside the field, got none")
        for low, high in asked:
            if low is not None and high is not None and low > high:
                raise ValueError(f"expected a least value that is not above the most, got {low} and {high}")

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

    @property
    def codecs(self) -> tuple[str, ...]:
        """What must be read of a sample beside its size: an ``image`` header, a number (``float``)."""
        image = self.height != (None, None) or self.width != (None, None)
        return ("image",) * image + ("float",) * (self.number != (None, None))

    def sources(self, recipes: Iterable[FieldRecipe]) -> tuple[str, ...]:
        """Return what the data may call the field: of one that is decoded, what the recipes say."""
        decoded = [source for recipe in recipes if recipe.name == self.field for source in recipe.sources]
        return tuple(dict.fromkeys(decoded)) or tuple(part.strip().lower() for part in self.field.split(";"))


def within(values: NDArray[Any], bounds: tuple[float | None, float | None]) -> NDArray[np.bool_]:
    """Return which values lie within bounds, both included; NaN lies within none."""
    low, high = bounds
    fits = np.ones(values.shape, np.bool_)
    if low is not None:
        fits &= values >= low
    if high is not None:
        fits &= values <= high
    return fits


def parse_filter(text: str) -> Filter:
    """Return one condition.

    Raises:
        BadRecipe: not understood.
    """
    try:
        return msgspec.json.decode(text.encode(), type=Filter)
    except msgspec.DecodeError as error:
        problem = str(error)
        raise BadRecipe(
            f"filter: {problem[:1].lower()}{problem[1:]} in {text!r}", object="filter", hint=_HINT, stage="decode"
        ) from error


def filter_text(one: Filter) -> str:
    """Return canonical JSON text: equal conditions, equal text."""
    return msgspec.json.encode(one, order="sorted").decode()
