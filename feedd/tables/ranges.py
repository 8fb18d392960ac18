"""Computes the ranges of an object that a conversion needs, in few requests.

The functions ``first_of_...`` tell which ranges it needs before anything is there. The daemon calls them, so that it
loads no library of a format.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from feedd.tables.columns import ROWS_ONLY, TYPES, is_head
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

WORTH_BYTES: Final = 1 << 20
"""A request costs about as much as this many bytes."""

SCHEMA_BYTES: Final = 1 << 20
"""Bytes at the start of an Arrow object that list its columns, unless there are very many."""

TYPES_BYTES: Final = 8 << 20
"""Bytes at the start of a text that determine its column types, if it is longer and a row ends within them."""

DIRECTORY_BYTES: Final = 1 << 20
"""Bytes at the end of a .npz that list up to some thousand arrays."""

ARROW_START: Final = ByteRange(0, 8)
_ARROW_TAIL_BYTES: Final = 64 << 10
_FOOTER_BYTES: Final = (8 << 10, 64 << 10)
_FOOTER_SHARE: Final = 512  # part of a Parquet file that most footers take; small compared with a few columns


def first_of_any(size_bytes: int, params: str) -> tuple[ByteRange, ...]:
    """Return the whole object."""
    del params
    return _start(size_bytes, size_bytes)


def first_of_arrow(size_bytes: int, params: str) -> tuple[ByteRange, ...]:
    """Return both ends if only the rows are counted; the start if only columns are listed; else the whole object."""
    if params == ROWS_ONLY and size_bytes > WORTH_BYTES:
        return ARROW_START, ByteRange(max(size_bytes - _ARROW_TAIL_BYTES, 0), size_bytes)
    return _start(size_bytes, SCHEMA_BYTES if is_head(params) else size_bytes)


def first_of_npz(size_bytes: int, params: str) -> tuple[ByteRange, ...]:
    """Return the directory if only the rows are counted, else the whole object."""
    if params == ROWS_ONLY and size_bytes > DIRECTORY_BYTES:
        return (ByteRange(size_bytes - DIRECTORY_BYTES, size_bytes),)
    return _start(size_bytes, size_bytes)


def first_of_parquet(size_bytes: int, params: str) -> tuple[ByteRange, ...]:
    """Return the tail, which holds most footers."""
    del params
    least, most = _FOOTER_BYTES
    return (ByteRange(max(0, size_bytes - min(max(least, size_bytes // _FOOTER_SHARE), most)), size_bytes),)


def first_of_text(size_bytes: int, params: str) -> tuple[ByteRange, ...]:
    """Return the start if only columns and types are wanted, else the whole object."""
    return _start(size_bytes, TYPES_BYTES if params == TYPES or is_head(params) else size_bytes)


def _start(size_bytes: int, wanted_bytes: int) -> tuple[ByteRange, ...]:
    return (ByteRange(0, min(size_bytes, wanted_bytes)),) if size_bytes else ()


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


def missing_parts(held: PartialObject, wanted: Iterable[ByteRange]) -> tuple[ByteRange, ...]:
    """Return the parts of several ranges that are not held."""
    return tuple(part for one in wanted for part in lacking(held, one))


def everything(held: PartialObject) -> tuple[ByteRange, ...]:
    """Return the parts of the whole object that are not held."""
    return lacking(held, ByteRange(0, held.size_bytes))


class WholeObject:
    """The part of ``protocols.ShardConverter`` for conversions that need the whole object."""

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:  # noqa: ARG002 - the protocol's names
        """Return the whole object."""
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
