"""Conversions as messages between daemon and worker."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from feedd.conversion import Conversion
from feedd.tables.task import ConvertedShard, MakeTask, MissingRanges, RowGroups, TablePlan
from feedd.values import ByteRange
from feedd.workers.index_columns import indexed, unpack_regular
from feedd.workers.messages import ConvertedAnswer, MakeRequest, NeedRanges, TablePlanMessage, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.shard_index import IndexLimits, ShardIndex
    from feedd.workers.messages import Indexed

_INDEX_BYTES_MAX: Final = 32 << 10  # of the 96 KiB of an answer


def request_of(request_id: int, task: MakeTask, limits: IndexLimits) -> MakeRequest:
    """Return a task as a request; its two descriptors travel beside it."""
    sizes = (task.size_bytes, _pairs(task.spans), task.out_at, task.limit_bytes, task.memory_bytes, task.entry_bytes)
    groups = task.groups.start, task.groups.stop
    params = zlib.compress(task.conversion.params.encode())
    return MakeRequest(request_id, task.conversion.name, params, task.url, *sizes, groups, limits)


def task_of(request: MakeRequest, fds: Sequence[int]) -> MakeTask:
    """Return the task of a request; ``fds``: of the object and of the file to write."""
    conversion = Conversion(request.converter, zlib.decompress(request.params).decode())
    sizes = request.limit_bytes, request.memory_bytes, request.entry_bytes
    spans, groups = _spans(request.spans), range(*request.groups)
    source_fd, out_fd = fds
    files = source_fd, out_fd, request.out_at
    return MakeTask(conversion, request.url, request.size_bytes, spans, *files, *sizes, groups)


def answer_of(request_id: int, busy_s: float, outcome: ConvertedShard | MissingRanges) -> ConvertedAnswer | NeedRanges:
    """Return what came of a task as an answer; an index that takes too much of it is left out."""
    if isinstance(outcome, ConvertedShard):
        index = _index_message(outcome.index)
        return ConvertedAnswer(request_id, outcome.busy_s, outcome.size_bytes, outcome.format_name, index)
    plan = outcome.plan
    if plan is None:
        return NeedRanges(request_id, busy_s, _pairs(outcome.ranges))
    groups = tuple((one.group_end, one.row_end, _pairs(one.ranges)) for one in plan.groups)
    return NeedRanges(request_id, busy_s, (), TablePlanMessage(plan.size_bytes, groups, _index_message(plan.index)))


def outcome_of(answer: ConvertedAnswer | NeedRanges) -> ConvertedShard | MissingRanges:
    """Return what an answer says.

    Raises:
        Internal: its index contradicts itself.
    """
    if isinstance(answer, ConvertedAnswer):
        index = None if answer.index is None else unpack_regular(answer.index)
        return ConvertedShard(answer.size_bytes, answer.format_name, answer.busy_s, index)
    told = answer.plan
    if told is None:
        return MissingRanges(_spans(answer.spans))
    groups = tuple(RowGroups(group, row, _spans(spans)) for group, row, spans in told.groups)
    plan = TablePlan(told.size_bytes, groups, None if told.index is None else unpack_regular(told.index))
    return MissingRanges(plan.ranges, plan)


def _pairs(spans: Iterable[ByteRange]) -> tuple[tuple[int, int], ...]:
    return tuple((span.start, span.end) for span in spans)


def _spans(pairs: Iterable[tuple[int, int]]) -> tuple[ByteRange, ...]:
    return tuple(ByteRange(*pair) for pair in pairs)


def _index_message(index: ShardIndex | None) -> Indexed | None:
    message = None if index is None else indexed(0, 0.0, index)
    return message if message is not None and len(encode(message)) <= _INDEX_BYTES_MAX else None
