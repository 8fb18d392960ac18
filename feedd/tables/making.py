"""Converts an object in a worker: within its memory, some ranges at a time, by the converter that the task names."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from feedd.errors import BadShard, FeeddError
from feedd.formats.framing import limited_index
from feedd.formats.refused import say_packed
from feedd.formats.table import TableFormat
from feedd.tables.files import FileOut, MappedObject
from feedd.tables.memory import at_most, call_limit
from feedd.tables.registry import get, is_unpacked
from feedd.tables.task import ConvertedShard, MissingRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.protocols import PartialObject, PlacedWriter, ShardConverter
    from feedd.shard_index import IndexLimits, ShardIndex
    from feedd.tables.task import MakeTask, TablePlan
    from feedd.values import ByteRange

_HEAD_BYTES: Final = 8
_TABLE: Final = TableFormat()


def make_shard(task: MakeTask, limits: IndexLimits, memory_bytes: int = 0) -> ConvertedShard | MissingRanges:
    """Convert the available ranges of an object into a shard, or return which ranges are missing.

    Args:
        task: the object, and where the shard goes; the descriptors stay the caller's.
        limits: of the shard's index.
        memory_bytes: ``decode.memory``; 0: no limit.

    Raises:
        BadShard: the object's bytes are broken, or the conversion needs more memory than one call may take.
        Unsupported: the conversion is unknown, or its library is missing.
        ResourceExhausted: not enough memory for the shard.
    """
    began_s = time.perf_counter()
    url, name, params = task.url, task.conversion.name, task.conversion.params
    converter = get(name)
    with MappedObject(task.source_fd, task.size_bytes, task.spans) as held:
        call_bytes = call_limit(memory_bytes, task.size_bytes)
        sizes = task.limit_bytes, task.memory_bytes
        out = FileOut(task.out_fd, task.out_at, *sizes, url, entry_bytes=task.entry_bytes, call_bytes=call_bytes)
        try:
            with at_most(out.free_bytes, url, call_bytes):
                if task.groups:
                    assert isinstance(converter, WritesGroups), "only planned tables are made of row groups"
                    size_bytes = converter.make_groups(held, url, params, out, task.groups)
                    return ConvertedShard(size_bytes, _TABLE.name, time.perf_counter() - began_s)
                ranges, plan = _wanted(converter, held, params)
                missing = tuple(span for span in ranges if not held.holds(span))
            if missing:
                _check(missing, task)
                return MissingRanges(missing, plan)
            with at_most(out.free_bytes, url, call_bytes), limited_index(limits):
                format_name = converter.make(held, url, params, out)
        except BadShard as error:
            if is_unpacked(name):
                say_packed(error, bytes(held.data[:_HEAD_BYTES]), name)
            raise
    index = _index(task, out.at) if format_name == _TABLE.name else None
    return ConvertedShard(out.at, format_name, time.perf_counter() - began_s, index)


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


def _index(task: MakeTask, size_bytes: int) -> ShardIndex | None:
    """Return the index of the table just written if it is regular, because then its foot tells everything."""
    if 0 <= task.entry_bytes < size_bytes:
        return None  # the foot was not written
    # If the table cannot be read, the request for its index tells why.
    with (
        suppress(FeeddError, OSError, ValueError, BufferError),
        MappedObject(task.out_fd, task.out_at + size_bytes) as file,
        file.data[task.out_at :] as table,
    ):
        return _TABLE.regular_index(table, task.url)
    return None


def _check(wanted: Sequence[ByteRange], task: MakeTask) -> None:
    """Refuse ranges outside of the object, which a broken object may ask for."""
    for span in wanted:
        if span.end > task.size_bytes:
            raise BadShard(
                f"expected ranges within {task.size_bytes} bytes, got bytes {span.start} to {span.end}",
                object=task.url,
                stage="decode",
            )
