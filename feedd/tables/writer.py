"""Writes tables (see ``formats.table``) column by column, from pieces that arrive one at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import msgspec
import numpy as np

from feedd.errors import BadShard
from feedd.formats.framing import index_limits, unread_of
from feedd.formats.missing_reasons import ALL, HAS
from feedd.formats.table import (
    ALIGN_BYTES,
    COLUMNS_MAX,
    MAGIC,
    NOTE_CHARS_MAX,
    NOTES_MAX,
    NOWHERE,
    TableColumn,
    TableFoot,
    TableKeys,
    regular_index,
)
from feedd.shard_index import CELL_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from feedd.protocols import PlacedWriter, ShardWriter
    from feedd.shard_index import RegularIndex


ROWS_MAX: Final = 1 << 26
"""Maximum number of rows that an index supports, see ``framing.ShardErrors.check_cells``."""


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """The encoding of a table's column.

    Attributes:
        encoding: see ``recipe.encodings``.
        width: bytes of a value; None: it varies.
        dtype: dtype of numbers; empty: the values are text or bytes.
    """

    encoding: str
    width: int | None
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of one column.

    Attributes:
        values: bytes of the values, back to back, in C order and little-endian.
        sizes: int64[rows], bytes of each value; None if the column has a fixed width.
        valid: bool[rows], whether rows have the column; None: all have it. Or uint8[rows], why rows lack it: see
            ``formats.missing_reasons``.
    """

    values: NDArray[np.generic]
    sizes: NDArray[np.int64] | None = None
    valid: NDArray[np.bool_] | NDArray[np.uint8] | None = None


def check_columns(count: int, url: str) -> None:
    """Refuse a table of too many columns; reading each takes memory, however few rows it has.

    Raises:
        BadShard: there are more than ``COLUMNS_MAX``.
    """
    if count > COLUMNS_MAX:
        raise BadShard(
            f"expected at most {COLUMNS_MAX} columns, got {count} or more",
            object=url,
            hint="store wide rows as one list per row, such as a column of lists in Parquet",
            stage="decode",
        )


