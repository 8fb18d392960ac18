"""The record batches of an Arrow file, by its footer: how many rows they have, without reading their values.

A file is ``ARROW1``, two zero bytes, a stream, a footer, u32 size of the footer, ``ARROW1``. The footer and the
metadata of each record batch are FlatBuffers: a table begins with the distance to its list of fields [apache/arrow,
format/File.fbs and Message.fbs]. pyarrow tells the number of rows only of batches that it reads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from feedd.tables.columns import refusing
from feedd.tables.ranges import coalesced, everything, lacking
from feedd.values import ByteRange

if TYPE_CHECKING:
    from feedd.protocols import PartialObject


MAGIC: Final = b"ARROW1"
_START: Final = ByteRange(0, 8)
_TAIL_BYTES: Final = 64 << 10
_END_BYTES: Final = 4 + len(MAGIC)
_WORTH_BYTES: Final = 1 << 20  # a request costs about as much as this many bytes
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_BLOCKS, _HEADER_TYPE, _HEADER, _LENGTH = 3, 1, 2, 0  # numbers of fields
_RECORD_BATCH: Final = 3
_BLOCK: Final = struct.Struct("<qi4xq")


def wanted(held: PartialObject) -> tuple[ByteRange, ...]:
    """Return the ranges that tell the number of rows: the ends of the file, the footer, the metadata of all batches.

    It is the whole object if that is no Arrow file, or if its batches are small.

    Raises:
        BadShard: the footer is broken.
    """
    size = held.size_bytes
    ends = (_START, ByteRange(max(size - _TAIL_BYTES, 0), size))
    if size <= _WORTH_BYTES:
        return everything(held)
    if missing := tuple(part for one in ends for part in lacking(held, one)):
        return missing
    if not is_file(held.data):
        return everything(held)
    with refusing("an Arrow file", ""):
        footer = _footer(held.data)
        if missing := lacking(held, footer):
            return missing
        blocks = _blocks(held.data, footer)
    if len(blocks) * _WORTH_BYTES > size:
        return everything(held)
    return tuple(part for one in coalesced(blocks) for part in lacking(held, one))


def is_file(data: memoryview) -> bool:
    """Whether an object is an Arrow file, by its first and last bytes."""
    count = len(MAGIC)
    return len(data) > _START.end + _END_BYTES and bytes(data[:count]) == bytes(data[-count:]) == MAGIC


def row_count(data: memoryview) -> int:
    """Return the number of rows of a file, of which the ranges of ``wanted`` are held."""
    return sum(_rows(data, block) for block in _blocks(data, _footer(data)))


def _footer(data: memoryview) -> ByteRange:
    end = len(data) - _END_BYTES
    (size,) = struct.unpack_from("<i", data, end)
    if not 0 < size <= end - _START.end:
        raise ValueError(f"a footer of {size} bytes")
    return ByteRange(end - size, end)


def _blocks(data: memoryview, footer: ByteRange) -> list[ByteRange]:
    """Return the ranges of the batches' metadata."""
    table = _Table.root(data[footer.start : footer.end])
    at = table.reference(_BLOCKS)
    if at < 0:
        return []
    (count,) = struct.unpack_from("<I", table.data, at)
    if count * _BLOCK.size > len(table.data):
        raise ValueError(f"{count} record batches in a footer of {len(table.data)} bytes")
    found = [_BLOCK.unpack_from(table.data, at + 4 + number * _BLOCK.size) for number in range(count)]
    if any(start < 0 or size <= 0 or start + size > footer.start for start, size, _ in found):
        raise ValueError("record batches that reach into the footer")
    return [ByteRange(start, start + size) for start, size, _ in found]


def _rows(data: memoryview, block: ByteRange) -> int:
    """Return the rows of a batch."""
    part = data[block.start : block.end]
    message = _Table.root(part[8 if bytes(part[:4]) == _CONTINUATION else 4 :])
    kind, header = message.field(_HEADER_TYPE), message.reference(_HEADER)
    if kind < 0 or message.data[kind] != _RECORD_BATCH or header < 0:
        raise ValueError("a block that is no record batch")
    length = _Table(message.data, header).field(_LENGTH)
    (rows,) = struct.unpack_from("<q", message.data, length) if length >= 0 else (0,)
    if rows < 0:
        raise ValueError(f"a record batch of {rows} rows")
    found: int = rows
    return found


class _Table:
    """A table of a FlatBuffer.

    Args:
        data: the FlatBuffer.
        at: start of the table.
    """

    def __init__(self, data: memoryview, at: int) -> None:
        self.data = data
        self._at = at
        (back,) = struct.unpack_from("<i", data, at)
        self._fields = at - back
        if self._fields < 0:
            raise ValueError("a list of fields outside of its table")
        (self._fields_bytes,) = struct.unpack_from("<H", data, self._fields)

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        """Return the table that a FlatBuffer consists of."""
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def field(self, number: int) -> int:
        """Return the offset of a field; -1: it has its default."""
        place = 4 + 2 * number
        if place + 2 > self._fields_bytes:
            return -1
        (offset,) = struct.unpack_from("<H", self.data, self._fields + place)
        return self._at + offset if offset else -1

    def reference(self, number: int) -> int:
        """Return the offset to which a field points; -1: it points nowhere."""
        at = self.field(number)
        return -1 if at < 0 else at + struct.unpack_from("<I", self.data, at)[0]
