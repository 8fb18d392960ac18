"""Tables: columns of samples, which feedd writes itself for data that cannot be read at random (see ``convert``).

    magic[8]                          ``feeddtbl``
    buffers                           each at a multiple of 64
    foot                              JSON: number of rows, and the offsets of each column's buffers
    u32 size of the foot, magic[8]

The foot is at the end, so that columns can be written as they are converted. A column of fixed width is rows x width
bytes. Any other column is its values back to back, and int64 ends[rows] counted from its start. If some rows lack the
column, a map has one byte per row: a mark that the row has it, or the reason why not (see
``formats.missing_reasons``). All numbers are little-endian.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.formats.format_spec import FormatSpec
from feedd.formats.framing import CELLS_MAX, KEY_BYTES, ShardReader, field_names, unread_of
from feedd.formats.missing_reasons import HAS
from feedd.recipe.encodings import parse_encoding
from feedd.shard_index import NumberedIndex, RegularIndex, ShardIndex

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

MAGIC: Final = b"feeddtbl"
ALIGN_BYTES: Final = 64
NOWHERE: Final = -1
"""Offset of a buffer that a column does not have."""

NOTES_MAX: Final = 16
NOTE_CHARS_MAX: Final = 80

_END_BYTES: Final = 4 + len(MAGIC)
_FOOT_BYTES_MAX: Final = 16 << 20
COLUMNS_MAX: Final = 65536


class TableColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column.

    Attributes:
        encoding: encoding of its values, see ``recipe.encodings``.
        at: offset of the values.
        width: bytes of each value; -1: varies.
        ends_at: offset of the int64 ends; -1 if the width is fixed.
        valid_at: offset of the map of rows that have the column; -1: all rows have it.
    """

    name: str
    encoding: str = msgspec.field(name="stored")
    at: int
    width: int = NOWHERE
    ends_at: int = NOWHERE
    valid_at: int = NOWHERE

    @property
    def is_regular(self) -> bool:
        """Whether all rows have a value, at least a byte wide and all equally wide."""
        return self.width > 0 and self.valid_at == NOWHERE


class TableKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of the rows.

    Attributes:
        at: offset of the keys, UTF-8, back to back.
        ends_at: offset of the int64 ends, counted from ``at``.
    """

    at: int
    ends_at: int


class TableFoot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The foot of a table; without ``keys``, the keys are the rows' numbers.

    Attributes:
        notes: see ``ShardIndex``.
        unread: see ``ShardIndex``.
    """

    rows: int
    columns: tuple[TableColumn, ...]
    keys: TableKeys | None = None
    notes: tuple[tuple[int, int, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()


class TableFormat:
    """``protocols.ShardFormat`` of tables; stateless."""

    @property
    def name(self) -> str:
        """Name of the format: ``table``."""
        return "table"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the rows' columns; if the table has no keys, keys are the rows' numbers.

        Args:
            data: the whole shard, borrowed for the call.
            url: URL of the shard, for errors.

        Raises:
            BadShard: not a table, or its buffers reach beyond it.
        """
        return _Reader(data, url).read()

    def regular_index(self, data: memoryview, url: str) -> RegularIndex | None:
        """Return the index of a table whose values all lie at regular distances, from its foot; None: another table.

        Args:
            data: see ``index``.
            url: see ``index``.

        Raises:
            BadShard: see ``index``.
        """
        return _Reader(data, url).regular()


class _Reader(ShardReader):
    """Reads the columns of one shard, all rows at a time."""

    def regular(self) -> RegularIndex | None:
        """Read the foot; return the index if that tells everything."""
        foot, _ = self._foot()
        index = self.read() if _is_regular(foot) else None
        return index if isinstance(index, RegularIndex) else None

    def read(self) -> ShardIndex:
        """Read the foot and the buffers that it names; return the index."""
        foot, end = self._foot()
        columns, rows = foot.columns, foot.rows
        if rows < 0 or len(columns) > COLUMNS_MAX:
            self.fail(end, f"rows, and at most {COLUMNS_MAX} columns", f"{rows} of {len(columns)}")
        key_bytes = 0 if foot.keys is None else KEY_BYTES
        self.check_cells(len(columns), rows, column_count=_column_count(foot), key_bytes=key_bytes)
        names = field_names([column.name for column in columns], self._url)
        stored = tuple(column.encoding for column in columns)
        notes = tuple((column, row, text[:NOTE_CHARS_MAX]) for column, row, text in foot.notes[:NOTES_MAX])
        unread = unread_of(dict(foot.unread))
        if _is_regular(foot):
            for column in columns:
                self._check_encoding(column, end)
                self._check(column.name, column.at, rows * column.width, end)
            return _regular(foot, names, notes)
        starts = np.zeros((len(columns), rows), np.int64)
        sizes = np.zeros((len(columns), rows), np.int64)
        why: dict[int, NDArray[np.uint8]] = {}
        for number, column in enumerate(columns):
            marks = self._column(column, rows, end, starts[number], sizes[number])
            if marks is not None and bool((marks > HAS).any()):
                why[number] = marks
        reasons = _reasons(why, starts) if why else None
        if foot.keys is None:
            return NumberedIndex(names, starts, sizes, rows, stored, notes, unread, reasons)
        keys = self._keys(foot.keys, rows, end)
        return ShardIndex(names, starts, sizes, *keys, stored, notes, unread, reasons)

    def _foot(self) -> tuple[TableFoot, int]:
        """Return the foot and its start."""
        data, total = self._data, len(self._data)
        if total < len(MAGIC) + _END_BYTES or {bytes(data[: len(MAGIC)]), bytes(data[total - len(MAGIC) :])} != {MAGIC}:
            self.fail(0, "a table", f"{total} bytes that begin with {bytes(data[: len(MAGIC)])!r}")
        size = int.from_bytes(data[total - _END_BYTES : total - len(MAGIC)], "little")
        at = total - _END_BYTES - size
        if size > _FOOT_BYTES_MAX or at < len(MAGIC):
            self.fail(total - _END_BYTES, f"a foot of at most {_FOOT_BYTES_MAX} bytes", f"{size} of {total}")
        try:
            return msgspec.json.decode(bytes(data[at : at + size]), type=TableFoot), at
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.fail(at, "a foot that names columns", str(error))

    def _keys(self, keys: TableKeys, rows: int, end: int) -> tuple[bytes, NDArray[np.int64]]:
        """Return ``key_blob`` and ``key_ends`` of the index."""
        ends, size = self._ends("__key__", keys.ends_at, keys.at, rows, end)
        return bytes(self._data[keys.at : keys.at + size]), ends.astype(np.int64)

    def _column(
        self, column: TableColumn, rows: int, end: int, starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.uint8] | None:
        """Fill in starts and sizes of one column; return its marks, or None if it has none."""
        self._check_encoding(column, end)
        if column.width >= 0:
            self._check(column.name, column.at, rows * column.width, end)
            starts[:] = column.at + np.arange(rows, dtype=np.int64) * column.width
            sizes[:] = column.width
        else:
            ends, _ = self._ends(column.name, column.ends_at, column.at, rows, end)
            starts[1:] = ends[:-1]
            np.subtract(ends, starts, out=sizes)
            starts += column.at
        if column.valid_at == NOWHERE:
            return None
        self._check(column.name, column.valid_at, rows, end)
        marks = np.frombuffer(self._data, np.uint8, rows, column.valid_at)
        sizes[marks != HAS] = -1
        return marks

    def _check_encoding(self, column: TableColumn, end: int) -> None:
        try:
            parse_encoding(column.encoding)
        except ValueError as error:
            self.fail(end, f"a known encoding for column {column.name!r}", str(error))

    def _ends(self, name: str, ends_at: int, at: int, rows: int, end: int) -> tuple[NDArray[np.int64], int]:
        """Return the ends of the values at ``at``, int64[rows], borrowed, and the total size of the values."""
        self._check(name, ends_at, rows * 8, end)
        ends = np.frombuffer(self._data, "<i8", rows, ends_at)
        if rows and (int(ends[0]) < 0 or bool((ends[1:] < ends[:-1]).any())):  # a difference might overflow
            self.fail(ends_at, f"ascending ends of column {name!r}", "ends that do not ascend")
        size = int(ends[-1]) if rows else 0
        self._check(name, at, size, end)
        return ends, size

    def _check(self, name: str, at: int, size: int, end: int) -> None:
        if at < 0 or at + size > end:
            self.fail(max(at, 0), f"{size} bytes of column {name!r} before byte {end}", f"an offset of {at}")


def _is_regular(foot: TableFoot) -> bool:
    """Whether the foot alone tells where all values lie."""
    return foot.keys is None and not _column_count(foot)


def _column_count(foot: TableFoot) -> int:
    """Return how many columns of the index take memory."""
    return sum(not column.is_regular for column in foot.columns)


def _regular(foot: TableFoot, names: tuple[str, ...], notes: tuple[tuple[int, int, str], ...]) -> RegularIndex:
    strides = tuple((column.at, column.width, column.width) for column in foot.columns)
    stored = tuple(column.encoding for column in foot.columns)
    return RegularIndex(names, strides, foot.rows, stored, notes, unread_of(dict(foot.unread)))


def regular_index(foot: TableFoot, url: str) -> RegularIndex | None:
    """Return the index of a table that will have this foot; None: the foot alone does not tell it, or it is too large.

    Args:
        foot: the foot, without notes.
        url: URL of the shard, for errors.

    Raises:
        BadShard: two columns have the same name.
    """
    names = field_names([column.name for column in foot.columns], url)
    is_small = len(names) * foot.rows <= CELLS_MAX
    return _regular(foot, names, ()) if _is_regular(foot) and is_small else None


def _reasons(marks: Mapping[int, NDArray[np.uint8]], starts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the reasons of an index by the marks of its columns. A table does not tell where its rows came from."""
    reasons = np.zeros(starts.shape, np.uint8)
    for number, column in marks.items():
        why = column > HAS
        reasons[number, why] = column[why] - HAS
        starts[number, why] = 0
    return reasons


FORMATS: Final = (FormatSpec(TableFormat()),)
