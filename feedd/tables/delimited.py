"""Reads columns of CSV and similar text, and finds bad rows.

A column has numbers if all its values are numbers. The same holds for booleans, dates and times. Otherwise it is text.
If a column's type is specified (``tables.columns.Typed``), values of other types are bad (``DelimitedText``). An
empty value is missing in a typed column, and empty text in a text column.
"""

from __future__ import annotations

import csv
import itertools
import re
from codecs import BOM_UTF8
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from feedd.errors import BadShard
from feedd.formats.missing_reasons import HAS, Why, marks_of
from feedd.formats.table import NOTES_MAX
from feedd.tables.arrow_columns import ColumnReader, column_encoding
from feedd.tables.columns import DELIMITER, TYPES, Typed, refusing, typed_by
from feedd.tables.ranges import TYPES_BYTES, everything, first_of_text, missing_parts
from feedd.tables.reader import Column, OpenTable, TableReader
from feedd.tables.writer import check_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.protocols import PartialObject, ShardWriter
    from feedd.tables.writer import Piece
    from feedd.values import ByteRange


_HEAD_BYTES_MAX: Final = 1 << 20
_BYTES_MAX: Final = (1 << 31) - (1 << 20)
_ROWS_BYTES_MAX: Final = 64 << 10
_ROWS_LOOKED_AT: Final = 16
_COMMA: Final = ","
_OTHERS: Final = (";", "\t", "|")
_QUOTE, _LF = b'"\n'
_VALUE_SHOWN: Final = 80
_NULL: Final = "null"


