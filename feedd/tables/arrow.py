"""Converts columns of Arrow IPC to pieces of a table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds
from pyarrow import ipc

from feedd.tables.arrow_blocks import is_file, row_count
from feedd.tables.arrow_columns import ColumnReader, column_encoding, unscaled
from feedd.tables.columns import chosen, refusing, unread
from feedd.tables.writer import TableWriter, write_outline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from feedd.protocols import ShardWriter
    from feedd.tables.writer import ColumnEncoding, Piece


Reader: TypeAlias = "ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader"

_WHAT: Final = "Arrow IPC, a file or a stream"
_FILE_MAGIC: Final = b"ARROW1"
_FILE_START: Final = 8  # the magic, padded to a multiple of 8


def write(data: memoryview, url: str, params: str, out: ShardWriter) -> str:
    """Write the wanted columns as a table; return the name of its format."""
    with refusing(_WHAT, url):
        columns, others = _columns(_open(data, None).schema, params, url)
        writer = TableWriter(out, None if columns else _count(data), url)
        writer.leave_out(others)
        for name, (number, how) in columns.items():
            pieces = _pieces(data, number, ColumnReader(name, how, url), out.limit_bytes)
            writer.add(name, how, pieces)
        return writer.finish()


def write_head(data: memoryview, url: str, params: str, out: ShardWriter) -> str:
    """Write the existing wanted columns, and whether there are rows, from an object's first bytes."""
    with refusing(_WHAT, url):
        reader = _open_start(data)
        columns, others = _columns(reader.schema, params, url)
        outline = ((name, how) for name, (_, how) in columns.items())
        return write_outline(outline, others, rows=_has_rows(reader), out=out, url=url)


def tells_columns(data: memoryview) -> bool:
    """Whether the first bytes of an object suffice for ``write_head``."""
    try:
        _open_start(data)
    except Exception:  # noqa: BLE001 - reading the whole object raises lasting errors again
        return False
    return True


def _open_start(data: memoryview) -> ipc.RecordBatchStreamReader:
    """Return a reader of an object's start: an Arrow file is a stream between its magic and its footer."""
    start = _FILE_START if bytes(data[: len(_FILE_MAGIC)]) == _FILE_MAGIC else 0
    return ipc.open_stream(pa.py_buffer(data[start:]), options=ipc.IpcReadOptions(use_threads=False))


def _has_rows(reader: ipc.RecordBatchStreamReader) -> bool:
    try:
        return any(batch.num_rows for batch in reader)
    except (pa.ArrowInvalid, OSError):
        return True  # the values are cut off, so there are some


def _columns(
    schema: pa.Schema, params: str, url: str
) -> tuple[dict[str, tuple[int, ColumnEncoding]], Mapping[str, str]]:
    """Return number and encoding of each wanted column, and names and types of columns that cannot be fields."""
    usable = {one.name: (number, column_encoding(one.type)) for number, one in reversed(list(enumerate(schema)))}
    names = [one.name for one in schema if usable[one.name][1] is not None]
    others = {one.name: str(one.type) for one in schema if usable[one.name][1] is None}
    twice = {name: "a second column of that name" for name, count in Counter(schema.names).items() if count > 1}
    found: dict[str, tuple[int, ColumnEncoding]] = {}
    for name in chosen(params, dict.fromkeys(names), others, url):
        number, how = usable[name]
        assert how is not None, "only columns that can be fields are chosen"
        found[name] = number, how
    points = {name: str(schema[number].type) for name, (number, _) in found.items() if unscaled(schema[number].type)}
    return found, {**unread(params, {**others, **twice}), **points}


def _count(data: memoryview) -> int:
    """Return the number of rows; of a file, only the ranges of ``arrow_blocks.wanted`` need be held."""
    if is_file(data):
        return row_count(data)
    return sum(batch.num_rows for batch in _batches(_open(data, 0)))


def _open(data: memoryview, column: int | None) -> Reader:
    """Return a reader of one column, or of all if ``column`` is None."""
    options = ipc.IpcReadOptions(use_threads=False, included_fields=None if column is None else [column])
    buffer = pa.py_buffer(data)
    if bytes(data[: len(_FILE_MAGIC)]) == _FILE_MAGIC:
        return ipc.open_file(buffer, options=options)
    return ipc.open_stream(buffer, options=options)


def _batches(reader: Reader) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, ipc.RecordBatchFileReader):
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
    else:
        yield from reader


def _pieces(data: memoryview, column: int, reader: ColumnReader, memory_bytes: int) -> Iterator[Piece]:
    """Yield one column, one batch at a time; only this column of a compressed batch is decompressed."""
    for batch in _batches(_open(data, column)):
        array = _checked(batch.column(0))
        yield from reader.pieces(array, memory_bytes)


def _checked(array: pa.Array) -> pa.Array:
    """Return an array after checking that its offsets lie within its buffers; UTF-8 is checked per sample."""
    if kinds.is_string(array.type) or kinds.is_large_string(array.type):
        binary = pa.binary() if kinds.is_string(array.type) else pa.large_binary()
        array = pa.Array.from_buffers(binary, len(array), array.buffers(), offset=array.offset)
    array.validate(full=True)
    return array
