"""Converts shards to tables with predecoded images; other fields stay unchanged (see ``recipe.predecoded``).

Shards with random access are converted too: they are indexed, and then written as a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from feedd.codecs.codec_registry import make_prefix
from feedd.errors import Internal
from feedd.formats import format_registry as formats
from feedd.formats.missing_reasons import HAS, table_marks
from feedd.recipe.params import SAMPLE_BYTES_MAX, ImageParams
from feedd.recipe.predecoded import HEAD, PIXELS, RowsParams, original_mark, prefix_of
from feedd.tables.ranges import WholeObject
from feedd.tables.registry import READY
from feedd.tables.writer import Piece, TableWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from feedd.protocols import PartialObject, SampleCodec, ShardWriter
    from feedd.recipe.predecoded import Prefix, ReadyField
    from feedd.shard_index import ShardIndex

    Cell: TypeAlias = list[memoryview | bytes]


_PIECE_BYTES: Final = 16 << 20
_CELL_BYTES: Final = 9  # bytes of an end and a mark
_FOOT_BYTES: Final = 64 << 10


class RowsConverter(WholeObject):
    """``protocols.ShardConverter`` to predecoded images; stateless."""

    @property
    def name(self) -> str:
        """``rows``."""
        return READY

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write a table of predecoded images and of all other fields; see ``ShardConverter.make``."""
        try:
            asked = msgspec.json.decode(params.encode(), type=RowsParams)
        except msgspec.DecodeError as error:
            raise Internal(f"expected fields to predecode, got {params[:80]!r}", stage="decode") from error
        index = formats.get(asked.format).index(held.data, url)
        return _Making(held.data, index, TableWriter(out, index.sample_count, url)).write(asked)


class _Making:
    """One shard that is being converted."""

    def __init__(self, data: memoryview, index: ShardIndex, writer: TableWriter) -> None:
        self._data, self._index, self._writer = data, index, writer
        self._memory_bytes = 0
        self._decodes = True

    def write(self, asked: RowsParams) -> str:
        index = self._index
        columns = [self._columns(field.sources) for field in asked.fields]
        taken = {column for found in columns for column in found}
        kept_bytes = int(np.maximum(index.sizes, 0).sum()) + len(index.key_blob) + _FOOT_BYTES
        cells = (len(index.fields) + len(columns) + 1) * index.sample_count
        self._decodes = asked.limit_bytes > 0
        self._memory_bytes = asked.limit_bytes - kept_bytes - cells * _CELL_BYTES
        for field, found in zip(asked.fields, columns, strict=True):
            if found:
                self._ready(field, found)
        for column in range(len(index.fields)):
            if column not in taken:
                self._as_is(column)
        self._writer.keys(index.key_blob, index.key_ends)
        return self._writer.finish()

    def _columns(self, sources: Sequence[str]) -> list[int]:
        """Return the columns that a field may be in; none if they are not encoded images, which stay unchanged."""
        index = self._index
        found = [index.fields.index(source) for source in sources if source in index.fields]
        return found if {index.encoding_of(column) for column in found} <= {"", "image"} else []

    def _ready(self, field: ReadyField, columns: Sequence[int]) -> None:
        """Write one field's predecoded images."""
        params = msgspec.json.decode(field.params.encode(), type=ImageParams)
        prefix = prefix_of(params)
        if prefix is None:
            raise Internal(f"this recipe has no part to predecode: {field.params}", stage="decode")
        index = self._index
        starts, sizes = index.starts[columns[0]].copy(), index.sizes[columns[0]].copy()
        marks = self._marks(columns[0])
        for column in columns[1:]:
            lacking = sizes < 0
            starts[lacking], sizes[lacking] = index.starts[column][lacking], index.sizes[column][lacking]
            marks[lacking] = self._marks(column)[lacking]
        codec, places = make_prefix(params), zip(starts.tolist(), sizes.tolist(), marks.tolist(), strict=True)
        cells = (
            self._cell(codec, prefix, self._data[start : start + size]) if mark == HAS else mark
            for start, size, mark in places
        )
        self._writer.variable(field.sources[0], PIXELS, _pieces(cells))

    def _as_is(self, column: int) -> None:
        """Write a field unchanged."""
        index = self._index
        starts, sizes, marks = index.starts[column], index.sizes[column], self._marks(column)
        places = zip(starts.tolist(), sizes.tolist(), marks.tolist(), strict=True)
        cells = ([self._data[start : start + size]] if mark == HAS else mark for start, size, mark in places)
        self._writer.variable(index.fields[column], index.encoding_of(column), _pieces(cells))

    def _marks(self, column: int) -> NDArray[np.uint8]:
        """Return which samples have a field, and why the others lack it, see ``formats.missing_reasons``."""
        index = self._index
        return table_marks(index.sizes[column], None if index.reasons is None else index.reasons[column])

    def _cell(self, codec: SampleCodec, prefix: Prefix, data: memoryview) -> Cell:
        """Return the cell of a sample: a predecoded row, or the unchanged sample if that fails."""
        row = self._row(codec, prefix, data)
        if row is None:
            return [original_mark(len(data), prefix.width_bytes), data]
        head = b"" if prefix.shape is not None else HEAD.pack(0, *row.shape)
        return [head, np.ascontiguousarray(row, row.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data]

    def _row(self, codec: SampleCodec, prefix: Prefix, data: memoryview) -> NDArray[Any] | None:
        if not self._decodes:
            return None
        try:
            shape = prefix.shape or codec.measure(data)
            dtype = np.dtype(prefix.dtype)
            row_bytes = int(np.prod(shape, dtype=np.float64)) * dtype.itemsize + HEAD.size
            more_bytes = row_bytes - len(data)
            if more_bytes > self._memory_bytes or not HEAD.size < row_bytes <= SAMPLE_BYTES_MAX:
                return None
            row = np.empty(shape, dtype)
            codec.decode(data, row, 0)
        except Exception:  # noqa: BLE001 - decoding raises it again and reports it with the sample
            return None
        self._memory_bytes -= more_bytes
        return row


def _pieces(cells: Iterable[Sequence[memoryview | bytes] | int]) -> Iterator[Piece]:
    """Yield a column's cells, many at a time. A number means a missing field, see ``formats.missing_reasons``."""
    parts: Cell = []
    sizes: list[int] = []
    marks = bytearray()
    held_bytes = 0
    for cell in cells:
        mark, values = (cell, ()) if isinstance(cell, int) else (HAS, cell)
        size = sum(map(len, values))
        parts.extend(values)
        sizes.append(size)
        marks.append(mark)
        held_bytes += size
        if held_bytes >= _PIECE_BYTES:
            yield _piece(parts, sizes, marks)
            parts, sizes, marks, held_bytes = [], [], bytearray(), 0
    yield _piece(parts, sizes, marks)


def _piece(parts: Cell, sizes: Sequence[int], marks: bytes | bytearray) -> Piece:
    values = np.frombuffer(b"".join(parts), np.uint8)
    return Piece(values, np.array(sizes, np.int64), np.frombuffer(marks, np.uint8))


ROWS_CONVERTER: Final = RowsConverter()