class DelimitedReader(TableReader):
    """``TableReader`` of CSV and similar text.

    Its parameters name columns and their types (see ``tables.columns.typed_params``), or are ``TYPES``.

    Args:
        name: name of the conversion.
        delimiter: what separates values.
    """

    what = "rows of values"

    def __init__(self, name: str, delimiter: str) -> None:
        self.name, self._delimiter = name, delimiter

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object; for ``TYPES`` and for a head, return its start if that suffices."""
        missing = missing_parts(held, first_of_text(held.size_bytes, params))
        if missing or not everything(held):
            return missing
        return () if tells_types(held.data[:TYPES_BYTES], self._delimiter) else everything(held)

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table, or for ``TYPES`` the types of all columns as JSON."""
        if params != TYPES:
            return super().make(held, url, params, out)
        with refusing(self.what, url):
            write_types(_available(held, url), url, out, self._delimiter)
        return TYPES

    @contextmanager
    def open(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> Iterator[OpenTable]:
        """Open a text, or the whole rows at its start."""
        yield _Text(_available(held, url), url, typed_by(params), self._delimiter, out.limit_bytes)


def _available(held: PartialObject, url: str) -> memoryview:
    """Return the whole text, or the whole rows at its start if no more is held.

    Raises:
        BadShard: it is too long for pyarrow.
    """
    data = held.data if not everything(held) else whole_rows(held.data[:TYPES_BYTES])
    if len(data) > _BYTES_MAX:
        message = f"expected at most {_BYTES_MAX} bytes of text, got {len(data)}"
        raise BadShard(message, object=url, hint="store smaller shards", stage="decode")
    return data


class _Text(OpenTable):
    """The columns of a text.

    Args:
        data: the text.
        url: named in errors.
        typed: the wanted columns and their types.
        delimiter: the conversion's delimiter.
        limit_bytes: maximum size of the table.
    """

    def __init__(self, data: memoryview, url: str, typed: Typed, delimiter: str, limit_bytes: int) -> None:
        self.url, self._typed, self._limit_bytes = url, typed, limit_bytes
        self.columns: dict[str, str] = {}
        self.others: dict[str, str] = {}
        told = bool(typed.types or typed.rest)  # from the dataset's first shard, so this shard is not examined
        delimiter = typed.delimiter or (delimiter if told else delimiter_of(data, delimiter))
        first = _first_row(data, delimiter)
        self._text: DelimitedText | None = None
        self._rows: Rows | None = None
        if first is None:
            return
        check_columns(len(first), url)
        named = _is_header(first, typed)
        if not named and typed.types and not _numbered(typed.types):
            got = ", ".join(first)[:_VALUE_SHOWN]
            message = f"the dataset's first shard has a row of column names, but this shard begins with {got}"
            raise BadShard(message, object=url, stage="decode")
        self.columns = _cells(first, named=named)
        self._text = DelimitedText(data, first if named else list(self.columns), delimiter, named=named)

    def chosen(self, params: str) -> list[str]:
        """Return the wanted columns; none of a text without rows."""
        return [] if self._text is None else super().chosen(params)

    def row_count(self, names: Sequence[str]) -> int:
        """Read the wanted columns of all rows; if none is wanted, read any, because rows are counted."""
        if self._text is None:
            return 0
        if names:
            self._rows = self._text.read([self.columns[name] for name in names], self._typed, self.url)
        else:
            name, cell = next(iter(self.columns.items()))
            self._rows = self._text.read([cell], Typed(types={name.lower(): "binary"}), self.url)
        self.notes = self._rows.lengths
        return int(self._rows.table.num_rows)

    def column(self, name: str) -> Column:
        """Return a column that was read."""
        assert self._rows is not None
        cell = self.columns[name]
        column = self._rows.table[cell]
        how = column_encoding(column.type)
        assert how is not None, "text is made of types that can be fields"
        pieces = _pieces(column, ColumnReader(name, how, self.url), self._limit_bytes)
        return Column(how, marked(pieces, self._rows.marks_of(cell), how.width), self._rows.notes.get(cell, ()))


def delimiter_of(data: memoryview, own: str) -> str:
    """Return the delimiter. It differs from the conversion's own only if that splits the first rows into no columns.

    The delimiter is then one that splits all first rows into the same number of columns. Spreadsheets write semicolons
    and tabs.

    Args:
        data: the object, or its start.
        own: the conversion's delimiter; only a comma is checked.
    """
    if own != _COMMA:
        return own
    lengths = _lengths(data, own)
    if not lengths or len(set(lengths)) == 1 < lengths[0]:
        return own
    found = (other for other in _OTHERS if len(set(cut := _lengths(data, other))) == 1 < cut[0])
    return next(found, own)


def _lengths(data: memoryview, delimiter: str) -> list[int]:
    """Return the number of values in each of the first rows."""
    text = data[:_ROWS_BYTES_MAX]
    rows = list(itertools.islice(_rows(text, delimiter), _ROWS_LOOKED_AT + 1))
    if len(text) < len(data) and 1 < len(rows) <= _ROWS_LOOKED_AT:
        rows.pop()  # may be cut short
    return [len(row) for row in rows[:_ROWS_LOOKED_AT]]


def _first_row(data: memoryview, delimiter: str) -> list[str] | None:
    """Return the values of the first line that is not empty, or None if there is none."""
    return next(_rows(data[:_HEAD_BYTES_MAX], delimiter), None)


def _rows(data: memoryview, delimiter: str) -> Iterator[list[str]]:
    """Yield the values of lines that are not empty."""
    text = bytes(data).removeprefix(BOM_UTF8)
    lines = text.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    rows = csv.reader((line + "\n" for line in lines), delimiter=delimiter)
    return (row for row in rows if row)


def _cells(first: list[str], *, named: bool) -> dict[str, str]:
    """Return each column's name, with pyarrow's name for it."""
    return {cell.strip(): cell for cell in first} if named else {str(at): str(at) for at in range(len(first))}


def _is_header(first: list[str], typed: Typed) -> bool:
    """Whether a first row has column names.

    It has names if no cell is a number or empty, and all cells differ. It has none if columns are requested by number,
    or were numbered in the dataset's first shard. Only the first may be empty: pandas writes its index without a name.
    """
    lower = [cell.strip().lower() for cell in first]
    wanted = {name for names in typed.columns for name in names}
    if wanted and wanted.isdisjoint(lower) and _numbered(wanted):
        return False
    if typed.types and _numbered(typed.types):
        return False
    return len(set(lower)) == len(lower) > 0 and not any(map(_is_number, lower)) and all(lower[1:] or lower)


def _numbered(names: Iterable[str]) -> bool:
    return all(name.isdecimal() for name in names)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".", 1))  # a decimal comma, as many countries write it
    except ValueError:
        return False
    return True


