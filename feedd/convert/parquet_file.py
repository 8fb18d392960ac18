"""Reads Parquet footers with pyarrow, and converts columns to pieces of a table.

pyarrow ends the process for some contradictory footers. Only workers read footers. If a file ends two workers, it is a
BadShard (see ``docs/decisions/0037``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from feedd.convert.arrow_pieces import ColumnReader
from feedd.convert.arrow_types import column_encoding, file_of, leaf_count, plain, unscaled
from feedd.convert.columnar import chosen, is_head, refusing, unread
from feedd.convert.table_writer import ColumnEncoding, TableWriter, whole_table_bytes, write_outline
from feedd.errors import BadShard
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.convert.table_writer import Piece
    from feedd.protocols import ShardWriter

_WHAT: Final = "a Parquet file"
_PAGE_HEAD_BYTES_MAX: Final = 256  # the head of a dictionary page has no statistics of values
_PAGE_RAW_BYTES, _PAGE_DICTIONARY = 2, 7  # field numbers: decompressed bytes; dictionary head
_THRIFT_I32, _THRIFT_STRUCT = 5, 12
_FIRST_IS_I32: Final = 0x15  # field 1, an i32
_BATCH_BYTES: Final = 32 << 20
_BATCH_ROWS_MAX: Final = 64 << 10
_SKEW: Final = 4
"""The most frequent values of a dictionary may be this many times larger than the mean."""
_PADDED_BYTES: Final = 100
"""Old writers wrote chunks slightly longer than stated, so readers allow these bytes."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A wanted column.

    Attributes:
        leaves: numbers of the Parquet columns that store it.
    """

    name: str
    how: ColumnEncoding
    leaves: range


def chunks(data: memoryview, params: str, footer: ByteRange) -> tuple[list[ByteRange], int]:
    """Return the byte ranges of the values of wanted columns, and the size of their table; -1: it is not known.

    Args:
        data: the file, with its footer present.
        params: see ``convert.columnar.params_of``.
        footer: range of the footer, including its last 8 bytes.
    """
    with refusing(_WHAT, ""):
        file = _File(data, footer, "")
        if is_head(params):
            return [], -1
        columns = file.columns(params)
        return list(file.value_ranges(columns)), file.table_bytes(columns, params)


def write(data: memoryview, url: str, params: str, out: ShardWriter, footer: ByteRange) -> str:
    """Write the wanted columns as a table; return the name of its format."""
    with refusing(_WHAT, url):
        file = _File(data, footer, url)
        columns = file.columns(params)
        others = file.left_out(params)
        if is_head(params):
            outline = ((column.name, column.how) for column in columns)
            return write_outline(outline, others, rows=file.rows > 0, out=out, url=url)
        list(file.value_ranges(columns))  # checks ranges, because pyarrow would read wrong ones
        writer = TableWriter(out, file.rows, url)
        writer.leave_out(others)
        for column in columns:
            reader = ColumnReader(column.name, column.how, url)
            writer.add(column.name, column.how, file.pieces(column, reader, out.limit_bytes))
        return writer.finish()


class _File:
    """A Parquet file.

    Args:
        data: see ``chunks``.
        footer: see ``chunks``.
        url: named in errors.

    Attributes:
        rows: number of rows of the file.
        others: types of the columns that cannot be fields, by name, after a call of ``columns``.
        unscaled: types of the wanted columns whose numbers are stored unscaled, by name, after a call of ``columns``.
    """

    def __init__(self, data: memoryview, footer: ByteRange, url: str) -> None:
        self._data = data
        self._end = footer.start
        self._url = url
        source = pa.BufferReader(pa.py_buffer(data))
        self.others: dict[str, str] = {}
        self.unscaled: dict[str, str] = {}
        self._file = pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)
        metadata = self._file.metadata
        self.rows: int = metadata.num_rows
        self._groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]

    def columns(self, params: str) -> list[_Column]:
        """Return the wanted columns."""
        usable: dict[str, _Column] = {}
        at = 0
        for field in self._file.schema_arrow:
            count = leaf_count(field.type)
            how = column_encoding(field.type)
            if how is None or field.name in usable:
                self.others[field.name] = str(field.type) if how is None else "a second column of that name"
            else:
                usable[field.name] = _Column(field.name, how, _leaves(plain(field.type), at, count))
            at += count
        wrong = next((group.num_columns for group in self._groups if group.num_columns != at), at)
        if wrong != at or len(self._file.schema) != at:
            raise self._bad(f"{at} columns of values", f"{wrong} in a row group and {len(self._file.schema)} in all")
        names = chosen(params, usable, self.others, self._url)
        types = {field.name: field.type for field in reversed(list(self._file.schema_arrow))}
        self.unscaled = {name: str(types[name]) for name in names if unscaled(types[name])}
        return [usable[name] for name in names]

    def left_out(self, params: str) -> dict[str, str]:
        """Return types of columns to name in the table's foot, by name, after a call of ``columns``."""
        return {**unread(params, self.others), **self.unscaled}

    def table_bytes(self, columns: list[_Column], params: str) -> int:
        """Return the size of the table, if the footer says that no value is missing; else -1."""
        leaves = [leaf for column in columns for leaf in column.leaves]
        if not all(_has_all(group.column(leaf)) for group in self._groups for leaf in leaves):
            return -1
        return whole_table_bytes(self.rows, [(one.name, one.how) for one in columns], self.left_out(params))

    def value_ranges(self, columns: list[_Column]) -> Iterator[ByteRange]:
        """Yield the byte ranges of the values of columns."""
        padded = _PADDED_BYTES if "parquet-mr" in (self._file.metadata.created_by or "") else 0
        for group in self._groups:
            for column in columns:
                for leaf in column.leaves:
                    chunk = group.column(leaf)
                    start, size = _start(chunk), chunk.total_compressed_size
                    stop = start + size
                    if chunk.file_path or min(start, size, chunk.total_uncompressed_size) < 0 or stop > self._end:
                        got = f"{size} bytes at {start}"
                        raise self._bad(f"values of column {column.name!r} before byte {self._end}", got)
                    yield ByteRange(start, min(self._end, stop + padded))

    def pieces(self, column: _Column, reader: ColumnReader, memory_bytes: int) -> Iterator[Piece]:
        """Yield a column, some rows at a time."""
        paths = [self._file.schema.column(leaf).path for leaf in column.leaves]
        row_bytes = 1e-9
        for group in self._groups:
            chunks = [group.column(leaf) for leaf in column.leaves]
            size = sum(chunk.total_uncompressed_size for chunk in chunks)
            repeated = sum(dictionary_value_bytes(self._data, chunk) for chunk in chunks) * _SKEW
            row_bytes = max(row_bytes, size / max(1, group.num_rows), repeated)
        rows = max(1, min(_BATCH_ROWS_MAX, int(_BATCH_BYTES / row_bytes)))
        groups = range(len(self._groups))
        for batch in self._file.iter_batches(rows, row_groups=list(groups), columns=paths, use_threads=False):
            place = batch.schema.get_field_index(column.name)
            if place < 0:
                raise self._bad(f"column {column.name!r}", f"{batch.schema.names}")
            yield from reader.pieces(batch.column(place), memory_bytes)

    def _bad(self, expected: str, got: str) -> BadShard:
        return BadShard(f"expected {expected} of a Parquet file, got {got}", object=self._url, stage="decode")


