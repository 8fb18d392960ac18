"""Common parts of shard readers: errors, growing indexes, names of fields and numbers of samples."""

from __future__ import annotations

import contextlib
import itertools
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, NoReturn, TypeVar

import numpy as np

from feedd.errors import BadShard
from feedd.shard_index import CELL_BYTES, NO_LIMITS, ORDER_BYTES, SAMPLES_MAX, IndexLimits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

UNREAD_MAX: Final = 4096
"""Limit for the columns that an index lists as unreadable."""

_UNREAD_CHARS_MAX: Final = 200
CELLS_MAX: Final = SAMPLES_MAX
_FIELDS_MAX: Final = 4096
KEY_BYTES: Final = 16
"""A key's end, and a key of eight characters. Keys that are numbers take none."""


_Name = TypeVar("_Name", str, bytes)


_limits: ContextVar[IndexLimits] = ContextVar("limits of the index", default=NO_LIMITS)


@contextlib.contextmanager
def limited_index(limits: IndexLimits) -> Iterator[None]:
    """Have readers refuse an index that exceeds ``limits``, in the context."""
    token = _limits.set(limits)
    try:
        yield
    finally:
        _limits.reset(token)


def index_limits() -> IndexLimits:
    """Return the limits that hold here, see ``limited_index``."""
    return _limits.get()


def samples_max() -> int:
    """Return how many samples of one field an index may have."""
    limits = _limits.get()
    return min(limits.samples, limits.size_bytes // (CELL_BYTES + ORDER_BYTES))


class ShardErrors:
    """Raises the errors of one shard.

    Args:
        url: URL of the object, for errors.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def fail(self, at: int, expected: str, got: str) -> NoReturn:
        """Raise BadShard for byte ``at``."""
        raise BadShard(f"expected {expected} at byte {at}, got {got}", object=self._url, stage="decode")

    def check_cells(
        self, field_count: int, sample_count: int, *, column_count: int | None = None, key_bytes: int = 0
    ) -> None:
        """Refuse an index that would need too much memory, before it is allocated.

        Args:
            field_count: number of fields.
            sample_count: number of samples.
            column_count: number of fields that have no stride; None: all fields.
            key_bytes: memory of a key at least.

        Raises:
            BadShard: the index has too many (field, sample) cells, or needs too much memory.
        """
        if field_count * sample_count > CELLS_MAX:
            got = f"{field_count} fields x {sample_count} samples"
            self.fail(0, f"at most {CELLS_MAX} (field, sample) cells", got)
        row_bytes = CELL_BYTES * (field_count if column_count is None else column_count) + key_bytes
        size_bytes = row_bytes * sample_count
        _limits.get().check(size_bytes, sample_count, self._url)


class ShardReader(ShardErrors):
    """One pass over the bytes of one shard.

    Args:
        data: the whole object, borrowed.
        url: URL of the object, for errors.
    """

    def __init__(self, data: memoryview, url: str) -> None:
        super().__init__(url)
        self._data = data


@dataclass(slots=True)
class Cells:
    """A growing index with one entry per field of a sample; in lists, because readers append millions of entries."""

    column: list[int] = field(default_factory=list)
    sample: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)

    def tables(
        self, reader: ShardErrors, field_count: int, sample_count: int, *, key_bytes: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ``starts`` and ``sizes`` of an index, int64[fields, samples] each.

        Raises:
            BadShard: see ``ShardErrors.check_cells``.
        """
        reader.check_cells(field_count, sample_count, key_bytes=key_bytes)
        starts = np.zeros((field_count, sample_count), np.int64)
        sizes = np.full((field_count, sample_count), -1, np.int64)
        if self.sample:
            cell = (np.array(self.column, np.intp), np.array(self.sample, np.intp))
            starts[cell] = self.start
            sizes[cell] = self.size
        return starts, sizes


@dataclass(slots=True)
class NamedCells(Cells, Generic[_Name]):
    """Cells of fields that are found by name, sample by sample; each field has one encoding.

    Attributes:
        names: names of the columns with their numbers, in order.
        encodings: of each column, see ``recipe.encodings``.
    """

    names: dict[_Name, int] = field(default_factory=dict)
    encodings: list[str] = field(default_factory=list)

    def add(self, reader: ShardErrors, sample: int, name: _Name, stored: str, place: tuple[int, int]) -> None:
        """Add the start and end of a sample's field.

        Raises:
            BadShard: too many different fields, or the field had another encoding before.
        """
        column = self.names.get(name)
        if column is None:
            if len(self.names) == _FIELDS_MAX:
                reader.fail(place[0], f"at most {_FIELDS_MAX} different fields", "one more")
            column = self.names[name] = len(self.names)
            self.encodings.append(stored)
        elif self.encodings[column] != stored:
            reader.fail(place[0], f"field {name!r} as {self.encodings[column] or 'bytes'}", stored or "bytes")
        self.column.append(column)
        self.sample.append(sample)
        self.start.append(place[0])
        self.size.append(place[1] - place[0])

    def forget(self, entries: int, names: int) -> None:
        """Drop the entries and names beyond these numbers, because their sample is bad."""
        for one in (self.column, self.sample, self.start, self.size):
            del one[entries:]
        del self.encodings[names:]
        while len(self.names) > names:
            self.names.popitem()


def field_names(names: Sequence[str], url: str) -> tuple[str, ...]:
    """Return field names in lower case, as recipes look for them.

    Raises:
        BadShard: two names are equal, or differ only in case.
    """
    lower = tuple(name.lower() for name in names)
    if len(set(lower)) < len(lower):
        place = next(place for place, name in enumerate(lower) if name in lower[:place])
        one, other = names[lower.index(lower[place])], names[place]
        got = f"{one!r} twice" if one == other else f"{one!r} and {other!r}"
        raise BadShard(f"expected field names that differ in more than case, got {got}", object=url, stage="decode")
    return lower


def unread_of(columns: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return names and types of unreadable columns, bounded in number and length (see ``ShardIndex``)."""
    some = itertools.islice(columns.items(), UNREAD_MAX)
    return tuple((name[:_UNREAD_CHARS_MAX], kind[:_UNREAD_CHARS_MAX]) for name, kind in some)
