"""Reads columns of Arrow IPC, files and streams, and of LitData's chunks that contain such a file.

A file is ``ARROW1``, two zero bytes, a stream, a footer, u32 size of the footer, ``ARROW1``. The footer and the
metadata of each record batch are FlatBuffers: a table begins with the distance to its list of fields [apache/arrow,
format/File.fbs and Message.fbs].

Rows are counted by that metadata here. pyarrow tells the number of rows only of batches that it reads.
"""

from __future__ import annotations

import struct
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds
from pyarrow import ipc

from feedd.errors import BadShard
from feedd.formats.litdata import ARROW_END
from feedd.tables.arrow_columns import ColumnReader, column_encoding, unscaled
from feedd.tables.columns import ROWS_ONLY, is_head, refusing, unread
from feedd.tables.ranges import (
    ARROW_START,
    SCHEMA_BYTES,
    WORTH_BYTES,
    coalesced,
    everything,
    first_of_arrow,
    lacking,
    missing_parts,
)
from feedd.tables.reader import Column, OpenTable, Outline, TableReader
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from feedd.protocols import PartialObject, ShardWriter
    from feedd.tables.writer import ColumnEncoding, Piece

Reader: TypeAlias = "ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader"

MAGIC: Final = b"ARROW1"
_END_BYTES: Final = 4 + len(MAGIC)
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_BLOCKS, _HEADER_TYPE, _HEADER, _LENGTH = 3, 1, 2, 0  # numbers of fields
_RECORD_BATCH: Final = 3
_BLOCK: Final = struct.Struct("<qi4xq")
_LENGTH_BYTES: Final = 4  # size of the length of the Arrow file in a LitData chunk


class ArrowReader(TableReader):
    """``TableReader`` of Arrow IPC. An object's first bytes list its columns."""

    name = "arrow"
    what = "Arrow IPC, a file or a stream"

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object; if only its columns or rows are requested, return the part that tells these."""
        if params == ROWS_ONLY:
            return self._of_counts(held)
        if not is_head(params):
            return everything(held)
        if missing := missing_parts(held, first_of_arrow(held.size_bytes, params)):
            return missing
        return () if _tells_columns(held.data[:SCHEMA_BYTES]) else everything(held)

    def _of_counts(self, held: PartialObject) -> tuple[ByteRange, ...]:
        """Return the ranges that tell the number of rows: the ends of a file, its footer, the metadata of all batches.

        It is the whole object if that is no Arrow file, or if its batches are small.

        Raises:
            BadShard: the footer is broken.
        """
        size = held.size_bytes
        if size <= WORTH_BYTES:
            return everything(held)
        if missing := missing_parts(held, first_of_arrow(size, ROWS_ONLY)):
            return missing
        if not is_file(held.data):
            return everything(held)
        with refusing("an Arrow file", ""):
            footer = _footer(held.data)
            if missing := lacking(held, footer):
                return missing
            blocks = _blocks(held.data, footer)
        return everything(held) if len(blocks) * WORTH_BYTES > size else missing_parts(held, coalesced(blocks))

    @contextmanager
    def open(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> Iterator[OpenTable]:
        """Open an object, or its first bytes if only columns are listed."""
        if not is_head(params):
            yield _Columns(held.data, _open(held.data, None).schema, url, out)
            return
        whole = not everything(held)
        start = held.data if whole else held.data[:SCHEMA_BYTES]
        reader = _open_start(start)
        yield Outline(_Columns(start, reader.schema, url, out), has_rows=_has_rows(reader))


class LitDataArrowReader(TableReader):
    """``TableReader`` of LitData's chunks of plain values.

    A chunk has a head without items, then an Arrow file, then the file's length.
    """

    name = "litdata-arrow"
    what = ArrowReader.what

    @contextmanager
    def open(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> Iterator[OpenTable]:  # noqa: ARG002 - as every reader's
        """Open the Arrow file in a chunk."""
        data = held.data
        end = len(data) - len(ARROW_END) - _LENGTH_BYTES
        start = end - int.from_bytes(data[max(end, 0) :][:_LENGTH_BYTES], "little")
        if end < 0 or bytes(data[-len(ARROW_END) :]) != ARROW_END or start < 0:
            raise BadShard(
                f"expected a chunk with an Arrow file at its end, got {bytes(data[-12:])!r}",
                object=url,
                hint="name the folder without litdata-arrow+ if its items are not plain values",
                stage="decode",
            )
        inner = data[start:end]
        yield _Columns(inner, _open(inner, None).schema, url, out)


class _Columns(OpenTable):
    """The columns of an Arrow file or stream."""

    def __init__(self, data: memoryview, schema: pa.Schema, url: str, out: ShardWriter) -> None:
        self.url, self._data, self._schema, self._out = url, data, schema, out
        usable = {one.name: (number, column_encoding(one.type)) for number, one in reversed(list(enumerate(schema)))}
        self.columns: dict[str, tuple[int, ColumnEncoding | None]] = {
            one.name: usable[one.name] for one in schema if usable[one.name][1] is not None
        }
        self.others = {one.name: str(one.type) for one in schema if usable[one.name][1] is None}

    def left_out(self, params: str, names: Sequence[str]) -> Mapping[str, str]:
        """Return also further columns of one name, and wanted columns whose numbers are stored unscaled."""
        twice = {
            name: "a second column of that name" for name, count in Counter(self._schema.names).items() if count > 1
        }
        types = {name: self._schema[self.columns[name][0]].type for name in names}
        points = {name: str(type_) for name, type_ in types.items() if unscaled(type_)}
        return {**unread(params, {**self.others, **twice}), **points}

    def row_count(self, names: Sequence[str]) -> int | None:
        """Return None if columns are wanted; else count the rows, of a file by the ranges of ``_of_counts`` only."""
        if names:
            return None
        if is_file(self._data):
            return row_count(self._data)
        return sum(int(batch.num_rows) for batch in _batches(_open(self._data, 0)))

    def column(self, name: str) -> Column:
        """Return a column, which is read one batch at a time."""
        number, how = self.columns[name]
        assert how is not None, "only columns that can be fields are chosen"
        reader = ColumnReader(name, how, self.url)
        return Column(how, _pieces(self._data, number, reader, self._out.limit_bytes))


def _tells_columns(data: memoryview) -> bool:
    """Whether the first bytes of an object list its columns."""
    try:
        _open_start(data)
    except Exception:  # noqa: BLE001 - reading the whole object raises lasting errors again
        return False
    return True


def _open_start(data: memoryview) -> ipc.RecordBatchStreamReader:
    """Return a reader of an object's start: an Arrow file is a stream between its magic and its footer."""
    start = ARROW_START.end if bytes(data[: len(MAGIC)]) == MAGIC else 0
    return ipc.open_stream(pa.py_buffer(data[start:]), options=ipc.IpcReadOptions(use_threads=False))