def _has_all(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether a chunk has no values, or its statistics say that none is missing."""
    if not chunk.num_values:
        return True
    if not chunk.is_stats_set:
        return False
    statistics = chunk.statistics
    return bool(statistics.has_null_count) and statistics.null_count == 0


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the start of a chunk's first page, which is the dictionary if there is one."""
    dictionary = chunk.dictionary_page_offset or 0
    start: int = chunk.data_page_offset
    return dictionary if 0 < dictionary < start else start


def dictionary_value_bytes(data: memoryview, chunk: pq.ColumnChunkMetaData) -> float:
    """Return the mean bytes of a dictionary's values, or 0 if there is no dictionary or it is empty.

    pyarrow does not report it. A page begins with a struct in Thrift's compact protocol [apache/parquet-format,
    parquet.thrift]. Each field is a byte with type and distance to the previous field's number, then its value. All
    fields before the count of values are integers.
    """
    start = _start(chunk)
    if start == chunk.data_page_offset:
        return 0.0
    head = iter(bytes(data[start : start + _PAGE_HEAD_BYTES_MAX]))
    number = 0
    found: dict[int, int] = {}
    try:
        while (byte := next(head)) >> 4:
            number += byte >> 4
            if byte & 15 == _THRIFT_STRUCT and number == _PAGE_DICTIONARY and next(head) == _FIRST_IS_I32:
                count = _thrift_number(head)
                return max(0.0, found.get(_PAGE_RAW_BYTES, 0) / count) if count > 0 else 0.0
            if byte & 15 != _THRIFT_I32:
                break
            found[number] = _thrift_number(head)
    except StopIteration:
        pass
    return 0.0  # not a dictionary page: pyarrow reports the error


def _thrift_number(data: Iterator[int]) -> int:
    """Return a 32-bit integer of Thrift's compact protocol."""
    value = shift = 0
    while (byte := next(data)) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
    value |= byte << shift
    return (value >> 1) ^ -(value & 1)


def _leaves(type_: pa.DataType, at: int, count: int) -> range:
    """Return the numbers of the Parquet columns that a column needs."""
    child = file_of(type_)
    if not child:
        return range(at, at + count)
    names = [type_.field(number).name for number in range(type_.num_fields)]
    return range(at + names.index(child), at + names.index(child) + 1)
