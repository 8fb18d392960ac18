"""Objects of a listing that hold no data: how many, which, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from feedd.notices import EXAMPLES_MAX, Amount, NoticeKind, summed

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Objects of a listing that are no data.

    Attributes:
        count: of them.
        keys: of the first of them.
        reasons: how many of them, and how large, for which reason; and what else a listing tells of what it leaves out.
    """

    count: int = 0
    keys: tuple[str, ...] = ()
    reasons: Mapping[NoticeKind, Amount] = field(default_factory=dict, compare=False)

    def plus(self, other: PassedOver) -> PassedOver:
        """Return both."""
        keys = (self.keys + other.keys)[:EXAMPLES_MAX]
        return PassedOver(self.count + other.count, keys, summed([self.reasons, other.reasons]))

    def with_reasons(self, more: Mapping[NoticeKind, Amount]) -> PassedOver:
        """Return the same with more that is told of the data."""
        return replace(self, reasons=summed([self.reasons, more]))
