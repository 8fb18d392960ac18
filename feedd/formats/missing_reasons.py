"""Why fields are missing: numbers in an index and in tables, and texts for people. Pure.

A sample with a damaged record keeps its place in the shard. Its fields have size -1, and the index tells the reason and
the start of the record.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.shard_index import ShardIndex

HAS: Final = 1
"""Mark of a row that has a table's column. 0: the row lacks it; HAS + reason: the row lacks it for that reason."""

ALL: Final = -1
"""Field number of a note that concerns the whole sample."""


class Why(enum.IntEnum):
    """Reasons. Cached tables store their numbers, so do not change them."""

    CHECKSUM = 1
    RECORD = 2
    ROW = 3
    CELL = 4


_TEXTS: Final = {
    Why.CHECKSUM: "expected the record's bytes to match their checksum, got another checksum: the record is damaged",
    Why.RECORD: "expected a record like the shard's first, got a broken record or features of other types",
    Why.ROW: "expected a row of as many values as its file's first has, got {got}",
    Why.CELL: "expected {stored} in column {name!r}, as the recipe or the dataset's first shard says, "
    'got {got}; if the value is right, use "float" or "str" in fields',
}


class MissingField(NamedTuple):
    """What is known of a field that a sample lacks.

    Attributes:
        reason: text for people.
        at: start of the record in the shard; -1: unknown.
    """

    reason: str
    at: int


def marks_of(why: Why, bad: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return uint8[rows], the marks of a column: ``bad`` rows lack it for the reason, others have it (``HAS``)."""
    return np.where(bad, HAS + int(why), HAS).astype(np.uint8)


def table_marks(sizes: NDArray[np.int64], reasons: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Return uint8[rows], a table's marks for a column of an index with these sizes and reasons."""
    why = np.zeros(len(sizes), np.uint8) if reasons is None else reasons
    return np.where(sizes >= 0, HAS, np.where(why > 0, HAS + why, 0)).astype(np.uint8)


def missing_reason(index: ShardIndex, columns: Sequence[int], ordinal: int) -> MissingField | None:
    """Return why a sample lacks a field; None: no reason is recorded.

    Args:
        index: index of the sample's shard.
        columns: columns that may hold the field; empty: the shard has no such field.
        ordinal: number of the sample.
    """
    if index.reasons is None:
        return None
    for column in columns or range(len(index.fields)):
        number = int(index.reasons[column, ordinal])
        start, size = index.cell(column, ordinal)
        if size >= 0 or number not in _TEXTS:
            continue
        why = Why(number)
        if columns or why is not Why.CELL:  # a bad value in one column does not concern others
            stored, place = index.encoding_of(column) or "text", start
            got = next((text for of, at, text in index.notes if of in {column, ALL} and at == ordinal), "another")
            return MissingField(_TEXTS[why].format(stored=stored, name=index.fields[column], got=got), place or -1)
    return None
