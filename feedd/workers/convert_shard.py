"""A worker's answer to a request to convert an object into a shard."""

from __future__ import annotations

import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from feedd.errors import BadShard, FeeddError
from feedd.formats.framing import limited_index
from feedd.formats.refused import say_packed
from feedd.formats.table import TableFormat
from feedd.shard_index import IndexLimits
from feedd.tables.files import FileOut, MappedObject
from feedd.tables.memory import at_most, call_limit
from feedd.tables.registry import get, is_unpacked
from feedd.values import ByteRange
from feedd.workers.index_columns import indexed
from feedd.workers.messages import ConvertedAnswer, NeedRanges, TablePlanMessage, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.protocols import PartialObject, PlacedWriter, ShardConverter
    from feedd.tables.task import TablePlan
    from feedd.workers.messages import Indexed, MakeRequest

_HEAD_BYTES: Final = 8
_INDEX_BYTES_MAX: Final = 32 << 10  # of the 96 KiB of an answer
_TABLE: Final = TableFormat()


def make_shard(request: MakeRequest, fds: Sequence[int], memory_bytes: int = 0) -> ConvertedAnswer | NeedRanges:
    """Convert the available ranges of an object into a shard, or return which ranges are missing.

    Args:
        request: the request.
        fds: descriptors of the object and of the file to write; they stay the caller's.
        memory_bytes: ``decode.memory``; 0: no limit.

    Raises:
        BadShard: the object's bytes are broken, or the conversion needs more memory than one call may take.
        Unsupported: the conversion is unknown, or its library is missing.
        ResourceExhausted: not enough memory for the shard.
    """
    began_s = time.perf_counter()
    source, target = fds
    params = zlib.decompress(request.params).decode()
    converter = get(request.converter)
    spans = [ByteRange(*span) for span in request.spans]
    with MappedObject(source, request.size_bytes, spans) as held:
        limits = request.limit_bytes, request.memory_bytes
        call_bytes = call_limit(memory_bytes, request.size_bytes)
        entry_bytes = request.entry_bytes
        out = FileOut(target, request.out_at, *limits, request.url, entry_bytes=entry_bytes, call_bytes=call_bytes)
        try:
            with at_most(out.free_bytes, request.url, call_bytes):
                if groups := range(*request.groups):
                    assert isinstance(converter, WritesGroups), "only planned tables are made of row groups"
                    size_bytes = converter.make_groups(held, request.url, params, out, groups)
                    return ConvertedAnswer(request.id, time.perf_counter() - began_s, size_bytes, _TABLE.name)
                ranges, plan = _wanted(converter, held, params)
                wanted = [span for span in ranges if not held.holds(span)]
            if wanted:
                _check(wanted, request)
                told = None if plan is None else _message(plan)
                spans_wanted = () if told is not None else tuple((span.start, span.end) for span in wanted)
                return NeedRanges(request.id, time.perf_counter() - began_s, spans_wanted, told)
            with at_most(out.free_bytes, request.url, call_bytes), limited_index(IndexLimits(*request.limits)):
                format_name = converter.make(held, request.url, params, out)
        except BadShard as error:
            if is_unpacked(request.converter):
                say_packed(error, bytes(held.data[:_HEAD_BYTES]), request.converter)
            raise
    index = _index(request, target, out.at) if format_name == _TABLE.name else None
    return ConvertedAnswer(request.id, time.perf_counter() - began_s, out.at, format_name, index)


@runtime_checkable
class WritesGroups(Protocol):
    """A converter of tables that may know the layout of the table before it has the values."""

    def wanted_and_plan(self, held: PartialObject, params: str) -> tuple[tuple[ByteRange, ...], TablePlan | None]:
        """Return the same as ``ShardConverter.wanted``, and how the table can be written, if that is known."""

    def make_groups(self, held: PartialObject, url: str, params: str, out: PlacedWriter, groups: range) -> int:
        """Write some row groups to their places in the table; return the size of the table, or -1: it is not known."""


def _wanted(
    converter: ShardConverter, held: PartialObject, params: str
) -> tuple[tuple[ByteRange, ...], TablePlan | None]:
    if isinstance(converter, WritesGroups):
        return converter.wanted_and_plan(held, params)
    return converter.wanted(held, params), None


def _message(plan: TablePlan) -> TablePlanMessage:
    groups = tuple(
        (one.group_end, one.row_end, tuple((span.start, span.end) for span in one.ranges)) for one in plan.groups
    )
    index = None if plan.index is None else indexed(0, 0.0, plan.index)
    if index is not None and len(encode(index)) > _INDEX_BYTES_MAX:
        index = None
    return TablePlanMessage(plan.size_bytes, groups, index)


def _index(request: MakeRequest, target: int, size_bytes: int) -> Indexed | None:
    """Return the index of the table just written if it is regular, because then its foot tells everything."""
    if 0 <= request.entry_bytes < size_bytes:
        return None  # the foot was not written
    # If the table cannot be read, the request for its index tells why.
    with (
        suppress(FeeddError, OSError, ValueError, BufferError),
        MappedObject(target, request.out_at + size_bytes) as file,
        file.data[request.out_at :] as table,
    ):
        index = _TABLE.regular_index(table, request.url)
        message = None if index is None else indexed(request.id, 0.0, index)
        return message if message is not None and len(encode(message)) <= _INDEX_BYTES_MAX else None
    return None


def _check(wanted: Sequence[ByteRange], request: MakeRequest) -> None:
    """Refuse ranges outside of the object, which a broken object may ask for."""
    for span in wanted:
        if span.end > request.size_bytes:
            raise BadShard(
                f"expected ranges within {request.size_bytes} bytes, got bytes {span.start} to {span.end}",
                object=request.url,
                stage="decode",
            )
