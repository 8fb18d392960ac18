"""Parquet as a form: of a file only the footer and the chunks of wanted columns are fetched, and become a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.convert.columnar import loaded
from feedd.convert.wanted_ranges import coalesced, lacking
from feedd.errors import BadShard, Unsupported
from feedd.values import ByteRange

if TYPE_CHECKING:
    from types import ModuleType

    from feedd.protocols import PartialObject, ShardWriter

_MAGIC: Final = b"PAR1"
_ENCRYPTED: Final = b"PARE"
_END_BYTES: Final = 8  # u32 size of the footer, magic
_TAIL_BYTES: Final = (8 << 10, 64 << 10)
_TAIL_SHARE: Final = 512  # of a file's bytes: what most footers take, and little beside a few columns
_FOOTER_BYTES_MAX: Final = 256 << 20


class ParquetForm:
    """``protocols.ShardConverter`` of Parquet files; stateless. Parameters name columns (``columnar.params_of``)."""

    @property
    def name(self) -> str:
        """``parquet``."""
        return "parquet"

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the tail; then the footer, where the tail has not all of it; then the chunks of wanted columns.

        Raises:
            BadShard: no Parquet file.
            BadRecipe, Unsupported: see ``convert.columnar.chosen``.
        """
        size = held.size_bytes
        if lacking(held, ByteRange(max(0, size - _END_BYTES), size)):
            least, most = _TAIL_BYTES
            return (ByteRange(max(0, size - min(max(least, size // _TAIL_SHARE), most)), size),)
        footer = _footer(held, "")
        if missing := lacking(held, footer):
            return missing
        chunks = _library("").chunks(held.data, params, footer)
        return tuple(part for span in coalesced(chunks) for part in lacking(held, span))

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table.

        Raises:
            BadShard: no Parquet file, or one that takes more than there is room for.
            BadRecipe, Unsupported: see ``convert.columnar.chosen``.
        """
        name: str = _library(url).write(held.data, url, params, out, _footer(held, url))
        return name


def _library(url: str) -> ModuleType:
    # The daemon asks a form with nothing held what it wants: it must not pay for the library.
    return loaded("feedd.convert.parquet_file", "parquet", url)


def _footer(held: PartialObject, url: str) -> ByteRange:
    """Return where the footer lies, its end included."""
    size = held.size_bytes
    end = bytes(held.data[max(0, size - _END_BYTES) : size])
    if end[4:] == _ENCRYPTED:
        raise Unsupported("expected a Parquet file, got an encrypted one", object=url, stage="decode")
    length = int.from_bytes(end[:4], "little")
    start = size - _END_BYTES - length
    if end[4:] != _MAGIC or start < len(_MAGIC) or length > _FOOTER_BYTES_MAX:
        message = f"expected a Parquet file's footer at byte {max(0, size - _END_BYTES)}, got {end!r}"
        raise BadShard(message, object=url, stage="decode")
    return ByteRange(start, size)


PARQUET_FORM: Final = ParquetForm()
