"""The layout of a table in which each row has a value of each column, which is known before any value is.

Such a table can be written some rows at a time: each row group has its places in the columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np

from feedd.errors import BadShard
from feedd.formats.framing import unread_of
from feedd.formats.missing_reasons import HAS
from feedd.formats.table import ALIGN_BYTES, MAGIC, TableColumn, TableFoot, regular_index

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from feedd.convert.table_writer import ColumnEncoding, Piece
    from feedd.protocols import PlacedWriter
    from feedd.shard_index import RegularIndex, ShardIndex
    from feedd.values import ByteRange


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Successive row groups of an object, which can be converted without the others. They follow those before.

    Attributes:
        group_end: number of the first row group behind them.
        row_end: number of the first row behind them.
        ranges: ranges of the object that hold the wanted values.
    """

    group_end: int
    row_end: int
    ranges: tuple[ByteRange, ...]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table that can be written some row groups at a time.

    Attributes:
        size_bytes: size of the table.
        groups: all row groups, in order.
        index: index of the table; None: it is too large for a message.
    """

    size_bytes: int
    groups: tuple[RowGroups, ...]
    index: ShardIndex | None

    @property
    def ranges(self) -> tuple[ByteRange, ...]:
        """The ranges of all row groups."""
        return tuple(span for one in self.groups for span in one.ranges)


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
