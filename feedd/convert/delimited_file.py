"""Converts columns of CSV to pieces of a table.

A column has numbers if all its values are numbers. The same holds for booleans, dates and times. Otherwise it is text.
If a column's type is specified (``convert.columnar.Typed``), values of other types are bad (``delimited_text``). An
empty value is missing in a typed column, and empty text in a text column.
"""

from __future__ import annotations

import csv
import itertools
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.convert.arrow_pieces import ColumnReader
from feedd.convert.arrow_types import column_encoding
from feedd.convert.bad_rows import marked
from feedd.convert.columnar import Typed, chosen, refusing, typed_by
from feedd.convert.delimited_text import DelimitedText
from feedd.convert.table_converters import DELIMITER
from feedd.convert.table_writer import TableWriter, check_columns
from feedd.errors import BadShard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from feedd.convert.delimited_text import Rows
    from feedd.convert.table_writer import Piece
    from feedd.protocols import ShardWriter

_HEAD_BYTES_MAX: Final = 1 << 20
_BYTES_MAX: Final = (1 << 31) - (1 << 20)
_ROWS_BYTES_MAX: Final = 64 << 10
_ROWS_LOOKED_AT: Final = 16
_COMMA: Final = ","
_OTHERS: Final = (";", "\t", "|")
_QUOTE, _LF = b'"\n'
_VALUE_SHOWN: Final = 80
_NULL: Final = "null"


def write(data: memoryview, url: str, params: str, out: ShardWriter, delimiter: str) -> str:
    """Write the wanted columns as a table; return the name of its format."""
    if len(data) > _BYTES_MAX:
        message = f"expected at most {_BYTES_MAX} bytes of text, got {len(data)}"
        raise BadShard(message, object=url, hint="store smaller shards", stage="decode")
    with refusing("rows of values", url):
        typed = typed_by(params)
        told = bool(typed.types or typed.rest)  # from the dataset's first shard, so this shard is not examined
        delimiter = typed.delimiter or (delimiter if told else delimiter_of(data, delimiter))
        first = _first_row(data, delimiter)
        if first is None:
            return TableWriter(out, 0, url).finish()
        check_columns(len(first), url)
        named = _is_header(first, typed)
        if not named and typed.types and not _numbered(typed.types):
            got = ", ".join(first)[:_VALUE_SHOWN]
            message = f"the dataset's first shard has a row of column names, but this shard begins with {got}"
            raise BadShard(message, object=url, stage="decode")
        cells = _cells(first, named=named)
        columns = chosen(params, cells, {}, url)
        text = DelimitedText(data, first if named else list(cells), delimiter, named=named)
        rows = _read(text, cells, columns, typed, url)
        writer = TableWriter(out, rows.table.num_rows, url)
        for name in columns:
            column = rows.table[cells[name]]
            how = column_encoding(column.type)
            assert how is not None, "text is made of types that can be fields"
            reader = ColumnReader(name, how, url)
            pieces = _pieces(column, reader, out.limit_bytes)
            writer.add(name, how, marked(pieces, rows.marks_of(cells[name]), how.width))
            writer.note(rows.notes.get(cells[name], ()))
        writer.note(rows.lengths, whole=True)
        return writer.finish()


def _read(text: DelimitedText, cells: dict[str, str], columns: list[str], typed: Typed, url: str) -> Rows:
    """Return the wanted columns of all rows; if none exists, return any column, because rows are counted."""
    if columns:
        return text.read([cells[name] for name in columns], typed, url)
    name, cell = next(iter(cells.items()))
    return text.read([cell], Typed(types={name.lower(): "binary"}), url)


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


def write_types(data: memoryview, url: str, out: ShardWriter, delimiter: str, *, whole: bool) -> None:
    """Write the types of all columns of an object, or of its start, as JSON by their names in lower case.

    If the delimiter is not the conversion's own, it is added as ``DELIMITER``.

    Raises:
        BadShard: the object has no rows of values.
    """
    if len(data) > _BYTES_MAX:
        message = f"expected at most {_BYTES_MAX} bytes of text, got {len(data)}"
        raise BadShard(message, object=url, hint="store smaller shards", stage="decode")
    with refusing("rows of values", url):
        sign = delimiter_of(data, delimiter)
        found = _types(data if whole else data[: _rows_end(data)], sign, url) or {}
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
