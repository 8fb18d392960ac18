"""Columns of CSV as pieces of a table.

Values are numbers where all of a column are, true or false likewise, dates and times, else text; where a column's type
is said (see ``columns.Typed``) all are of that. A value that is not there is a hole in a column of those, and empty
text in one of text.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from feedd.decode.forms.arrow_pieces import ColumnReader
from feedd.decode.forms.arrow_types import kept
from feedd.decode.forms.columns import Typed, chosen, refusing, typed_by
from feedd.decode.forms.table_writer import TableWriter
from feedd.errors import BadShard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from feedd.decode.forms.table_writer import Piece
    from feedd.protocols import Out

_HEAD_BYTES_MAX: Final = 1 << 20
_BYTES_MAX: Final = (1 << 31) - (1 << 20)
_BOM: Final = b"\xef\xbb\xbf"
_QUOTE, _LF = b'"\n'
_VALUE_SHOWN: Final = 80
_NULL: Final = "null"
_TYPES: Final = {
    str(one): one
    for one in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.time32("s"), pa.null()),
        *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    )
}
"""What text can be of, by Arrow's name for it."""
_WRONG: Final = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to [^:]*: (.*)", re.DOTALL)


def write(data: memoryview, url: str, params: str, out: Out, delimiter: str) -> str:
    """Write the wanted columns as a table; return the name of its format."""
    if len(data) > _BYTES_MAX:
        message = f"expected at most {_BYTES_MAX} bytes of text, got {len(data)}"
        raise BadShard(message, object=url, hint="store smaller shards", stage="decode")
    with refusing("rows of values", url):
        first = _first_row(data, delimiter)
        if first is None:
            return TableWriter(out, 0, url).finish()
        typed = typed_by(params)
        named = _is_header(first, typed)
        if not named and typed.types and not _numbered(typed.types):
            got = ", ".join(first)[:_VALUE_SHOWN]
            message = f"expected a first row of names, as the dataset's first shard has, got {got}"
            raise BadShard(message, object=url, stage="decode")
        cells = _cells(first, named=named)
        columns = chosen(params, cells, (), url)
        text = _Text(data, first if named else list(cells), delimiter, named=named)
        table = text.read([cells[name] for name in columns], typed, url)
        writer = TableWriter(out, table.num_rows, url)
        for name in columns:
            column = table[cells[name]]
            how = kept(column.type)
            assert how is not None, "text is made of types that can be fields"
            reader = ColumnReader(name, how, url)
            writer.add(name, how, _pieces(column, reader, out.limit_bytes))
        return writer.finish()


def _first_row(data: memoryview, delimiter: str) -> list[str] | None:
    """Return the values of the first line that is not empty; None: there is none."""
    head = bytes(data[:_HEAD_BYTES_MAX]).removeprefix(_BOM)
    lines = head.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    rows = csv.reader((line + "\n" for line in lines), delimiter=delimiter)
    return next((row for row in rows if row), None)


def _cells(first: list[str], *, named: bool) -> dict[str, str]:
    """Return each column's name, and how pyarrow calls it."""
    return {cell.strip(): cell for cell in first} if named else {str(at): str(at) for at in range(len(first))}


def _is_header(first: list[str], typed: Typed) -> bool:
    """Whether a first row holds names.

    It does where none of it is a number or empty, and all differ; not so where columns are asked for by number, or were
    numbered in the dataset's first shard. Only the first may be empty: pandas writes its index without a name.
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
        float(text)
    except ValueError:
        return False
    return True


class _Text:
    """Rows of values.

    Args:
        data: as they lie there.
        names: of all columns, as pyarrow calls them.
        delimiter: between values.
        named: whether the first row has the names.
    """

    def __init__(self, data: memoryview, names: list[str], delimiter: str, *, named: bool) -> None:
        self._data, self._names, self._delimiter, self._named = data, names, delimiter, named

    def read(self, columns: list[str], typed: Typed, url: str) -> pa.Table:
        """Return a table of some columns.

        Raises:
            BadShard: a value that is not of its column's type.
        """
        types = {name: _TYPES[kind] for name in columns if (kind := typed.type_of(name.strip())) in _TYPES}
        try:
            return self._read(columns, types)
        except pa.ArrowInvalid as error:
            wrong = _WRONG.search(str(error))
            name = self._names[int(wrong[1])] if wrong is not None and int(wrong[1]) < len(self._names) else ""
            if wrong is None or name not in types:
                raise
            row = f" in row {wrong[2]}" if wrong[2] else ""
            raise BadShard(
                f"expected {types[name]} in column {name.strip()!r}, as the recipe or the dataset's first shard says, "
                f"got {wrong[3][:_VALUE_SHOWN]}{row}",
                object=url,
                hint='say in fields what the column is in every shard: "int", "float" or "str"',
                stage="decode",
            ) from error

    def _read(self, columns: list[str], types: dict[str, pa.DataType]) -> pa.Table:
        data = self._data
        read = arrow_csv.ReadOptions(
            use_threads=False,
            block_size=len(data) + 2,  # one block: types are told by all values, not by the first megabyte's
            column_names=None if self._named else self._names,
        )
        parse = arrow_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        convert = arrow_csv.ConvertOptions(include_columns=columns, strings_can_be_null=False, column_types=types)
        ends = len(data) > _HEAD_BYTES_MAX or b"\n" in bytes(data)
        text = data if ends else bytes(data) + b"\n"  # names alone are taken for a table only where their line ends
        return arrow_csv.read_csv(pa.BufferReader(pa.py_buffer(text)), read, parse, convert)


def tells_types(data: memoryview, delimiter: str) -> bool:
    """Whether the start of an object tells the types of its columns: rows end in it, and have values."""
    try:
        return not {_NULL}.issuperset((_types(data[: _rows_end(data)], delimiter) or {}).values())
    except Exception:  # noqa: BLE001 - whatever it is, the whole object meets it again, or does not
        return False


def write_types(data: memoryview, url: str, out: Out, delimiter: str, *, whole: bool) -> None:
    """Write the types of all columns of an object, or of its start, as JSON by their names in lower case.

    Raises:
        BadShard: no rows of values.
    """
    if len(data) > _BYTES_MAX:
        message = f"expected at most {_BYTES_MAX} bytes of text, got {len(data)}"
        raise BadShard(message, object=url, hint="store smaller shards", stage="decode")
    with refusing("rows of values", url):
        found = _types(data if whole else data[: _rows_end(data)], delimiter)
    out.write(msgspec.json.encode(found or {}))


def _types(data: memoryview, delimiter: str) -> dict[str, str] | None:
    """Return the type of each column, ``null`` where it has no values; None: there is nothing."""
    first = _first_row(data, delimiter) if len(data) else None
    if first is None:
        return None
    named = _is_header(first, Typed())
    cells = _cells(first, named=named)
    table = _Text(data, first if named else list(cells), delimiter, named=named).read([*cells.values()], Typed(), "")
    return {name.lower(): str(table[cell].type) for name, cell in cells.items()}


def _rows_end(data: memoryview) -> int:
    """Return where the last whole row ends: at an end of a line with an even number of quotes before it."""
    raw = np.frombuffer(data, np.uint8)
    odd = np.bitwise_xor.accumulate(raw == _QUOTE)
    ends = np.flatnonzero((raw == _LF) & ~odd)
    return int(ends[-1]) + 1 if len(ends) else 0


def _pieces(column: pa.ChunkedArray, reader: ColumnReader, room_bytes: int) -> Iterator[Piece]:
    for array in column.chunks:
        yield from reader.pieces(array, room_bytes)