class TableWriter:
    """Writes one table.

    Args:
        out: the output.
        rows: number of rows of every column; None: as many as the first column has.
        url: named in errors.
    """

    def __init__(self, out: ShardWriter, rows: int | None, url: str) -> None:
        self._out, self._rows, self._url = out, rows, url
        self._check_count(rows or 0)
        self._columns: list[TableColumn] = []
        self._keys: TableKeys | None = None
        self._notes: list[tuple[int, int, str]] = []
        self._unread: tuple[tuple[str, str], ...] = ()
        out.write(MAGIC)

    def add(self, name: str, how: ColumnEncoding, pieces: Iterable[Piece]) -> None:
        """Write a column with its encoding; see ``fixed`` and ``variable``."""
        check_columns(len(self._columns) + 1, self._url)
        if how.width is None:
            self.variable(name, how.encoding, pieces)
        else:
            self.fixed(name, how.encoding, how.width, pieces)

    def fixed(self, name: str, stored: str, width: int, pieces: Iterable[Piece]) -> None:
        """Write a column whose values all take ``width`` bytes, at least 1.

        Raises:
            BadShard: the number of rows differs from the table's, or there is no space.
        """
        at, rows, marks = self._align(), 0, _Marks()
        for piece in pieces:
            count, rest = divmod(piece.values.nbytes, width)
            if rest:
                raise self._uneven(name, f"values of {width} bytes", f"{rest} bytes too many")
            self._out.write(bytes_of(piece.values))
            marks.add(piece.valid, rows, count)
            rows += count
            self._check_count(rows)
        self._check_rows(name, rows)
        self._columns.append(TableColumn(name, stored, at, width, valid_at=self._marks(marks)))

    def empty(self, name: str, stored: str) -> None:
        """Write a column whose values have no bytes."""
        self._columns.append(TableColumn(name, stored, self._align(), 0))

    def variable(self, name: str, stored: str, pieces: Iterable[Piece]) -> None:
        """Write a column whose pieces have the size of each value.

        Raises:
            BadShard: see ``fixed``.
        """
        at, rows, marks = self._align(), 0, _Marks()
        columns = 1 + sum(not column.is_regular for column in self._columns)
        every: list[NDArray[np.int64]] = []
        for piece in pieces:
            assert piece.sizes is not None, "a piece of a column of variable width says the sizes"
            self._check_count(rows + len(piece.sizes), CELL_BYTES * columns)
            self._out.write(bytes_of(piece.values))
            every.append(piece.sizes)
            marks.add(piece.valid, rows, len(piece.sizes))
            rows += len(piece.sizes)
        written = self._out.at - at
        self._check_rows(name, rows)
        ends = np.cumsum(np.concatenate([np.zeros(0, np.int64), *every]), dtype="<i8")
        if (int(ends[-1]) if rows else 0) != written:
            raise self._uneven(name, f"{written} bytes of values", f"sizes of {int(ends[-1]) if rows else 0}")
        ends_at = self._align()
        self._out.write(bytes_of(ends))
        self._columns.append(TableColumn(name, stored, at, ends_at=ends_at, valid_at=self._marks(marks)))

    def keys(self, blob: bytes, ends: NDArray[np.int64]) -> None:
        """Write the rows' keys if they are not the rows' numbers; see ``ShardIndex``.

        Raises:
            BadShard: the number of keys differs from the table's number of rows.
        """
        self._check_rows("__key__", len(ends))
        at = self._align()
        self._out.write(blob)
        ends_at = self._align()
        self._out.write(bytes_of(np.asarray(ends, "<i8")))
        self._keys = TableKeys(at, ends_at)

    def note(self, notes: Iterable[tuple[int, str]], *, whole: bool = False) -> None:
        """Keep notes about bad values of the last column, or about whole rows; only the first notes are kept."""
        column = ALL if whole else len(self._columns) - 1
        for row, text in itertools.islice(notes, NOTES_MAX - len(self._notes)):
            self._notes.append((column, row, text[:NOTE_CHARS_MAX]))

    def leave_out(self, columns: Mapping[str, str]) -> None:
        """Keep names and types of the object's columns that cannot be fields."""
        self._unread = unread_of(columns)

    def finish(self) -> str:
        """Write the foot and return the name of the format."""
        self._align()
        told = self._rows or 0, tuple(self._columns), self._keys, tuple(self._notes), self._unread
        self._out.write(encoded_foot(TableFoot(*told)))
        return "table"

    def _marks(self, marks: _Marks) -> int:
        if not marks.holes:
            return NOWHERE
        at = self._align()
        valid = np.ones(self._rows or 0, np.uint8)
        for start, one in marks.holes:
            valid[start : start + len(one)] = one
        self._out.write(bytes_of(valid))
        return at

    def _align(self) -> int:
        self._out.write(bytes(aligned(self._out.at) - self._out.at))
        return self._out.at

    def _check_count(self, rows: int, row_bytes: int = 0) -> None:
        """Refuse rows that no index may have, before they are written; ``row_bytes``: memory of a row in the index."""
        index_limits().check(row_bytes * rows, rows, self._url)
        if not 0 <= rows <= ROWS_MAX:
            raise BadShard(f"expected at most {ROWS_MAX} rows, got {rows}", object=self._url, stage="decode")

    def _check_rows(self, name: str, rows: int) -> None:
        if self._rows is None:
            self._rows = rows
        if rows != self._rows:
            raise self._uneven(name, f"{self._rows} rows", str(rows))

    def _uneven(self, name: str, expected: str, got: str) -> BadShard:
        return BadShard(f"expected {expected} of column {name!r}, got {got}", object=self._url, stage="decode")


