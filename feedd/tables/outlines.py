"""Converts the first bytes of a shard to a shard of its first samples, so that the whole shard need not be fetched.

The part is the smallest size of ``HEAD_BYTES`` that has a whole sample. If not even the largest has one, the result
has no samples, and the whole shard must be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from feedd.errors import BadShard
from feedd.formats import format_registry
from feedd.tables.ranges import lacking
from feedd.tables.registry import COUNT, HEAD, HEAD_BYTES
from feedd.tables.writer import TableWriter
from feedd.values import ByteRange

if TYPE_CHECKING:
    from feedd.formats.format_spec import Parts
    from feedd.formats.outline import Outline, OutlinedFormat
    from feedd.protocols import PartialObject, ShardWriter


class HeadConverter:
    """``protocols.ShardConverter`` to the first samples of a shard whose samples are stored in sequence; stateless.

    Its parameters are the format's name, including the format's own parameters.
    """

    @property
    def name(self) -> str:
        """``head``."""
        return HEAD

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the first bytes of the object; more of them if they have no whole sample."""
        for most in HEAD_BYTES:
            head = ByteRange(0, min(held.size_bytes, most))
            if missing := lacking(held, head):
                return missing
            if _start(held.data[: head.end], params)[1]:
                break
        return ()

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the whole samples of the held bytes; return the format's name, or ``table`` without samples."""
        end = held.spans[0].end if held.spans else 0
        with held.data[:end] as data:
            name, parts = _start(data, params)
            for part in parts:
                out.write(part)
        return name if parts else TableWriter(out, 0, url).finish()


def _start(data: memoryview, format_name: str) -> tuple[str, Parts]:
    """Return the format and the parts of a shard of whole samples; no parts if there are none."""
    kind, colon, params = format_name.partition(":")
    kind = format_registry.sniff(data) if kind == format_registry.AUTO else kind
    spec = format_registry.find(kind)
    cut = None if spec is None else spec.first_samples
    return f"{kind}{colon}{params}", () if cut is None else cut(data)


HEAD_CONVERTER: Final = HeadConverter()


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
