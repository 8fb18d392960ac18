"""Objects of a listing that hold no data: how many, which, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from feedd.notices import EXAMPLES_MAX, Amount, NoticeKind, summed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.values import ObjectRef


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Ignored objects of a listing.

    Attributes:
        count: number of ignored objects.
        keys: keys of the first ones.
        reasons: count and size by reason, with other notices of the listing about left-out data.
    """

    count: int = 0
    keys: tuple[str, ...] = ()
    reasons: Mapping[NoticeKind, Amount] = field(default_factory=dict, compare=False)

    def plus(self, other: PassedOver) -> PassedOver:
        """Return the sum of both."""
        keys = (self.keys + other.keys)[:EXAMPLES_MAX]
        return PassedOver(self.count + other.count, keys, summed([self.reasons, other.reasons]))

    def with_reasons(self, more: Mapping[NoticeKind, Amount]) -> PassedOver:
        """Return a copy with more notices about the data."""
        return replace(self, reasons=summed([self.reasons, more]))


def amount_of(refs: Sequence[ObjectRef]) -> Amount:
    """Return count, size and first names of some objects."""
    return Amount(len(refs), sum(ref.size_bytes for ref in refs), tuple(ref.key for ref in refs[:EXAMPLES_MAX]))