def tells_types(data: memoryview, delimiter: str) -> bool:
    """Whether the start of an object determines its column types: it has whole rows with values."""
    try:
        found = _types(data[: _rows_end(data)], delimiter_of(data, delimiter), "")
        return not {_NULL}.issuperset((found or {}).values())
    except Exception:  # noqa: BLE001 - reading the whole object raises lasting errors again
        return False


def write_types(data: memoryview, url: str, out: ShardWriter, delimiter: str) -> None:
    """Write the types of all columns of a text as JSON by their names in lower case.

    If the delimiter is not the conversion's own, it is added as ``DELIMITER``.

    Raises:
        BadShard: the object has no rows of values.
    """
    sign = delimiter_of(data, delimiter)
    found = _types(data, sign, url) or {}
    if found and sign != delimiter:
        found[DELIMITER] = sign
    out.write(msgspec.json.encode(found))


def _types(data: memoryview, delimiter: str, url: str) -> dict[str, str] | None:
    """Return the type of each column (``null`` without values), or None if the object is empty."""
    first = _first_row(data, delimiter) if len(data) else None
    if first is None:
        return None
    check_columns(len(first), url)
    named = _is_header(first, Typed())
    cells = _cells(first, named=named)
    text = DelimitedText(data, first if named else list(cells), delimiter, named=named)
    table = text.read([*cells.values()], Typed(), "").table
    return {name.lower(): str(table[cell].type) for name, cell in cells.items()}


def whole_rows(data: memoryview) -> memoryview:
    """Return the whole rows of an object's start."""
    return data[: _rows_end(data)]


def _rows_end(data: memoryview) -> int:
    """Return the end of the last whole row: a line end with an even number of quotes before it."""
    raw = np.frombuffer(data, np.uint8)
    odd = np.bitwise_xor.accumulate(raw == _QUOTE)
    ends = np.flatnonzero((raw == _LF) & ~odd)
    return int(ends[-1]) + 1 if len(ends) else 0


def _pieces(column: pa.ChunkedArray, reader: ColumnReader, memory_bytes: int) -> Iterator[Piece]:
    for array in column.chunks:
        yield from reader.pieces(array, memory_bytes)


_SMALL_BYTES: Final = 1 << 20
_VALUES_AT_ONCE: Final = 1 << 14
_TRIES_MAX: Final = 20_000
_TYPES: Final = {
    str(one): one
    for one in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.time32("s"), pa.null()),
        *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    )
}
"""Types that text columns can have, by Arrow's names."""
_WRONG: Final = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to [^:]*: (.*)", re.DOTALL)
_NO_ROW: Final = "CSV parse error"
_BYTES: Final = "latin-1"  # maps every byte to a character
_SPECIAL: Final = re.compile(rb'[",\r\n]')


@dataclass(frozen=True, slots=True)
class Rows:
    """The result of reading.

    Attributes:
        table: the wanted columns of all rows; values of bad rows are null.
        marks: uint8[rows] of each column that has bad rows, see ``formats.missing_reasons``.
        lost: marks of rows that are bad in every column; None: there are none.
        notes: for each column with bad rows, the first bad rows and their values.
        lengths: the first rows with another number of values, and these numbers.
    """

    table: pa.Table
    marks: Mapping[str, NDArray[np.uint8]]
    lost: NDArray[np.uint8] | None
    notes: Mapping[str, list[tuple[int, str]]]
    lengths: list[tuple[int, str]]

    def marks_of(self, name: str) -> NDArray[np.uint8] | None:
        """Return a column's marks, or None if it has no bad rows."""
        return self.marks.get(name, self.lost)