def _has_rows(reader: ipc.RecordBatchStreamReader) -> bool:
    try:
        return any(batch.num_rows for batch in reader)
    except (pa.ArrowInvalid, OSError):
        return True  # the values are cut off, so there are some


def _open(data: memoryview, column: int | None) -> Reader:
    """Return a reader of one column, or of all if ``column`` is None."""
    options = ipc.IpcReadOptions(use_threads=False, included_fields=None if column is None else [column])
    buffer = pa.py_buffer(data)
    if bytes(data[: len(MAGIC)]) == MAGIC:
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


def is_file(data: memoryview) -> bool:
    """Whether an object is an Arrow file, by its first and last bytes."""
    count = len(MAGIC)
    return len(data) > ARROW_START.end + _END_BYTES and bytes(data[:count]) == bytes(data[-count:]) == MAGIC


def row_count(data: memoryview) -> int:
    """Return the number of rows of a file, of which the ranges of ``wanted`` are held."""
    return sum(_rows(data, block) for block in _blocks(data, _footer(data)))


def _footer(data: memoryview) -> ByteRange:
    end = len(data) - _END_BYTES
    (size,) = struct.unpack_from("<i", data, end)
    if not 0 < size <= end - ARROW_START.end:
        raise ValueError(f"a footer of {size} bytes")
    return ByteRange(end - size, end)


def _blocks(data: memoryview, footer: ByteRange) -> list[ByteRange]:
    """Return the ranges of the batches' metadata."""
    table = _Table.root(data[footer.start : footer.end])
    at = table.reference(_BLOCKS)
    if at < 0:
        return []
    (count,) = struct.unpack_from("<I", table.data, at)
    if count * _BLOCK.size > len(table.data):
        raise ValueError(f"{count} record batches in a footer of {len(table.data)} bytes")
    found = [_BLOCK.unpack_from(table.data, at + 4 + number * _BLOCK.size) for number in range(count)]
    if any(start < 0 or size <= 0 or start + size > footer.start for start, size, _ in found):
        raise ValueError("record batches that reach into the footer")
    return [ByteRange(start, start + size) for start, size, _ in found]


def _rows(data: memoryview, block: ByteRange) -> int:
    """Return the rows of a batch."""
    part = data[block.start : block.end]
    message = _Table.root(part[8 if bytes(part[:4]) == _CONTINUATION else 4 :])
    kind, header = message.field(_HEADER_TYPE), message.reference(_HEADER)
    if kind < 0 or message.data[kind] != _RECORD_BATCH or header < 0:
        raise ValueError("a block that is no record batch")
    length = _Table(message.data, header).field(_LENGTH)
    (rows,) = struct.unpack_from("<q", message.data, length) if length >= 0 else (0,)
    if rows < 0:
        raise ValueError(f"a record batch of {rows} rows")
    found: int = rows
    return found


class _Table:
    """A table of a FlatBuffer.

    Args:
        data: the FlatBuffer.
        at: start of the table.
    """

    def __init__(self, data: memoryview, at: int) -> None:
        self.data = data
        self._at = at
        (back,) = struct.unpack_from("<i", data, at)
        self._fields = at - back
        if self._fields < 0:
            raise ValueError("a list of fields outside of its table")
        (self._fields_bytes,) = struct.unpack_from("<H", data, self._fields)

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        """Return the table that a FlatBuffer consists of."""
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def field(self, number: int) -> int:
        """Return the offset of a field; -1: it has its default."""
        place = 4 + 2 * number
        if place + 2 > self._fields_bytes:
            return -1
        (offset,) = struct.unpack_from("<H", self.data, self._fields + place)
        return self._at + offset if offset else -1

    def reference(self, number: int) -> int:
        """Return the offset to which a field points; -1: it points nowhere."""
        at = self.field(number)
        return -1 if at < 0 else at + struct.unpack_from("<I", self.data, at)[0]


ARROW_CONVERTER: Final = ArrowReader()
LITDATA_ARROW_CONVERTER: Final = LitDataArrowReader()
