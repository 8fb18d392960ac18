"""Reads footers and columns of Parquet files with pyarrow.

pyarrow ends the process for some contradictory footers. Only workers read footers. If a file ends two workers, it is a
BadShard (see ``docs/dev/decisions/0037``).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from feedd.errors import BadShard, Unsupported
from feedd.tables.arrow_columns import ColumnReader, column_encoding, file_of, leaf_count, plain, unscaled
from feedd.tables.columns import chosen, is_head, refusing
from feedd.tables.ranges import coalesced, first_of_parquet, lacking, missing_parts
from feedd.tables.reader import Column, OpenTable, Outline, TableReader
from feedd.tables.task import RowGroups, TablePlan
from feedd.tables.writer import ROWS_MAX, ColumnEncoding, WholeTable
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from feedd.protocols import PartialObject, PlacedWriter, ShardWriter
    from feedd.tables.writer import Piece


_MAGIC: Final = b"PAR1"
_ENCRYPTED: Final = b"PARE"
_END_BYTES: Final = 8  # u32 size of the footer, magic
_FOOTER_BYTES_MAX: Final = 256 << 20
_PAGE_HEAD_BYTES_MAX: Final = 256  # the head of a dictionary page has no statistics of values
_PAGE_RAW_BYTES, _PAGE_DICTIONARY = 2, 7  # field numbers: decompressed bytes; dictionary head
_THRIFT_I32, _THRIFT_STRUCT = 5, 12
_FIRST_IS_I32: Final = 0x15  # field 1, an i32
_BATCH_BYTES: Final = 32 << 20
_BATCH_ROWS_MAX: Final = 64 << 10
_SKEW: Final = 4
"""The most frequent values of a dictionary may be this many times larger than the mean."""
_GROUPS_BYTES: Final = 1 << 20
"""Row groups that make less of a table than this are converted together."""
_RANGES_MAX: Final = 1024  # of all row groups, which fit into a message
_KEPT_BYTES_MAX: Final = 1 << 20
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


class ParquetReader(TableReader):
    """``TableReader`` of Parquet files. Only the footer and the wanted columns are fetched."""

    name = "parquet"
    what = "a Parquet file"

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the tail; then the rest of the footer; then the chunks of wanted columns.

        Raises:
            BadShard: not a Parquet file.
            BadRecipe, Unsupported: see ``tables.columns.chosen``.
        """
        return self.wanted_and_plan(held, params)[0]

    def wanted_and_plan(self, held: PartialObject, params: str) -> tuple[tuple[ByteRange, ...], TablePlan | None]:
        """Return the same as ``wanted``, and how the table can be written if the footer tells its layout.

        Raises:
            As ``wanted``.
        """
        size = held.size_bytes
        if lacking(held, ByteRange(max(0, size - _END_BYTES), size)):
            return first_of_parquet(size, params), None
        footer = _footer_range(held, "")
        if missing := lacking(held, footer):
            return missing, None
        if is_head(params):
            return (), None
        with refusing(self.what, ""):
            file = _File(held.data, footer, "")
            columns = file.wanted(params)
            plan = file.plan(columns, params)
            return missing_parts(held, coalesced(file.value_ranges(columns, file.every))), plan

    @contextmanager
    def open(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> Iterator[OpenTable]:
        """Open a file."""
        file = _File(held.data, _footer_range(held, url), url, out.limit_bytes)
        yield Outline(file, has_rows=file.rows > 0) if is_head(params) else file

    def make_groups(self, held: PartialObject, url: str, params: str, out: PlacedWriter, groups: range) -> int:
        """Write some row groups to their places in the table; with the first, write the ends of the table too.

        Args:
            held: the object, with its footer and the values of the row groups.
            url: named in errors.
            params: see ``tables.columns.params_of``.
            out: the table.
            groups: numbers of the row groups.

        Returns:
            The size of the table; -1: it is not known, because a value is missing.
        """
        footer = _footer_range(held, url)
        with refusing(self.what, url):
            file = _File(held.data, footer, url, out.limit_bytes)
            columns = file.wanted(params)
            table = file.table(columns, params)
            if table is None or groups.stop > len(file.every):
                return -1
            list(file.value_ranges(columns, groups))  # checks ranges, because pyarrow would read wrong ones
            rows = file.rows_of(groups)
            for column, placed in zip(columns, table.foot.columns, strict=True):
                if not table.write_rows(out, placed, rows, file.pieces(column, groups), url):
                    return -1
            if not groups.start:
                table.write_ends(out)
            return table.size_bytes


def _footer_range(held: PartialObject, url: str) -> ByteRange:
    """Return the range of the footer, including its end."""
    size = held.size_bytes
    end = bytes(held.data[max(0, size - _END_BYTES) : size])
    if end[4:] == _ENCRYPTED:
        raise Unsupported("encrypted Parquet files are not supported", object=url, stage="decode")
    length = int.from_bytes(end[:4], "little")
    start = size - _END_BYTES - length
    if end[4:] != _MAGIC or start < len(_MAGIC) or length > _FOOTER_BYTES_MAX:
        message = f"expected a Parquet file's footer at byte {max(0, size - _END_BYTES)}, got {end!r}"
        raise BadShard(message, object=url, stage="decode")
    return ByteRange(start, size)


class _Footer:
    """What a footer tells, parsed once for successive requests about the same file.

    Attributes:
        data: the bytes of the footer.
        metadata: None until pyarrow has parsed it.
        chosen: wanted columns, columns that cannot be fields, and unscaled ones, by the parameters of a conversion.
        tables: layouts of tables, by the parameters of a conversion.
    """

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.metadata: pq.FileMetaData | None = None
        self.chosen: dict[str, tuple[list[_Column], dict[str, str], dict[str, str]]] = {}
        self.tables: dict[str, WholeTable | None] = {}


class _LatestFooter:
    """The footer that was read last, unless it is large. Only equal bytes find it."""

    def __init__(self) -> None:
        self._footer = _Footer()

    def of(self, data: bytes) -> _Footer:
        """Return the footer with these bytes."""
        if self._footer.data == data:
            return self._footer
        footer = _Footer(data)
        if len(data) <= _KEPT_BYTES_MAX:
            self._footer = footer
        return footer


_latest: Final = _LatestFooter()


class _File(OpenTable):
    """A Parquet file.

    Args:
        data: the file, with its footer present.
        footer: range of the footer, including its last 8 bytes.
        url: named in errors.
        limit_bytes: maximum size of the table.

    Attributes:
        rows: number of rows of the file.
        columns: the wanted columns, after ``wanted``.
        others: types of the columns that cannot be fields, by name, after ``wanted``.
    """

    def __init__(self, data: memoryview, footer: ByteRange, url: str, limit_bytes: int = 0) -> None:
        self._data = data
        self._end = footer.start
        self.url, self._limit_bytes = url, limit_bytes
        source = pa.BufferReader(pa.py_buffer(data))
        self.columns: dict[str, _Column] = {}
        self.others: dict[str, str] = {}
        self._unscaled: dict[str, str] = {}
        self._footer = _latest.of(bytes(data[footer.start : footer.end]))
        known, options = self._footer.metadata, {"pre_buffer": False, "page_checksum_verification": True}
        self._file = pq.ParquetFile(source, metadata=known, **options)
        self._footer.metadata = metadata = self._file.metadata
        self.rows: int = metadata.num_rows
        self._groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]

    def chosen(self, params: str) -> list[str]:
        """Return the names of the wanted columns."""
        return [column.name for column in self.wanted(params)]

    def left_out(self, params: str, names: Sequence[str]) -> Mapping[str, str]:
        """Return also the wanted columns whose numbers are stored unscaled."""
        return {**super().left_out(params, names), **self._unscaled}

    def row_count(self, names: Sequence[str]) -> int:
        """Return the number of rows that the footer tells; check the ranges of values, because pyarrow would not."""
        list(self.value_ranges([self.columns[name] for name in names], self.every))
        return self.rows

    def column(self, name: str) -> Column:
        """Return a wanted column, which is read some rows at a time."""
        column = self.columns[name]
        return Column(column.how, self.pieces(column, self.every))

    def wanted(self, params: str) -> list[_Column]:
        """Return the wanted columns."""
        known = self._footer.chosen.get(params)
        if known is None:
            found = self._wanted(params)
            self._footer.chosen = {params: (found, self.others, self._unscaled)}
        else:
            found, self.others, self._unscaled = known
        self.columns = {column.name: column for column in found}
        return found

    def _wanted(self, params: str) -> list[_Column]:
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
        names = chosen(params, usable, self.others, self.url)
        types = {field.name: field.type for field in reversed(list(self._file.schema_arrow))}
        self._unscaled = {name: str(types[name]) for name in names if unscaled(types[name])}
        return [usable[name] for name in names]

    @property
    def every(self) -> range:
        """The numbers of all row groups."""
        return range(len(self._groups))

    def rows_of(self, groups: range) -> range:
        """Return the numbers of the rows of some row groups."""
        start = sum(group.num_rows for group in self._groups[: groups.start])
        return range(start, start + sum(group.num_rows for group in self._groups[groups.start : groups.stop]))

    def table(self, columns: list[_Column], params: str) -> WholeTable | None:
        """Return the layout of the table, if the footer says that no value is missing."""
        if params not in self._footer.tables:
            self._footer.tables = {params: self._table(columns, params)}
        return self._footer.tables[params]

    def _table(self, columns: list[_Column], params: str) -> WholeTable | None:
        leaves = [leaf for column in columns for leaf in column.leaves]
        if not all(_has_all(group.column(leaf)) for group in self._groups for leaf in leaves):
            return None
        if self.rows_of(self.every) != range(self.rows) or self.rows > ROWS_MAX:
            return None
        return WholeTable.of(self.rows, [(one.name, one.how) for one in columns], self.left_out(params, ()))

    def plan(self, columns: list[_Column], params: str) -> TablePlan | None:
        """Return how the table is written some row groups at a time; None: its layout is not known."""
        table = self.table(columns, params)
        if table is None or not self.rows or not columns:
            return None
        least_bytes = _GROUPS_BYTES
        while True:
            groups = list(self._joined(columns, least_bytes // max(table.row_bytes, 1)))
            if sum(len(one.ranges) for one in groups) <= _RANGES_MAX:
                return TablePlan(table.size_bytes, tuple(groups), table.index(self.url))
            if len(groups) == 1:
                return None
            least_bytes *= 2

    def _joined(self, columns: list[_Column], rows_least: int) -> Iterator[RowGroups]:
        """Yield all row groups; those with few rows are joined."""
        start = rows = end = 0
        for number, group in enumerate(self._groups):
            rows, end = rows + group.num_rows, end + group.num_rows
            if rows >= rows_least or number + 1 == len(self._groups):
                yield RowGroups(number + 1, end, coalesced(self.value_ranges(columns, range(start, number + 1))))
                start, rows = number + 1, 0

    def value_ranges(self, columns: list[_Column], groups: range) -> Iterator[ByteRange]:
        """Yield the byte ranges of the values of columns in some row groups."""
        padded = _PADDED_BYTES if "parquet-mr" in (self._file.metadata.created_by or "") else 0
        for group in self._groups[groups.start : groups.stop]:
            for column in columns:
                for leaf in column.leaves:
                    chunk = group.column(leaf)
                    start, size = _start(chunk), chunk.total_compressed_size
                    stop = start + size
                    if chunk.file_path or min(start, size, chunk.total_uncompressed_size) < 0 or stop > self._end:
                        got = f"{size} bytes at {start}"
                        raise self._bad(f"values of column {column.name!r} before byte {self._end}", got)
                    yield ByteRange(start, min(self._end, stop + padded))

    def pieces(self, column: _Column, groups: range) -> Iterator[Piece]:
        """Yield a column of some row groups, some rows at a time."""
        reader = ColumnReader(column.name, column.how, self.url)
        paths = [self._file.schema.column(leaf).path for leaf in column.leaves]
        row_bytes = 1e-9
        for group in self._groups[groups.start : groups.stop]:
            chunks = [group.column(leaf) for leaf in column.leaves]
            size = sum(chunk.total_uncompressed_size for chunk in chunks)
            repeated = sum(dictionary_value_bytes(self._data, chunk) for chunk in chunks) * _SKEW
            row_bytes = max(row_bytes, size / max(1, group.num_rows), repeated)
        rows = max(1, min(_BATCH_ROWS_MAX, int(_BATCH_BYTES / row_bytes)))
        for batch in self._file.iter_batches(rows, row_groups=list(groups), columns=paths, use_threads=False):
            place = batch.schema.get_field_index(column.name)
            if place < 0:
                raise self._bad(f"column {column.name!r}", f"{batch.schema.names}")
            yield from reader.pieces(batch.column(place), self._limit_bytes)

    def _bad(self, expected: str, got: str) -> BadShard:
        return BadShard(f"expected {expected} of a Parquet file, got {got}", object=self.url, stage="decode")


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


PARQUET_CONVERTER: Final = ParquetReader()
