"""Parameters of packing, and of what fills places that no number takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

LENGTH_MAX: Final = 1 << 27


class PackParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Samples of any length packed into rows of ``length`` numbers (``batching.packing``); ``fill`` where none is."""

    length: int
    how: Literal["concat", "bins"] = "concat"
    fill: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.length <= LENGTH_MAX:
            raise ValueError(f"expected a length of 1 to {LENGTH_MAX}, got {self.length}")


@dataclass(frozen=True, slots=True)
class Packing:
    """How a field is packed.

    Attributes:
        length: tokens of a row.
        how: see ``batching.packing``.
        fill: token in places that no document takes.
        beside: what fills those places of each further field that is packed alike, as long in every document.
    """

    length: int
    how: Literal["concat", "bins"]
    fill: int = 0
    beside: tuple[int, ...] = ()


def check_fill(dtype: str, fill: int) -> None:
    """Make sure that an integer type holds a number; 0 fits every type.

    Raises:
        ValueError: it does not.
    """
    if not fill:
        return
    bits = int("".join(filter(str.isdigit, dtype)) or "8")
    low, high = (0, 1 << bits) if dtype.startswith("u") else (-1 << (bits - 1), 1 << (bits - 1))
    if "int" not in dtype or not low <= fill < high:
        raise ValueError(f"expected a fill that {dtype} holds, got {fill}")
