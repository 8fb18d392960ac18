"""Joins RecordIO records that are split into several parts.

Writers split in two ways. dmlc's writer splits at each magic at a multiple of four in the payload, and omits that
magic. So the magic belongs between two parts, and every part but the last has a multiple of four bytes. SageMaker's
writer splits anywhere, and its parts are concatenated.

Parameters force ``dmlc`` or ``concat``. Without them, a shard with a part of another length is SageMaker's. Other
shards are dmlc's, unless the shard's name says protobuf and its first split record is a message only without the magic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.errors import BadShard, Unsupported
from feedd.formats.format_registry import format_for
from feedd.formats.protobuf import MessageReader, NotAMessage
from feedd.formats.recordio import MAGIC, PartsReader, head
from feedd.tables.ranges import WholeObject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.protocols import PartialObject, ShardWriter


JOIN: Final = "join"
DMLC, CONCAT = "dmlc", "concat"
_PROTOBUF: Final = "recordio-protobuf"
_MAGIC: Final = MAGIC.to_bytes(4, "little")
_STRIDE_BYTES: Final = 1 << 20
_FIELD_NUMBERS_MAX: Final = 5  # of aialgs.data.Record


class JoinConverter(WholeObject):
    """``protocols.ShardConverter`` for RecordIO with split records; stateless."""

    name = JOIN

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write every record in one part; see ``ShardConverter.make``."""
        if params not in {"", DMLC, CONCAT}:
            raise Unsupported(f"expected {DMLC} or {CONCAT}, got {params!r}", object=url, stage="decode")
        made = format_for(url)
        made = made if made.startswith("recordio") else "recordio"
        data = held.data
        records = PartsReader(data, url).records_in_parts()
        split = [parts for parts in records if len(parts) > 1]
        between = _MAGIC if (params or _dialect(data, split, protobuf=made == _PROTOBUF)) == DMLC else b""
        copied = 0  # whole records between split ones are copied together
        for parts in records:
            if len(parts) == 1:
                continue
            first, last = parts[0][0] - 8, parts[-1][1]
            _copy(data, copied, first, out)
            length = sum(end - start for start, end in parts) + len(between) * (len(parts) - 1)
            if length >= 1 << 29:
                raise BadShard(
                    f"expected a record below 512 MiB at byte {first}, got {length} bytes", object=url, stage="decode"
                )
            out.write(head(length))
            for number, (start, end) in enumerate(parts):
                if number:
                    out.write(between)
                _copy(data, start, end, out)
            out.write(bytes(-length % 4))
            copied = last + (-last % 4)
        _copy(data, copied, len(data), out)
        return made


def _copy(data: memoryview, start: int, end: int, out: ShardWriter) -> None:
    for at in range(start, end, _STRIDE_BYTES):
        out.write(data[at : min(at + _STRIDE_BYTES, end)])


def _dialect(data: memoryview, split: Sequence[Sequence[tuple[int, int]]], *, protobuf: bool) -> str:
    """Return the way in which a shard's records are split."""
    if any((end - start) % 4 for parts in split for start, end in parts[:-1]):
        return CONCAT
    if protobuf and split:
        pieces = [data[start:end] for start, end in split[0]]
        if not _is_record(_MAGIC.join(pieces)) and _is_record(b"".join(pieces)):
            return CONCAT
    return DMLC


def _is_record(payload: bytes) -> bool:
    try:
        fields = MessageReader(memoryview(payload), "").fields(0, len(payload))
        return all(1 <= number <= _FIELD_NUMBERS_MAX for number, _, _ in fields)
    except NotAMessage:
        return False


JOIN_CONVERTER: Final = JoinConverter()
