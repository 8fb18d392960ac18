"""Computes the ranges of an object that a conversion needs, in few requests."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.protocols import PartialObject


_GAP_BYTES_MAX: Final = 1 << 20
"""A request costs about as much as this many bytes."""

_RANGES_MAX: Final = 2048
"""Their positions must fit into one message between daemon and worker."""

_SPARE_SHARE: Final = 32
"""Unwanted bytes may be fetched up to one in this many of the wanted bytes."""


def coalesced(wanted: Iterable[ByteRange]) -> tuple[ByteRange, ...]:
    """Return ascending ranges that cover all wanted ranges, in few requests.

    Adjacent ranges are joined. Ranges with gaps are joined too, the smallest gaps first, while all joined gaps together
    are at most a 32nd of the wanted bytes. If there are still too many ranges for one message, more gaps are joined.
    """
    joined = _touching(wanted)
    spare = sum(one.size_bytes for one in joined) // _SPARE_SHARE
    gaps = sorted((after.start - before.end, place) for place, (before, after) in enumerate(pairwise(joined)))
    bridged: set[int] = set()
    for gap, place in gaps:
        if gap > min(spare, _GAP_BYTES_MAX) and len(joined) - len(bridged) <= _RANGES_MAX:
            break
        spare -= gap
        bridged.add(place)
    return tuple(_touching(_with(joined, bridged)))


def lacking(held: PartialObject, span: ByteRange) -> tuple[ByteRange, ...]:
    """Return the parts of a range that are not held."""
    missing: list[ByteRange] = []
    at = span.start
    for here in held.spans:
        if here.end <= at:
            continue
        if here.start >= span.end:
            break
        if here.start > at:
            missing.append(ByteRange(at, here.start))
        at = here.end
    return (*missing, ByteRange(at, span.end)) if at < span.end else tuple(missing)


def everything(held: PartialObject) -> tuple[ByteRange, ...]:
    """Return the parts of the whole object that are not held."""
    return lacking(held, ByteRange(0, held.size_bytes))


class WholeObject:
    """The part of ``protocols.ShardConverter`` for conversions that need the whole object."""

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object."""
        del params
        return everything(held)


def _touching(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    found: list[ByteRange] = []
    for one in sorted(one for one in ranges if one.size_bytes):
        if found and one.start <= found[-1].end:
            found[-1] = ByteRange(found[-1].start, max(one.end, found[-1].end))
        else:
            found.append(one)
    return found


def _with(ranges: Sequence[ByteRange], bridged: set[int]) -> list[ByteRange]:
    gaps = [ByteRange(ranges[place].end, ranges[place + 1].start) for place in bridged]
    return [*ranges, *gaps]
