"""Parameters of packing, and of the numbers that fill unused places. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

LENGTH_MAX: Final = 1 << 27


class PackParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Packs samples of any length into rows of ``length`` numbers (``batching.packing``); ``fill`` fills the rest."""

    length: int
    how: Literal["concat", "bins"] = "concat"
    fill: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.length <= LENGTH_MAX:
            raise ValueError(f"expected a length of 1 to {LENGTH_MAX}, got {self.length}")


@dataclass(frozen=True, slots=True)
class Packing:
    """How the fields of a recipe are packed.

    Attributes:
        length: tokens per row.
        how: see ``batching.packing``.
        fill: token in places that no document uses.
        beside: fill of each further field; further fields are packed alike and equally long in every document.
    """

    length: int
    how: Literal["concat", "bins"]
    fill: int = 0
    beside: tuple[int, ...] = ()


def check_fill(dtype: str, fill: int) -> None:
    """Check that an integer type can hold ``fill``; 0 fits every type.

    Raises:
        ValueError: the type cannot hold it.
    """
    if not fill:
        return
    bits = int("".join(filter(str.isdigit, dtype)) or "8")
    low, high = (0, 1 << bits) if dtype.startswith("u") else (-1 << (bits - 1), 1 << (bits - 1))
    if "int" not in dtype or not low <= fill < high:
        raise ValueError(f"expected a fill that {dtype} holds, got {fill}")
