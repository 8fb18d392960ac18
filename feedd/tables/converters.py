"""Converters from objects of columns or arrays to tables, and the byte ranges that they need.

The daemon asks these converters for ranges, so libraries are loaded only in workers. Of most
objects they need the whole.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from feedd.errors import BadShard, Unsupported
from feedd.formats.litdata import ARROW_END
from feedd.tables import arrow_blocks
from feedd.tables.columns import ROWS_ONLY, is_head, loaded
from feedd.tables.ranges import WholeObject, coalesced, everything, lacking
from feedd.values import ByteRange

if TYPE_CHECKING:
    from types import ModuleType

    from feedd.protocols import PartialObject, PlacedWriter, ShardWriter
    from feedd.tables.task import TablePlan


_SCHEMA_BYTES: Final = 1 << 20
"""Bytes at an object's start that list its columns, unless there are very many."""

TYPES: Final = "types"
"""Parameters of a text conversion that makes no table but a list of columns and their types."""

DELIMITER: Final = "DELIMITER"
"""Key of the delimiter among the column types, if it is not the conversion's own; columns are in lower case there."""

_TYPES_BYTES: Final = 8 << 20
"""Bytes at an object's start that determine its column types, if the object is longer and a row ends within them."""

_PARQUET_MAGIC: Final = b"PAR1"
_PARQUET_ENCRYPTED: Final = b"PARE"
_END_BYTES: Final = 8  # u32 size of the footer, magic
_TAIL_BYTES: Final = (8 << 10, 64 << 10)
_TAIL_SHARE: Final = 512  # part of a file that most footers take; small compared with a few columns
_FOOTER_BYTES_MAX: Final = 256 << 20

_DIRECTORY_BYTES: Final = 1 << 20  # of a .npz of up to some thousand arrays

_LENGTH_BYTES: Final = 4  # size of the length of the Arrow file in a LitData chunk


class TableConverter(WholeObject):
    """``protocols.ShardConverter`` from columns to a table; stateless.

    Its parameters name columns, see ``tables.columns.params_of``.

    Args:
        name: name of the conversion.
        module: has ``write``, which makes the table; loaded when such data is found.
        extra: the extra to install if the library is missing.
        more: further arguments of ``write``.
    """

    def __init__(self, name: str, module: str, extra: str, *more: str) -> None:
        self.name = name
        self._module, self._extra, self._more = module, extra, more

    def import_libraries(self) -> None:
        """Import the module that makes tables; see ``workers.convert_shard.ImportsLate``."""
        self._loaded("")

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table; see ``ShardConverter.make``."""
        return self._write(held.data, url, params, out)

    def _write(self, data: memoryview, url: str, params: str, out: ShardWriter) -> str:
        format_name: str = self._loaded(url).write(data, url, params, out, *self._more)
        return format_name

    def _loaded(self, url: str) -> ModuleType:
        return loaded(self._module, self._extra, url)


class ArrowConverter(TableConverter):
    """``protocols.ShardConverter`` of Arrow IPC; stateless. An object's first bytes list its columns."""

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object; if only its columns or rows are requested, return the part that tells these."""
        if params == ROWS_ONLY:
            return arrow_blocks.wanted(held)
        if not is_head(params):
            return super().wanted(held, params)
        head = ByteRange(0, min(held.size_bytes, _SCHEMA_BYTES))
        missing = lacking(held, head)
        if missing or not lacking(held, ByteRange(0, held.size_bytes)):
            return missing
        enough: bool = self._loaded("").tells_columns(held.data[: head.end])
        return () if enough else everything(held)

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table, or only the list of columns."""
        if not is_head(params):
            return super().make(held, url, params, out)
        whole = not lacking(held, ByteRange(0, held.size_bytes))
        with held.data[: held.size_bytes if whole else _SCHEMA_BYTES] as head:
            name: str = self._loaded(url).write_head(head, url, params, out)
        return name


class DelimitedConverter(TableConverter):
    """``protocols.ShardConverter`` of CSV and similar text; stateless.

    Its parameters name columns and their types (see ``tables.columns.typed_params``), or are ``TYPES``.
    """

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object; for ``TYPES`` and for a head, return its start if that suffices."""
        if params != TYPES and not is_head(params):
            return super().wanted(held, params)
        head = ByteRange(0, min(held.size_bytes, _TYPES_BYTES))
        missing = lacking(held, head)
        if missing or not lacking(held, ByteRange(0, held.size_bytes)):
            return missing
        enough: bool = self._loaded("").tells_types(held.data[: head.end], *self._more)
        return () if enough else everything(held)

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table, or for ``TYPES`` the types of all columns as JSON."""
        if params != TYPES and not is_head(params):
            return super().make(held, url, params, out)
        size = held.size_bytes
        whole = not lacking(held, ByteRange(0, size))
        with held.data[: size if whole else _TYPES_BYTES] as head:
            if params == TYPES:
                self._loaded(url).write_types(head, url, out, *self._more, whole=whole)
                return TYPES
            with head if whole else self._loaded(url).whole_rows(head) as rows:
                return self._write(rows, url, params, out)


