"""Compressed with Snappy, as MosaicML's shards may be: one block, which begins with the length of what it holds.

A block is unpacked as a whole, in memory beside the shard. Snappy's own format for files, of frames, is another, and
so is what Hadoop writes: blocks behind two big-endian lengths each, so that it begins with a zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from feedd.convert.columnar import loaded
from feedd.convert.memory_limits import check_room
from feedd.convert.streams import UnpackingForm
from feedd.errors import BadShard
from feedd.formats.suffixes import UNSNAPPY
from feedd.units import format_size

if TYPE_CHECKING:
    from feedd.protocols import PartialObject, ShardWriter

_FRAMED: Final = b"\xff\x06\x00\x00sNaPpY"
_INSTEAD: Final = "compress it with zstd or gzip instead, or with Snappy as MosaicML's writer does"
_LONGEST_COPY: Final = 64 / 3
"""The most that a byte can become: three are an element that copies 64 (google/snappy, format_description.txt)."""


class SnappyForm(UnpackingForm):
    """``protocols.ShardConverter`` of Snappy; stateless."""

    name = UNSNAPPY

    def unpack(self, held: PartialObject, url: str, out: ShardWriter) -> None:
        """Write what was packed; raises BadShard, ResourceExhausted, Unsupported."""
        library = loaded("cramjam", "compressed", url)
        data = held.data
        if bytes(data[: len(_FRAMED)]) == _FRAMED:
            _fail(url, "one raw block", "Snappy's own frames", hint=_INSTEAD)
        if len(data) > 1 and not data[0]:  # a block that holds nothing ends here
            _fail(url, "one raw block", "what Hadoop and Spark write, several with their lengths", hint=_INSTEAD)
        try:
            size_bytes = library.snappy.decompress_raw_len(data)
            most_bytes = min(out.limit_bytes, int(_LONGEST_COPY * len(data)))
            if size_bytes > most_bytes:
                _fail(url, f"at most {format_size(most_bytes)} in {format_size(len(data))}", format_size(size_bytes))
            check_room(size_bytes, out, url, "an unpacked block")
            buffer = bytearray(size_bytes)
            made = library.snappy.decompress_raw_into(data, buffer)
        except library.DecompressionError as error:
            _fail(url, "a whole block", str(error), cause=error)
        if made != size_bytes:
            _fail(url, f"a block of {size_bytes} bytes", str(made))
        out.write(buffer)


def _fail(url: str, expected: str, got: str, *, hint: str = "", cause: Exception | None = None) -> NoReturn:
    raise BadShard(f"expected {expected} of Snappy, got {got}", object=url, hint=hint, stage="decode") from cause


UNSNAPPY_FORM: Final = SnappyForm()