class _Marks:
    """Which rows have a column; pieces whose rows all have it are not recorded."""

    def __init__(self) -> None:
        self.holes: list[tuple[int, NDArray[np.bool_] | NDArray[np.uint8]]] = []

    def add(self, valid: NDArray[np.bool_] | NDArray[np.uint8] | None, at: int, count: int) -> None:
        """Record the marks of a piece."""
        if valid is not None and not (valid == HAS).all():
            assert len(valid) == count, f"{len(valid)} marks for {count} rows"
            self.holes.append((at, valid))


@dataclass(frozen=True, slots=True)
class WholeTable:
    """The layout of a table without missing values.

    Attributes:
        foot: what the table tells about itself.
        end: the end of the last column, aligned.
    """

    foot: TableFoot
    end: int

    @classmethod
    def of(cls, rows: int, columns: Iterable[tuple[str, ColumnEncoding]], unread: Mapping[str, str]) -> Self | None:
        """Return the layout; None: the width of a column varies.

        Args:
            rows: number of rows.
            columns: names and encodings, in the order in which they are written.
            unread: see ``TableWriter.leave_out``.
        """
        at = aligned(len(MAGIC))
        placed: list[TableColumn] = []
        for name, how in columns:
            if how.width is None:
                return None
            placed.append(TableColumn(name, how.encoding, at, how.width))
            at = aligned(at + rows * how.width)
        return cls(TableFoot(rows, tuple(placed), unread=unread_of(unread)), at)

    @property
    def row_bytes(self) -> int:
        """Bytes of the values of a row."""
        return sum(column.width for column in self.foot.columns)

    @property
    def size_bytes(self) -> int:
        """Size of the table."""
        return self.end + len(encoded_foot(self.foot))

    def index(self, url: str) -> RegularIndex | None:
        """Return the index of the table; None: the table has columns whose values have no bytes."""
        return regular_index(self.foot, url)

    def write_rows(
        self, out: PlacedWriter, column: TableColumn, rows: range, pieces: Iterable[Piece], url: str
    ) -> bool:
        """Write some rows of a column to their places; return False if a value is missing.

        Args:
            out: the table.
            column: one of the table's.
            rows: numbers of the rows.
            pieces: the values of these rows.
            url: named in errors.

        Raises:
            BadShard: there are other numbers of rows than expected.
        """
        at = column.at + rows.start * column.width
        wanted_bytes, written_bytes = len(rows) * column.width, 0
        out.move_to(at)
        for piece in pieces:
            if piece.valid is not None and not (piece.valid == HAS).all():
                return False
            written_bytes += piece.values.nbytes
            if written_bytes > wanted_bytes:
                break
            out.write(bytes_of(piece.values))
        if written_bytes != wanted_bytes:
            message = (
                f"expected {wanted_bytes} bytes of {len(rows)} rows of column {column.name!r}, got {written_bytes}"
            )
            raise BadShard(message, object=url, stage="decode")
        return True

    def write_ends(self, out: PlacedWriter) -> None:
        """Write what lies between the columns, and the foot."""
        at = 0
        out.move_to(at)
        out.write(MAGIC)
        at = len(MAGIC)
        for column in self.foot.columns:
            out.move_to(at)
            out.write(bytes(column.at - at))
            at = column.at + self.foot.rows * column.width
        out.move_to(at)
        out.write(bytes(self.end - at))
        out.write(encoded_foot(self.foot))


def aligned(at: int) -> int:
    """Return the offset at which a buffer begins that follows others up to ``at``."""
    return at + -at % ALIGN_BYTES


def bytes_of(values: NDArray[np.generic]) -> memoryview:
    """Return the bytes of an array, in C order."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def encoded_foot(told: TableFoot) -> bytes:
    """Return the end of a table."""
    foot = msgspec.json.encode(told)
    return foot + len(foot).to_bytes(4, "little") + MAGIC