class NpzConverter(TableConverter):
    """``protocols.ShardConverter`` of .npz files; stateless. The end of a file lists its arrays."""

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object; if only its rows are requested, return the directory and each array's header."""
        size = held.size_bytes
        if params != ROWS_ONLY or size <= _DIRECTORY_BYTES:
            return super().wanted(held, params)
        if missing := lacking(held, ByteRange(size - _DIRECTORY_BYTES, size)):
            return missing
        heads: list[ByteRange] | None = self._loaded("").heads(held.data, size - _DIRECTORY_BYTES)
        if heads is None:
            return everything(held)
        return tuple(part for one in coalesced(heads) for part in lacking(held, one))


class LitDataArrowConverter(TableConverter):
    """``protocols.ShardConverter`` of LitData's chunks of plain values; stateless.

    A chunk has a head without items, then an Arrow file, then the file's length.
    """

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table; see ``ShardConverter.make``."""
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
        try:
            return self._write(inner, url, params, out)
        finally:
            with contextlib.suppress(BufferError):  # an error's traceback may hold arrays of the view
                inner.release()


class ParquetConverter(TableConverter):
    """``protocols.ShardConverter`` of Parquet files; stateless. Only the footer and wanted columns are fetched."""

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
            least, most = _TAIL_BYTES
            return (ByteRange(max(0, size - min(max(least, size // _TAIL_SHARE), most)), size),), None
        footer = _parquet_footer(held, "")
        if missing := lacking(held, footer):
            return missing, None
        chunks: list[ByteRange]
        plan: TablePlan | None
        chunks, plan = self._loaded("").chunks(held.data, params, footer)
        return tuple(part for span in coalesced(chunks) for part in lacking(held, span)), plan

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table.

        Raises:
            BadShard: not a Parquet file, or larger than a shard may be.
            BadRecipe, Unsupported: see ``tables.columns.chosen``.
        """
        name: str = self._loaded(url).write(held.data, url, params, out, _parquet_footer(held, url))
        return name

    def make_groups(self, held: PartialObject, url: str, params: str, out: PlacedWriter, groups: range) -> int:
        """Write some row groups to their places in the table; return the size of the table, or -1: it is not known.

        Raises:
            As ``make``.
        """
        footer = _parquet_footer(held, url)
        size_bytes: int = self._loaded(url).write_groups(held.data, url, params, out, footer, groups)
        return size_bytes


def _parquet_footer(held: PartialObject, url: str) -> ByteRange:
    """Return the range of the footer, including its end."""
    size = held.size_bytes
    end = bytes(held.data[max(0, size - _END_BYTES) : size])
    if end[4:] == _PARQUET_ENCRYPTED:
        raise Unsupported("encrypted Parquet files are not supported", object=url, stage="decode")
    length = int.from_bytes(end[:4], "little")
    start = size - _END_BYTES - length
    if end[4:] != _PARQUET_MAGIC or start < len(_PARQUET_MAGIC) or length > _FOOTER_BYTES_MAX:
        message = f"expected a Parquet file's footer at byte {max(0, size - _END_BYTES)}, got {end!r}"
        raise BadShard(message, object=url, stage="decode")
    return ByteRange(start, size)


_ARROW: Final = "feedd.tables.arrow"
_TEXT: Final = "feedd.tables.delimited"

ARROW_CONVERTER: Final = ArrowConverter("arrow", _ARROW, "parquet")
CSV_CONVERTER: Final = DelimitedConverter("csv", _TEXT, "parquet", ",")
TSV_CONVERTER: Final = DelimitedConverter("tsv", _TEXT, "parquet", "\t")
SEMICOLON_CONVERTER: Final = DelimitedConverter("csv-semicolon", _TEXT, "parquet", ";")
PIPE_CONVERTER: Final = DelimitedConverter("csv-pipe", _TEXT, "parquet", "|")
LITDATA_ARROW_CONVERTER: Final = LitDataArrowConverter("litdata-arrow", _ARROW, "parquet")
PARQUET_CONVERTER: Final = ParquetConverter("parquet", "feedd.tables.parquet", "parquet")
NPZ_CONVERTER: Final = NpzConverter("npz", "feedd.tables.npz", "formats")
HDF5_CONVERTER: Final = TableConverter("hdf5", "feedd.tables.hdf5", "hdf5")
