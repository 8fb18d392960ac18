"""Columns of CSV as pieces of a table.

Values are numbers where all of a column are, true or false likewise, dates and times, else text. A value that is not
there is a hole in a column of those, and empty text in one of text.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import csv as arrow_csv

from feedd.decode.forms.arrow_pieces import ColumnReader
from feedd.decode.forms.arrow_types import kept
from feedd.decode.forms.columns import asked_by, chosen, refusing
from feedd.decode.forms.table_writer import TableWriter
from feedd.errors import BadShard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.decode.forms.columns import Asked
    from feedd.decode.forms.table_writer import Piece
    from feedd.protocols import Out

_HEAD_BYTES_MAX: Final = 1 << 20
_BYTES_MAX: Final = (1 << 31) - (1 << 20)
_BOM: Final = b"\xef\xbb\xbf"


def write(data: memoryview, url: str, params: str, out: Out, delimiter: str) -> str:
    """Write the wanted columns as a table; return the name of its format."""
    if len(data) > _BYTES_MAX:
        message = f"expected at most {_BYTES_MAX} bytes of text, got {len(data)}"
        raise BadShard(message, object=url, hint="store smaller shards", stage="decode")
    with refusing("rows of values", url):
        first = _first_row(data, delimiter)
        if first is None:
            return TableWriter(out, 0, url).finish()
        named = _is_header(first, asked_by(params))
        cells = {cell.strip(): cell for cell in first} if named else {str(at): str(at) for at in range(len(first))}
        columns = chosen(params, cells, (), url)
        table = _read(data, None if named else list(cells), [cells[name] for name in columns], delimiter)
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


def _is_header(first: list[str], asked: Asked) -> bool:
    """Whether a first row holds names.

    It does where none of it is a number or empty, and all differ; not so where columns are asked for by number. Only
    the first may be empty: pandas writes its index without a name.
    """
    lower = [cell.strip().lower() for cell in first]
    wanted = {name for names in asked for name in names}
    if wanted and wanted.isdisjoint(lower) and all(name.isdecimal() for name in wanted):
        return False
    return len(set(lower)) == len(lower) > 0 and not any(map(_is_number, lower)) and all(lower[1:] or lower)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read(data: memoryview, names: list[str] | None, columns: list[str], delimiter: str) -> pa.Table:
    """Return a table of some columns; without ``names`` the first row has them."""
    read = arrow_csv.ReadOptions(
        use_threads=False,
        block_size=len(data) + 2,  # one block: types are told by all values, not by the first megabyte's
        column_names=names,
    )
    parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    convert = arrow_csv.ConvertOptions(include_columns=columns, strings_can_be_null=False)
    ends = len(data) > _HEAD_BYTES_MAX or b"\n" in bytes(data)
    text = data if ends else bytes(data) + b"\n"  # names alone are taken for a table only where their line ends
    return arrow_csv.read_csv(pa.BufferReader(pa.py_buffer(text)), read, parse, convert)


def _pieces(column: pa.ChunkedArray, reader: ColumnReader, room_bytes: int) -> Iterator[Piece]:
    for array in column.chunks:
        yield from reader.pieces(array, room_bytes)
