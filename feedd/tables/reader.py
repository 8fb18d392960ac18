"""How an object of columns becomes a table: a reader opens it, and its wanted columns are written one by one.

``tables.making.make_shard`` calls a reader in a worker. ``wanted`` names the ranges that must be there: the whole
object, unless the reader knows better. The daemon fetches those that are missing and asks again. Only then
``TableReader.make`` opens the object. The readers are in ``parquet``, ``arrow``, ``hdf5``, ``npz`` and ``delimited``.

Rules, each with the test that holds it:

- Only wanted columns are fetched: ``test_only_wanted_columns_are_fetched``.
- A column that is missing, or can be no field, is named: ``test_columns_that_cannot_be_had_are_named``.
- Rows keep their places, also without values: ``test_rows_without_a_wanted_column_keep_their_places``.
- A bad value makes its sample bad, and no other: ``test_bad_rows_change_no_others``.
- Damaged bytes are a table or a bad shard, and do no harm: ``test_no_bytes_do_harm``.
- A table above its limit is refused: ``test_more_than_there_is_room_for_is_refused``.
- The same object gives the same bytes, until the version of conversions rises:
  ``test_what_is_made_changes_with_the_version_only``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.tables.columns import chosen, refusing, strict_params, unread
from feedd.tables.ranges import WholeObject
from feedd.tables.writer import ColumnEncoding, Piece, TableWriter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from feedd.protocols import PartialObject, ShardWriter


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an open object.

    Attributes:
        how: its encoding.
        pieces: its rows, in order; read when they are iterated.
        notes: rows with bad values and texts about them, once the pieces were iterated.
    """

    how: ColumnEncoding
    pieces: Iterable[Piece]
    notes: Iterable[tuple[int, str]] = ()


class OpenTable(ABC):
    """The columns of an object while its reader has it open.

    Attributes:
        url: named in errors.
        columns: names of the columns that can be fields, in the object's order.
        others: types of the columns that cannot be fields, by name.
        counts_rows: whether rows can be counted without any column.
        notes: rows that are bad as a whole, and texts about them, after ``row_count``.
    """

    url: str
    columns: Collection[str]
    others: Mapping[str, str]
    counts_rows = True
    notes: Iterable[tuple[int, str]] = ()

    def chosen(self, params: str) -> list[str]:
        """Return the wanted columns; see ``columns.chosen``."""
        counted = self.counts_rows or self.columns
        return chosen(params if counted else strict_params(params), self.columns, self.others, self.url)

    def left_out(self, params: str, names: Sequence[str]) -> Mapping[str, str]:  # noqa: ARG002 - for readers that read some columns otherwise
        """Return the types of columns that the user is told about, by name, if ``names`` are the wanted ones."""
        return unread(params, self.others)

    @abstractmethod
    def row_count(self, names: Sequence[str]) -> int | None:
        """Return the number of rows of the wanted columns; None: as many as the first of them has.

        Raises:
            BadRecipe: the columns have different numbers of rows.
        """

    @abstractmethod
    def column(self, name: str) -> Column:
        """Return a wanted column, after ``row_count``."""


class Outline(OpenTable):
    """The list of an object's columns, with one row without values if the object has any row.

    Args:
        table: the object.
        has_rows: whether it has rows.
    """

    def __init__(self, table: OpenTable, *, has_rows: bool) -> None:
        self.url = table.url
        self._table, self._rows = table, int(has_rows)

    def chosen(self, params: str) -> list[str]:
        """Return the wanted columns."""
        return self._table.chosen(params)

    def left_out(self, params: str, names: Sequence[str]) -> Mapping[str, str]:
        """Return the types of columns that the user is told about."""
        return self._table.left_out(params, names)

    def row_count(self, names: Sequence[str]) -> int:
        """Return 0 or 1."""
        del names
        return self._rows

    def column(self, name: str) -> Column:
        """Return a column without values."""
        nothing = Piece(np.zeros(0, np.uint8), np.zeros(self._rows, np.int64), np.zeros(self._rows, np.bool_))
        return Column(ColumnEncoding(self._table.column(name).how.encoding, None), (nothing,))


class TableReader(WholeObject, ABC):
    """``protocols.ShardConverter`` from columns to a table; stateless.

    Its parameters name columns, see ``tables.columns.params_of``.

    Attributes:
        name: name of the conversion.
        what: what an object should be, for errors.
    """

    name: str
    what: str

    @abstractmethod
    def open(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> AbstractContextManager[OpenTable]:
        """Open an object, of which the wanted ranges are held.

        Args:
            held: the object.
            url: named in errors.
            params: parameters of the conversion.
            out: the output, which bounds the memory that columns may take.
        """

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table; see ``ShardConverter.make``."""
        with refusing(self.what, url), self.open(held, url, params, out) as table:
            return write_table(table, params, out)


def write_table(table: OpenTable, params: str, out: ShardWriter) -> str:
    """Write the wanted columns of an open object; return the name of the table's format."""
    names = table.chosen(params)
    writer = TableWriter(out, table.row_count(names), table.url)
    writer.leave_out(table.left_out(params, names))
    for name in names:
        column = table.column(name)
        writer.add(name, column.how, column.pieces)
        writer.note(column.notes)
    writer.note(table.notes, whole=True)
    return writer.finish()
