"""Why a sample lacks what it should have: what an index says in the place of where that starts. Pure.

A sample whose record is damaged has its place in its shard all the same. Its fields have no size (-1), and start below
zero: that is the reason, and where the record begins.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.values import ShardIndex

HAS: Final = 1
"""What a map of a table's column says of a row that has it; 0: it lacks it; a reason and 1: it lacks it for that."""

ALL: Final = -1
"""The number of a note's field where it is about the whole sample."""

_REASON_BITS: Final = 3
_REASONS_MASK: Final = (1 << _REASON_BITS) - 1


class Why(enum.IntEnum):
    """Reasons. Their numbers are in tables that caches keep."""

    CHECKSUM = 1
    RECORD = 2
    ROW = 3
    CELL = 4
    LINE = 5


_TEXTS: Final = {
    Why.CHECKSUM: "expected the record's bytes to have its checksum, got bytes with another: they were damaged",
    Why.RECORD: "expected a record like the shard's first, got one that is broken or has features of other types",
    Why.ROW: "expected a row of as many values as its file's first has, got {got}",
    Why.CELL: "expected {stored} in column {name!r}, as the recipe or the dataset's first shard says, "
    'got {got}; if that is as it should be, say "float" or "str" in fields',
    Why.LINE: "expected a line of 'label index:value ...', got {got}",
}


class Absent(NamedTuple):
    """What is known of a field that a sample lacks.

    Attributes:
        reason: for people.
        at: where the record begins in the shard; -1: not told.
    """

    reason: str
    at: int


def place_of(why: Why, at: int | NDArray[np.int64] = 0) -> int | NDArray[np.int64]:
    """Return where a field "starts" that is not there; ``at`` is where the record does, 0: that is not told."""
    return -((at << _REASON_BITS) | int(why))


def marks_of(why: Why, bad: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the map of a column, of which some rows are bad and the others there; see ``HAS``."""
    return np.where(bad, HAS + int(why), HAS).astype(np.uint8)


def mark_of(start: int) -> int:
    """Return what a table's map says of a field that "starts" there and has no size."""
    return HAS + (-start & _REASONS_MASK) if start < 0 else 0


def places_of(marks: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return where fields "start" that lack for the reason that a map says; all of it are such."""
    return -(marks.astype(np.int64) - HAS)


def why_absent(index: ShardIndex, columns: Sequence[int], ordinal: int) -> Absent | None:
    """Return why a sample lacks a field; None: nobody knows more than that it does.

    Args:
        index: of its shard.
        columns: that may hold the field; none: the shard knows no such field.
        ordinal: of the sample.
    """
    for column in columns or range(len(index.fields)):
        start = int(index.starts[column, ordinal])
        if index.sizes[column, ordinal] >= 0 or start >= 0 or (number := -start & _REASONS_MASK) not in _TEXTS:
            continue
        why = Why(number)
        if columns or why is not Why.CELL:  # a bad value says nothing of other columns
            stored, place = index.stored_as(column) or "text", -start >> _REASON_BITS
            got = next((text for of, at, text in index.notes if of in {column, ALL} and at == ordinal), "another")
            return Absent(_TEXTS[why].format(stored=stored, name=index.fields[column], got=got), place or -1)
    return None
