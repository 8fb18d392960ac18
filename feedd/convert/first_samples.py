"""The first samples of a shard, as a shard: what a dataset's first shard tells, without fetching all of it.

What is cut off is one of the fewest bytes, of those below, that hold a sample which is whole. Where not even the most
do there are no samples in it, and the shard itself must tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.convert.conversion_registry import HEAD, HEAD_BYTES
from feedd.convert.table_writer import TableWriter
from feedd.convert.wanted_ranges import lacking
from feedd.formats import format_registry
from feedd.values import ByteRange

if TYPE_CHECKING:
    from feedd.formats.format_spec import Parts
    from feedd.protocols import PartialObject, ShardWriter


class HeadConverter:
    """``protocols.ShardConverter`` of the first samples of shards that lie one after another; stateless.

    Its parameters are the format's name, its own parameters included.
    """

    @property
    def name(self) -> str:
        """``head``."""
        return HEAD

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the first bytes of the object; more of them where those do not hold a whole sample."""
        for most in HEAD_BYTES:
            head = ByteRange(0, min(held.size_bytes, most))
            if missing := lacking(held, head):
                return missing
            if _start(held.data[: head.end], params)[1]:
                break
        return ()

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the samples that are whole in what is held; return the format's name, or ``table`` of none."""
        end = held.spans[0].end if held.spans else 0
        with held.data[:end] as data:
            name, parts = _start(data, params)
            for part in parts:
                out.write(part)
        return name if parts else TableWriter(out, 0, url).finish()


def _start(data: memoryview, format_name: str) -> tuple[str, Parts]:
    """Return the format, and the shard of whole samples; no parts: there are none."""
    kind, colon, params = format_name.partition(":")
    kind = format_registry.sniff(data) if kind == format_registry.AUTO else kind
    spec = format_registry.find(kind)
    cut = None if spec is None else spec.first_samples
    return f"{kind}{colon}{params}", () if cut is None else cut(data)


HEAD_CONVERTER: Final = HeadConverter()
