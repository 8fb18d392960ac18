"""The pool's call that copies batches of numbers."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.workers import request_split as split
from feedd.workers.calls import Short
from feedd.workers.fixed_width import plain_numbers
from feedd.workers.messages import ColumnMessage, Gathered, GatherRequest, Packet, encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.workers.fixed_width import Plain
    from feedd.workers.messages import Answer
    from feedd.workers.work import GatherTask

FILES_MAX: Final = 1 << 16  # file numbers take two bytes
_ROW_BYTES: Final = 6  # two for the file's number, four for the sample's, of which a shard has 2**26 at most
_PART_ROWS: Final = 4096
_ROWS_BYTES_MAX: Final = 72 << 10  # a request must fit one packet, with its other parts


class GatherCall(Short):
    """``DecodePool.gather``. Its units are batches, or parts of batches that are too large for one request.

    The position of a row follows from its number, so a request takes six bytes a row, however many fields there are.
    If the rows of each batch are successive samples of a file, the first row of a batch tells the others. The rows of a
    run's batches travel in the slot, where the batches will lie. Rows that cannot be copied are only counted here;
    decoding them one by one tells why.

    Args:
        task: the task.
        arena_fd: the arena that the task names; -1: rows must travel in requests.
    """

    def __init__(self, task: GatherTask, arena_fd: int = -1) -> None:
        self._task = task = task if task.are_firsts else _in_parts(task)
        self._starts = np.concatenate(([0], task.batch_ends[:-1]))
        self._are_consecutive = task.are_firsts or _are_consecutive(task, self._starts)
        self._out_bytes = np.array([plain.out_bytes for plain in _plains(task)])
        may_write = arena_fd >= 0 and task.in_order and not self._are_consecutive
        self._arena_fd = arena_fd if may_write and self._out_bytes.sum() >= _ROW_BYTES else -1
        self._undone: list[NDArray[np.int64]] = []
        self.busy_s = 0.0

    @property
    def stream(self) -> int:
        """Id of the arena."""
        return self._task.arena_id

    @property
    def rows(self) -> int:
        """Number of units."""
        return len(self._task.batch_ends)

    @property
    def request_units(self) -> int:
        """How many units fit into one request, at least 1."""
        rows = (
            1
            if self._are_consecutive or self._arena_fd >= 0
            else max(int((self._task.batch_ends - self._starts).max()), 1)
        )
        return max(_ROWS_BYTES_MAX // (_ROW_BYTES * rows + 8 * len(self._task.columns)), 1)

    @property
    def undone(self) -> NDArray[np.int64]:
        """Rows that were not copied, ascending."""
        return np.sort(np.concatenate([np.zeros(0, np.int64), *self._undone]))

    def packet(self, rows: range, request_id: int) -> Packet:
        """Return the request for some units."""
        task = self._task
        low, high = int(self._starts[rows.start]), int(task.batch_ends[rows.stop - 1])
        file_no, ordinal = self._rows(rows, low, high)
        used = (
            np.flatnonzero(np.bincount(file_no, minlength=len(task.files))) if len(task.files) > 1 else np.zeros(1, int)
        )
        if len(used) < len(task.files):
            renumber = np.zeros(len(task.files), np.uint16)
            renumber[used] = np.arange(len(used), dtype=np.uint16)
            file_no = renumber[file_no]
        files, fds, opened = split.file_messages([task.files[number] for number in used.tolist()])
        columns = tuple(
            ColumnMessage(
                column.recipe.name,
                column.recipe.codec,
                column.recipe.params,
                column.recipe.encoding,
                tuple(column.at[used].tolist()),
                tuple(column.step_bytes[used].tolist()),
            )
            for column in task.columns
        )
        told = file_no.astype("<u2", copy=False).tobytes() if len(used) > 1 else b"", ordinal.astype("<u4").tobytes()
        rows_at = self._written(rows, *told)
        request = GatherRequest(
            request_id,
            files,
            task.arena_id,
            columns,
            *(told if rows_at < 0 else (b"", b"")),
            tuple((task.batch_ends[rows.start : rows.stop] - low).tolist()),
            task.out_at[rows.start : rows.stop].astype("<i8", copy=False).tobytes(),
            self._are_consecutive,
            rows_at,
        )
        return Packet(encode(request), fds, opened)

    def _written(self, units: range, file_no: bytes, ordinal: bytes) -> int:
        """Write the rows of some units to where their batches will lie; return the offset. -1: there is no room."""
        if self._arena_fd < 0:
            return -1
        first, last = units.start, units.stop - 1
        start = int(self._task.out_at[first].min())
        last_rows = self._task.batch_ends[last] - self._starts[last]
        end = int((self._task.out_at[last] + last_rows * self._out_bytes).max())
        if len(ordinal) + len(file_no) > end - start:
            return -1
        os.pwritev(self._arena_fd, (ordinal, file_no), start)  # memory, not a disk
        return start

    def _rows(self, units: range, low: int, high: int) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
        """Return file and sample of the rows from ``low`` to ``high``, or of the first row of each unit."""
        task = self._task
        if task.are_firsts:
            return task.file_no[units.start : units.stop], task.ordinal[units.start : units.stop]
        if self._are_consecutive:
            firsts = self._starts[units.start : units.stop]
            return task.file_no[firsts], task.ordinal[firsts]
        return task.file_no[low:high], task.ordinal[low:high]

    def accept(self, rows: range, answer: Answer, fds: list[int]) -> None:  # noqa: ARG002 - the protocol's names
        """Keep the rows that were not copied."""
        assert isinstance(answer, Gathered)
        self.busy_s += answer.busy_s
        if answer.undone:
            self._undone.append(np.frombuffer(answer.undone, "<i4").astype(np.int64) + self._starts[rows.start])

    def give_up(self, rows: range, reason: str) -> None:  # noqa: ARG002 - the protocol's names
        """Leave units that killed two workers: decoding their rows one by one tells which of them did."""
        low, high = int(self._starts[rows.start]), int(self._task.batch_ends[rows.stop - 1])
        self._undone.append(np.arange(low, high, dtype=np.int64))


def _are_consecutive(task: GatherTask, starts: NDArray[np.int64]) -> bool:
    """Whether each batch has at least one row, and its rows are successive samples of one file."""
    if not len(starts) or (task.batch_ends <= starts).any():
        return False
    first = slice(0, int(task.batch_ends[0]))  # of other orders, the first batch alone tells it
    if (np.diff(task.ordinal[first]) != 1).any():
        return False
    follows = (np.diff(task.ordinal) == 1) & (np.diff(task.file_no) == 0)
    follows[starts[1:] - 1] = True
    return bool(follows.all())


def _in_parts(task: GatherTask) -> GatherTask:
    """Return the task with large batches cut into parts of ``_PART_ROWS``."""
    sizes = np.diff(task.batch_ends, prepend=0)
    if not len(sizes) or sizes.max() <= _PART_ROWS:
        return task
    counts = np.maximum(-(-sizes // _PART_ROWS), 1)
    batch = np.repeat(np.arange(len(sizes)), counts)
    before = (np.arange(len(batch)) - np.repeat(np.cumsum(counts) - counts, counts)) * _PART_ROWS  # rows of the batch
    ends = task.batch_ends[batch] - sizes[batch] + np.minimum(before + _PART_ROWS, sizes[batch])
    out_bytes = np.array([plain.out_bytes for plain in _plains(task)])
    out_at = task.out_at[batch] + before[:, np.newaxis] * out_bytes
    return replace(task, batch_ends=ends, out_at=out_at, in_order=False)


def _plains(task: GatherTask) -> list[Plain]:
    plains = (plain_numbers(column.recipe) for column in task.columns)
    return [plain for plain in plains if plain is not None]