class DelimitedText:
    """Reads rows of delimited text.

    Args:
        data: the text.
        names: pyarrow's names of all columns.
        delimiter: the delimiter.
        named: whether the first row has the names.
    """

    def __init__(self, data: memoryview, names: list[str], delimiter: str, *, named: bool) -> None:
        self._data, self._names, self._delimiter, self._named = data, names, delimiter, named
        self._skips = False  # skip rows of other lengths
        self._lengths: list[tuple[int, str]] = []
        self._as_bytes = False  # read bytes, because pyarrow reports rows of other lengths only in valid text

    def read(self, columns: list[str], typed: Typed, url: str) -> Rows:
        """Return some columns of all rows.

        Raises:
            BadShard: most rows are bad.
        """
        types = {name: _TYPES[kind] for name in columns if (kind := typed.type_of(name.strip())) in _TYPES}
        error: BadShard | None = None
        loose: dict[str, pa.DataType] = {}
        while True:
            try:
                table, bad = self._read(columns, {**types, **dict.fromkeys(loose, pa.binary())}, url)
                break
            except pa.ArrowInvalid as found:
                if _NO_ROW in str(found) and not self._skips:
                    self._skips, self._as_bytes = True, not _is_text(self._data)
                    if self._as_bytes and types.keys() != {*columns}:
                        raise
                    if self._as_bytes:
                        loose = types
                        error = BadShard(f"expected rows of UTF-8 text, got: {found}", object=url, stage="decode")
                    continue
                name, wrong = self._wrong_column(found, types, url)
                if name in loose or pa.types.is_null(types[name]):
                    raise wrong from found
                error = error or wrong
                # If a second column is wrong, check every column, because each attempt reads the whole text.
                loose = {one: kind for one, kind in types.items() if loose or one == name}
        cells: dict[str, _Cells] = {}
        for name, kind in loose.items():
            cells[name] = _converted(table[name], _Tries(kind, error, as_bytes=self._as_bytes))
            table = table.set_column(table.column_names.index(name), name, cells[name].values)
        return replace(_placed(table, bad, cells, error), lengths=self._lengths)

    def _wrong_column(self, found: pa.ArrowInvalid, types: Mapping[str, pa.DataType], url: str) -> tuple[str, BadShard]:
        """Return the column with a value of another type, and the error for it."""
        wrong = _WRONG.search(str(found))
        name = self._names[int(wrong[1])] if wrong is not None and int(wrong[1]) < len(self._names) else ""
        if wrong is None or name not in types:
            raise found
        row = f" in row {wrong[2]}" if wrong[2] else ""
        return name, BadShard(
            f"expected {types[name]} in column {name.strip()!r}, as the recipe or the dataset's first shard says, "
            f"got {wrong[3][:_VALUE_SHOWN]}{row}",
            object=url,
            hint='specify the column\'s type in fields: "int", "float" or "str"',
            stage="decode",
        )

    def _read(
        self, columns: list[str], types: Mapping[str, pa.DataType], url: str
    ) -> tuple[pa.Table, NDArray[np.int64]]:
        """Return the rows with as many values as the first row, and the places of the other rows."""
        data = self._data
        others: list[int] = []
        lengths: list[tuple[int, str]] = []

        def of_other_length(row: arrow_csv.InvalidRow) -> str:
            place = row.number - (2 if self._named else 1)
            if len(lengths) < NOTES_MAX:
                lengths.append((place, f"{row.actual_columns} for {row.expected_columns}"))
            others.append(place)
            return "skip"

        read = arrow_csv.ReadOptions(
            use_threads=False,  # with threads rows have no numbers
            block_size=2 * len(data) + 2,  # one block, so that types come from all values
            column_names=None if self._named and not self._as_bytes else self._names,
            encoding=_BYTES if self._as_bytes else "utf8",
        )
        parse = arrow_csv.ParseOptions(
            delimiter=self._delimiter,
            newlines_in_values=True,
            invalid_row_handler=of_other_length if self._skips else None,
        )
        convert = arrow_csv.ConvertOptions(include_columns=columns, strings_can_be_null=False, column_types=types)
        ends = len(data) > _SMALL_BYTES or b"\n" in bytes(data)
        text = data if ends else bytes(data) + b"\n"  # a line of names alone is a table only with a line end
        table = arrow_csv.read_csv(pa.BufferReader(pa.py_buffer(text)), read, parse, convert)
        if are_most(len(others), table.num_rows + len(others)):
            place, got = lengths[0]
            message = (
                f"most rows have more or fewer values than the first: {got} in sample {place}, {len(others) - 1} more"
            )
            raise BadShard(message, object=url, stage="decode")
        self._lengths = lengths
        if self._named and self._as_bytes:
            table = table.slice(1)
        return table, np.array(others, np.int64)


