"""What the daemon asks a worker to convert, and what the worker answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedd.conversion import Conversion
    from feedd.shard_index import ShardIndex
    from feedd.values import ByteRange


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Successive row groups of an object, which can be converted without the others. They follow those before.

    Attributes:
        group_end: number of the first row group behind them.
        row_end: number of the first row behind them.
        ranges: ranges of the object that hold the wanted values.
    """

    group_end: int
    row_end: int
    ranges: tuple[ByteRange, ...]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table that can be written some row groups at a time.

    Attributes:
        size_bytes: size of the table.
        groups: all row groups, in order.
        index: index of the table; None: it is too large for a message.
    """

    size_bytes: int
    groups: tuple[RowGroups, ...]
    index: ShardIndex | None

    @property
    def ranges(self) -> tuple[ByteRange, ...]:
        """The ranges of all row groups."""
        return tuple(span for one in self.groups for span in one.ranges)


@dataclass(frozen=True, slots=True)
class MakeTask:
    """One object to convert into a shard.

    Attributes:
        conversion: what makes the shard.
        url: URL of the object.
        size_bytes: size of the object.
        spans: available ranges of the object, in order.
        source_fd: file as long as the object; only ``spans`` of it hold the object's bytes.
        out_fd: file to write to.
        out_at: offset of the shard's first byte in that file.
        limit_bytes: maximum size of the shard.
        memory_bytes: memory available for the shard and for its conversion.
        entry_bytes: bytes of the shard beyond this size are counted but not written; negative: all are written.
        groups: row groups to write to their places in the table (``TablePlan``); empty: the whole shard is made.
    """

    conversion: Conversion
    url: str
    size_bytes: int
    spans: tuple[ByteRange, ...]
    source_fd: int
    out_fd: int
    out_at: int
    limit_bytes: int
    memory_bytes: int
    entry_bytes: int = -1
    groups: range = range(0)


@dataclass(frozen=True, slots=True)
class ConvertedShard:
    """A converted shard.

    Attributes:
        size_bytes: size of the shard.
        format_name: format that indexes it.
        busy_s: seconds that a worker spent on it.
        index: its index, if the conversion tells it; None: it must be read.
    """

    size_bytes: int
    format_name: str
    busy_s: float
    index: ShardIndex | None = None


@dataclass(frozen=True, slots=True)
class MissingRanges:
    """What a conversion lacks.

    Attributes:
        ranges: ranges of the object that must be available before the conversion.
        plan: how the shard, which is a table, can be written; None: only the conversion tells its size.
    """

    ranges: tuple[ByteRange, ...]
    plan: TablePlan | None = None
