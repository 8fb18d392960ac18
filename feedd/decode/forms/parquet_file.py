"""What pyarrow tells of Parquet files, and their columns as pieces of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from feedd.decode.forms.arrow_pieces import ColumnReader
from feedd.decode.forms.arrow_types import Kept, file_of, kept, leaf_count, plain
from feedd.decode.forms.columns import chosen, refusing
from feedd.decode.forms.table_writer import TableWriter
from feedd.errors import BadShard
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.decode.forms.table_writer import Piece
    from feedd.protocols import Out

_WHAT: Final = "a Parquet file"
_BATCH_BYTES: Final = 32 << 20
_BATCH_ROWS_MAX: Final = 64 << 10
_PADDED_BYTES: Final = 100
"""Writers of old wrote chunks a little longer than they say; readers have forgiven that ever since."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A wanted one.

    Attributes:
        leaves: numbers of the columns that Parquet keeps it in.
    """

    name: str
    how: Kept
    leaves: range


def chunks(data: memoryview, params: str, end: int) -> list[ByteRange]:
    """Return where the values of wanted columns lie.

    Args:
        data: the file, of which the footer is here.
        params: see ``columns.params_of``.
        end: where the footer begins.
    """
    with refusing(_WHAT, ""):
        metadata = pq.read_metadata(_source(data))
        return list(_chunks(metadata, _columns(metadata, params, ""), end, ""))


def write(data: memoryview, url: str, params: str, out: Out) -> str:
    """Write the wanted columns as a table; return the name of its format."""
    with refusing(_WHAT, url):
        file = pq.ParquetFile(_source(data), pre_buffer=False, page_checksum_verification=True)
        writer = TableWriter(out, file.metadata.num_rows, url)
        for column in _columns(file.metadata, params, url):
            pieces = _pieces(file, column, ColumnReader(column.name, column.how, url), out.limit_bytes)
            writer.add(column.name, column.how.stored, column.how.width, pieces)
        return writer.finish()


def _source(data: memoryview) -> Any:
    return pa.BufferReader(pa.py_buffer(data))


def _columns(metadata: Any, params: str, url: str) -> list[_Column]:
    """Return the wanted columns."""
    schema = metadata.schema.to_arrow_schema()
    usable: dict[str, _Column] = {}
    others: list[str] = []
    at = 0
    for field in schema:
        count = leaf_count(field.type)
        how = kept(field.type)
        if how is None or field.name in usable:
            others.append(field.name)
        else:
            usable[field.name] = _Column(field.name, how, _leaves(plain(field.type), at, count))
        at += count
    if at != metadata.num_columns:
        message = f"expected {metadata.num_columns} columns of values in a Parquet file's schema, got {at}"
        raise BadShard(message, object=url, stage="decode")
    return [usable[name] for name in chosen(params, usable, others, url)]


def _leaves(type_: Any, at: int, count: int) -> range:
    """Return which of Parquet's columns a column needs."""
    child = file_of(type_)
    if not child:
        return range(at, at + count)
    names = [type_.field(number).name for number in range(type_.num_fields)]
    return range(at + names.index(child), at + names.index(child) + 1)


def _chunks(metadata: Any, columns: list[_Column], end: int, url: str) -> Iterator[ByteRange]:
    """Yield where the values of columns lie."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in columns:
            for leaf in column.leaves:
                chunk = group.column(leaf)
                start = chunk.data_page_offset
                if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                    start = chunk.dictionary_page_offset
                size = chunk.total_compressed_size
                if chunk.file_path or start < 0 or size < 0 or start + size > end:
                    message = f"expected values of column {column.name!r} before byte {end}, got {size} bytes at {start}"
                    raise BadShard(message, object=url, stage="decode")
                padded = _PADDED_BYTES if "parquet-mr" in (metadata.created_by or "") else 0
                yield ByteRange(start, min(end, start + size + padded))


def _pieces(file: Any, column: _Column, reader: ColumnReader, room_bytes: int) -> Iterator[Piece]:
    metadata = file.metadata
    paths = [metadata.schema.column(leaf).path for leaf in column.leaves]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = sum(group.column(leaf).total_uncompressed_size for leaf in column.leaves)
        rows = max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES * group.num_rows // max(1, size)))
        for batch in file.iter_batches(rows, row_groups=[number], columns=paths, use_threads=False):
            place = batch.schema.get_field_index(column.name)
            if place < 0:
                raise ValueError(f"no column {column.name!r}")
            yield from reader.pieces(batch.column(place), room_bytes)