@dataclass(frozen=True, slots=True)
class _Cells:
    """A column's values.

    Attributes:
        wrong: bool[rows], whether a value is invalid; invalid values are null.
        notes: row and text of the first invalid values.
    """

    values: pa.Array
    wrong: NDArray[np.bool_]
    notes: list[tuple[int, str]]


def _placed(table: pa.Table, bad: NDArray[np.int64], cells: Mapping[str, _Cells], error: BadShard | None) -> Rows:
    """Return all rows in their places.

    Raises:
        BadShard: ``error``, if most rows are bad.
    """
    wrong = np.logical_or.reduce([np.zeros(table.num_rows, np.bool_), *(one.wrong for one in cells.values())])
    if error is not None and are_most(int(wrong.sum()), table.num_rows):
        raise error
    if not len(bad):
        marks = {name: marks_of(Why.CELL, one.wrong) for name, one in cells.items()}
        return Rows(table, marks, None, {name: one.notes for name, one in cells.items()}, [])
    rows = table.num_rows + len(bad)
    of_good, is_lost = row_positions(bad, rows)
    lost = marks_of(Why.ROW, is_lost)
    own = {
        name: with_reason(Why.CELL, one.wrong[of_good] & ~is_lost, lost)
        for name, one in cells.items()
        if table.num_rows
    }
    place = np.flatnonzero(~is_lost)
    notes = {name: [(int(place[row]), text) for row, text in one.notes] for name, one in cells.items()}
    table = table.take(pa.array(of_good, mask=is_lost))
    return Rows(table, {name: one for name, one in own.items() if one is not None}, lost, notes, [])


def _converted(column: pa.ChunkedArray, tries: _Tries) -> _Cells:
    """Convert a column's values to their type; each distinct value is converted once.

    Raises:
        BadShard: too many values are invalid.
    """
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    different = encoded.dictionary
    parts = [
        tries.read(different.slice(at, _VALUES_AT_ONCE).to_pylist(), at)
        for at in range(0, len(different), _VALUES_AT_ONCE)
    ]
    values = pa.concat_arrays([one for part in parts for one in part] or [pa.nulls(0, tries.kind)])
    wrong = np.zeros(len(different), np.bool_)
    wrong[tries.wrong] = True
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    cells = wrong[codes] if len(different) else np.zeros(len(codes), np.bool_)
    first = np.flatnonzero(cells)[:NOTES_MAX]
    notes = [(int(row), "invalid value " + repr(tries.text(different[int(codes[row])].as_py()))) for row in first]
    return _Cells(values.take(encoded.indices), cells, notes)


