"""The pool's call that converts an object into a shard."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from feedd.errors import BadShard
from feedd.shard_index import NO_LIMITS
from feedd.tables.registry import is_outline
from feedd.tables.task import ConvertedShard, MissingRanges, RowGroups, TablePlan
from feedd.values import ByteRange
from feedd.workers.index_columns import unpack_regular
from feedd.workers.messages import ConvertedAnswer, MakeRequest, NeedRanges, Packet, encode

if TYPE_CHECKING:
    from feedd.shard_index import IndexLimits
    from feedd.tables.task import MakeTask
    from feedd.workers.messages import Answer

_SLOWEST_BYTES_PER_S: Final = 1 << 20  # bytes read; bzip2 at its slowest reads four times as much
_LEAST_LONG_S: Final = 1.0
_OUTLINE_BYTES_MAX: Final = 8 << 20  # of text, as many rows are read in a tenth of a second
LONG_STREAM: Final = -1
"""Queue of long conversions. It is separate, so that short calls never wait behind them."""


def missing_ranges(answer: NeedRanges) -> MissingRanges:
    """Return what a worker's answer says."""
    told = answer.plan
    if told is None:
        return MissingRanges(tuple(ByteRange(*span) for span in answer.spans))
    groups = tuple(
        RowGroups(group, row, tuple(ByteRange(*span) for span in spans)) for group, row, spans in told.groups
    )
    index = None if told.index is None else unpack_regular(told.index)
    plan = TablePlan(told.size_bytes, groups, index)
    return MissingRanges(plan.ranges, plan)


class MakeCall:
    """``DecodePool.make``."""

    rows = 1

    def __init__(self, task: MakeTask, limits: IndexLimits = NO_LIMITS) -> None:
        self._task, self._limits = task, limits
        self._held_bytes = sum(span.size_bytes for span in task.spans)
        self.outcome: ConvertedShard | MissingRanges = MissingRanges(())

    @property
    def stream(self) -> int:
        """The queue of short calls for an outline, because an open waits for that."""
        return LONG_STREAM if self.long_s else 0

    @property
    def long_s(self) -> float:
        """Extra seconds, in proportion to the bytes to read; none for an outline of few bytes."""
        if self._held_bytes <= _OUTLINE_BYTES_MAX and is_outline(self._task.conversion):
            return 0.0
        return _LEAST_LONG_S + self._held_bytes / _SLOWEST_BYTES_PER_S

    def packet(self, rows: range, request_id: int) -> Packet:  # noqa: ARG002 - the protocol's names
        """Return the request."""
        task = self._task
        spans = tuple((span.start, span.end) for span in task.spans)
        sizes = (task.size_bytes, spans, task.out_at, task.limit_bytes, task.memory_bytes, task.entry_bytes)
        groups = task.groups.start, task.groups.stop
        params = zlib.compress(task.conversion.params.encode())
        request = MakeRequest(request_id, task.conversion.name, params, task.url, *sizes, groups, self._limits)
        return Packet(encode(request), (task.source_fd, task.out_fd))

    def accept(self, rows: range, answer: Answer, fds: list[int]) -> None:  # noqa: ARG002 - the protocol's names
        """Store the converted shard, or the ranges that are still needed."""
        if isinstance(answer, NeedRanges):
            self.outcome = missing_ranges(answer)
            return
        assert isinstance(answer, ConvertedAnswer)
        index = None if answer.index is None else unpack_regular(answer.index)
        self.outcome = ConvertedShard(answer.size_bytes, answer.format_name, answer.busy_s, index)

    def give_up(self, rows: range, reason: str) -> None:  # noqa: ARG002 - the protocol's names
        """Report the object as unreadable.

        Raises:
            BadShard: always.
        """
        raise BadShard(
            f"expected to convert the object to a shard, got an object that killed two workers ({reason})",
            object=self._task.url,
            stage="decode",
        )
