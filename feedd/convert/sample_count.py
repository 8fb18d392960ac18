"""Converts a shard's headers to a table that tells its number of samples and its fields, but has no values.

The whole shard need not be fetched: see ``formats.outline``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from feedd.convert.counting import COUNT
from feedd.convert.table_writer import TableWriter
from feedd.convert.wanted_ranges import lacking
from feedd.errors import BadShard
from feedd.formats import format_registry
from feedd.values import ByteRange

if TYPE_CHECKING:
    from feedd.formats.outline import Outline, OutlinedFormat
    from feedd.protocols import PartialObject, ShardWriter


class CountConverter:
    """``protocols.ShardConverter`` to an outline; stateless.

    Its parameters are the format's name, including the format's own parameters.
    """

    @property
    def name(self) -> str:
        """``count``."""
        return COUNT

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the range of the next header; see ``ShardConverter.wanted``.

        Raises:
            BadShard, Unsupported: the headers do not tell the number of samples.
        """
        found = _outline(held, "", params)
        return lacking(held, found) if isinstance(found, ByteRange) else ()

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the table; return ``table``.

        Raises:
            BadShard, Unsupported: as ``wanted``.
        """
        found = _outline(held, url, params)
        if isinstance(found, ByteRange):
            raise BadShard(f"expected byte {found.start} of the headers, got none", object=url, stage="decode")
        writer = TableWriter(out, found.rows, url)
        writer.leave_out(dict(found.unread))
        for name, encoding in found.columns:
            writer.empty(name, encoding)
        return writer.finish()


def _outline(held: PartialObject, url: str, params: str) -> Outline | ByteRange:
    return cast("OutlinedFormat", format_registry.get(params)).outline(held, url)


COUNT_CONVERTER: Final = CountConverter()