class _Tries:
    """Reads values and finds invalid ones by bisection.

    Args:
        kind: the type of the values.
        error: raised if too many values are invalid.
        as_bytes: values were read as Latin-1, one character per byte.
    """

    def __init__(self, kind: pa.DataType, error: BadShard | None, *, as_bytes: bool) -> None:
        self.kind, self._error, self._as_bytes = kind, error, as_bytes
        self._left = _TRIES_MAX
        self.wrong: list[int] = []

    def text(self, value: bytes) -> str:
        """Return a value as readable text."""
        return self._own(value).decode("utf-8", "backslashreplace")

    def _own(self, value: bytes) -> bytes:
        return value.decode().encode(_BYTES) if self._as_bytes else value

    def read(self, values: list[bytes], at: int) -> list[pa.Array]:
        """Return values, the first of which has the number ``at``; invalid values are null."""
        self._left -= 1
        if self._left < 0 and self._error is not None:
            raise self._error
        try:
            return [self._read(values)]
        except pa.ArrowInvalid:
            if len(values) > 1:
                half = len(values) // 2
                return [*self.read(values[:half], at), *self.read(values[half:], at + half)]
        self.wrong.append(at)
        return [pa.nulls(1, self.kind)]

    def _read(self, values: list[bytes]) -> pa.Array:
        lines = b"".join(b"x,%b\n" % _quoted(self._own(value)) for value in values)
        read = arrow_csv.ReadOptions(use_threads=False, block_size=len(lines) + 2, column_names=["x", "value"])
        convert = arrow_csv.ConvertOptions(
            include_columns=["value"], strings_can_be_null=False, column_types={"value": self.kind}
        )
        found = arrow_csv.read_csv(
            pa.BufferReader(lines), read, arrow_csv.ParseOptions(newlines_in_values=True), convert
        )
        return found["value"].combine_chunks()


def _is_text(data: memoryview) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _quoted(value: bytes) -> bytes:
    return b'"%b"' % value.replace(b'"', b'""') if _SPECIAL.search(value) else value


_BAD_ALWAYS: Final = 16


def are_most(bad: int, rows: int) -> bool:
    """Whether so many rows are bad that the object is not damaged but has another format than the recipe expects."""
    return bad > max(_BAD_ALWAYS, rows // 2)


def marked(pieces: Iterable[Piece], marks: NDArray[np.uint8] | None, width: int | None) -> Iterator[Piece]:
    """Yield the pieces of a column with the reasons of bad rows.

    Args:
        pieces: pieces of all rows.
        marks: uint8[rows], see ``formats.missing_reasons``: rows that are not ``HAS`` are bad. None: no row is bad.
        width: bytes of a value; None: each piece has sizes.
    """
    at = 0
    for piece in pieces:
        if marks is None:
            yield piece
            continue
        count = len(piece.sizes) if piece.sizes is not None else piece.values.nbytes // (width or 1)
        own = marks[at : at + count]
        at += count
        if not (own == HAS).all():
            there = np.uint8(HAS) if piece.valid is None else (piece.valid == HAS).astype(np.uint8)
            piece = replace(piece, valid=np.where(own == HAS, there, own).astype(np.uint8))  # noqa: PLW2901 - as marked
        yield piece


def row_positions(bad: NDArray[np.int64], rows: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the index of the good row for each place, int64[rows], and which places are bad, bool[rows].

    Args:
        bad: places of bad rows, in order.
        rows: number of rows, good and bad.
    """
    lost = np.zeros(rows, np.bool_)
    lost[bad] = True
    return np.cumsum(~lost) - 1, lost


def with_reason(why: Why, bad: NDArray[np.bool_], marks: NDArray[np.uint8] | None) -> NDArray[np.uint8] | None:
    """Return marks with one more reason for bad rows; a row that is already bad keeps its reason."""
    if not bad.any():
        return marks
    known = np.full(len(bad), HAS, np.uint8) if marks is None else marks
    return np.where(bad & (known == HAS), HAS + int(why), known).astype(np.uint8)


CSV_CONVERTER: Final = DelimitedReader("csv", ",")
TSV_CONVERTER: Final = DelimitedReader("tsv", "\t")
SEMICOLON_CONVERTER: Final = DelimitedReader("csv-semicolon", ";")
PIPE_CONVERTER: Final = DelimitedReader("csv-pipe", "|")
