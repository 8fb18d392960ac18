"""Columns of Arrow IPC as pieces of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds
from pyarrow import ipc

from feedd.decode.forms.arrow_pieces import ColumnReader
from feedd.decode.forms.arrow_types import kept
from feedd.decode.forms.columns import chosen, refusing
from feedd.decode.forms.table_writer import TableWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.decode.forms.table_writer import Piece
    from feedd.protocols import Out

Reader: TypeAlias = "ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader"

_WHAT: Final = "Arrow IPC, a file or a stream"
_FILE_MAGIC: Final = b"ARROW1"


def write(data: memoryview, url: str, params: str, out: Out) -> str:
    """Write the wanted columns as a table; return the name of its format."""
    with refusing(_WHAT, url):
        schema = _open(data, None).schema
        usable = {one.name: (number, kept(one.type)) for number, one in reversed(list(enumerate(schema)))}
        names = [one.name for one in schema if usable[one.name][1] is not None]
        others = [one.name for one in schema if usable[one.name][1] is None]
        writer = TableWriter(out, None, url)
        for name in chosen(params, dict.fromkeys(names), others, url):
            number, how = usable[name]
            assert how is not None, "only columns that can be fields are chosen"
            pieces = _pieces(data, number, ColumnReader(name, how, url), out.limit_bytes)
            writer.add(name, how, pieces)
        return writer.finish()


def _open(data: memoryview, column: int | None) -> Reader:
    """Return a reader of one column; of all where None."""
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


def _pieces(data: memoryview, column: int, reader: ColumnReader, room_bytes: int) -> Iterator[Piece]:
    """Yield one column, a batch at a time: compressed ones are unpacked for it alone."""
    for batch in _batches(_open(data, column)):
        array = _checked(batch.column(0))
        yield from reader.pieces(array, room_bytes)


def _checked(array: pa.Array) -> pa.Array:
    """Return an array whose offsets lie within its buffers; whether text is UTF-8 its samples tell."""
    if kinds.is_string(array.type) or kinds.is_large_string(array.type):
        binary = pa.binary() if kinds.is_string(array.type) else pa.large_binary()
        array = pa.Array.from_buffers(binary, len(array), array.buffers(), offset=array.offset)
    array.validate(full=True)
    return array
