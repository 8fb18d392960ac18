"""The calls of a pool: how each builds requests for some of its rows, and what it does with the answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from feedd import errors
from feedd.recipe.recipe import pinned_as
from feedd.workers import index_columns as columns
from feedd.workers import request_split as split
from feedd.workers.descriptors import out_of_descriptors
from feedd.workers.fixed_width import plain_numbers
from feedd.workers.messages import (
    Answer,
    ColumnMessage,
    Decoded,
    Failed,
    Gathered,
    GatherRequest,
    Indexed,
    IndexRequest,
    Measured,
    Packet,
    Pinned,
    PinRequest,
    encode,
)
from feedd.workers.work import BadRow, DecodeResult, Piece

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from feedd.shard_index import ShardIndex
    from feedd.values import FieldRecipe, ShardFile
    from feedd.workers.poison import Poison
    from feedd.workers.work import DecodeTask, FieldWork, GatherTask


FILES_MAX: Final = 1 << 16  # file numbers take two bytes
_ROW_BYTES: Final = 6  # two for the file's number, four for the sample's, of which a shard has 2**26 at most
_PART_ROWS: Final = 4096
_ROWS_BYTES_MAX: Final = 72 << 10  # a request must fit one packet, with its other parts


def _error_classes(root: type[errors.FeeddError]) -> dict[str, type[errors.FeeddError]]:
    classes = {root.kind: root}
    for child in root.__subclasses__():
        classes |= _error_classes(child)
    return classes


_BY_KIND = _error_classes(errors.FeeddError)


def error_of(answer: Failed) -> errors.FeeddError:
    """Return the error that a worker raised."""
    kind = _BY_KIND.get(answer.kind, errors.Internal)
    return kind(answer.message, object=answer.object, hint=answer.hint, stage="decode")


class Work(Protocol):
    """The work of one call, done some rows at a time."""

    @property
    def stream(self) -> int:
        """The stream that the work belongs to: the arena to write to; 0 for work before any batch."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def long_s(self) -> float:
        """Extra seconds that a row may take. Above 0, the worker gets no other work meanwhile."""

    def packet(self, rows: range, request_id: int) -> Packet:
        """Return the request for ``rows``."""

    def accept(self, rows: range, answer: Answer, fds: list[int]) -> None:
        """Process the answer for ``rows``; descriptors stay the caller's."""

    def give_up(self, rows: range, reason: str) -> None:
        """Do without ``rows``, which killed two workers. Raises if the call has no result without them."""


def without(work: FieldWork, rows: Iterable[int]) -> FieldWork:
    """Return the field with some rows marked as missing."""
    size = work.size.copy()
    size[list(rows)] = -1
    return replace(work, size=size)


class _Short:
    """Base of most calls: their rows take no extra time."""

    long_s = 0.0


class DecodeCall(_Short):
    """``DecodePool.decode``."""

    def __init__(self, task: DecodeTask, poison: Poison) -> None:
        self._poison = poison
        self._known = poison.rows(task.files, task.fields)
        self._task = task
        if self._known:
            self._task = replace(task, fields=(without(task.fields[0], self._known), *task.fields[1:]))
        self._bad: list[BadRow] = []
        self._busy_s = 0.0

    @property
    def stream(self) -> int:
        """Id of the arena."""
        return self._task.arena_id

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return len(self._task.seeds)

    @property
    def result(self) -> DecodeResult:
        """Bad rows and busy time so far."""
        return DecodeResult(tuple(sorted(self._bad)), self._busy_s)

    def packet(self, rows: range, request_id: int) -> Packet:
        """Return the request for ``rows``."""
        return split.decode_packet(self._task, rows, request_id)

    def accept(self, rows: range, answer: Answer, fds: list[int]) -> None:  # noqa: ARG002 - the protocol's names
        """Add bad rows and busy time."""
        assert isinstance(answer, Decoded)
        self._busy_s += answer.busy_s
        names = [work.recipe.name for work in self._task.fields]
        for row, field, reason in answer.bad:
            at = rows.start + row
            self._bad.append(BadRow(at, names[field], self._known.get(at, reason)))

    def give_up(self, rows: range, reason: str) -> None:
        """Report the rows as bad."""
        task, reason = self._task, f"worker died: {reason}"
        for row in rows:
            self._bad.append(BadRow(row, task.fields[0].recipe.name, reason))
            self._poison.add(task.files, task.fields, row, reason)


class MeasureCall(_Short):
    """``DecodePool.measure`` and ``DecodePool.numbers``."""

    stream = 0

    def __init__(
        self, files: Sequence[ShardFile], work: FieldWork, ndim: int, poison: Poison, *, values: bool = False
    ) -> None:
        known = poison.rows(files, (work,))
        self._files = files
        self._values = values
        self._work = without(work, known) if known else work
        self._poison = poison
        self.shapes: NDArray[np.int64] = np.full((len(work.size), ndim), -1, np.int64)

    @property
    def rows(self) -> int:
        """Rows to measure."""
        return len(self.shapes)

    def packet(self, rows: range, request_id: int) -> Packet:
        """Return the request for ``rows``."""
        return split.measure_packet(self._files, self._work, rows, request_id, values=self._values)

    def accept(self, rows: range, answer: Answer, fds: list[int]) -> None:  # noqa: ARG002 - the protocol's names
        """Store the shapes."""
        assert isinstance(answer, Measured)
        shapes = np.frombuffer(answer.shapes, "<i8").reshape(len(rows), -1)
        self.shapes[rows.start : rows.stop] = shapes

    def give_up(self, rows: range, reason: str) -> None:
        """Leave -1 and remember the rows, so that decode reports them."""
        for row in rows:
            self._poison.add(self._files, (self._work,), row, f"worker died: {reason}")


class ProduceCall(MeasureCall):
    """``DecodePool.produce``: measures and keeps the decoded values."""

    def __init__(self, files: Sequence[ShardFile], work: FieldWork, dtype: str, poison: Poison) -> None:
        super().__init__(files, work, 1, poison)
        self._dtype = np.dtype(dtype)
        self.pieces: list[Piece] = []

    def packet(self, rows: range, request_id: int) -> Packet:
        """Return the request for ``rows``."""
        return split.measure_packet(self._files, self._work, rows, request_id, keep=True)

    def accept(self, rows: range, answer: Answer, fds: list[int]) -> None:
        """Store lengths and values; values that were lost on the way are decoded again later."""
        super().accept(rows, answer, fds)
        assert isinstance(answer, Measured)
        if not fds or not answer.retained_rows:
            return
        kept = range(rows.start, rows.start + answer.retained_rows)
        size_bytes = int(np.maximum(self.shapes[kept.start : kept.stop], 0).sum()) * self._dtype.itemsize
        values = columns.mapped(fds[0], size_bytes)
        self.pieces.append(Piece(kept, np.frombuffer(values, self._dtype)))


class IndexCall(_Short):
    """``DecodePool.index``."""

    rows, stream = 1, 0

    def __init__(self, file: ShardFile, format_name: str) -> None:
        self._file = file
        self._format_name = format_name
        self.index: ShardIndex | None = None

    def packet(self, rows: range, request_id: int) -> Packet:  # noqa: ARG002 - the protocol's names
        """Return the request."""
        (file,), fds = split.file_messages((self._file,))
        return Packet(encode(IndexRequest(request_id, file, self._format_name)), fds)

    def accept(self, rows: range, answer: Answer, fds: list[int]) -> None:  # noqa: ARG002 - the protocol's names
        """Read the index's columns.

        Raises:
            ResourceExhausted: they were lost, because this process may open no more files.
        """
        assert isinstance(answer, Indexed)
        if not fds:
            raise out_of_descriptors()
        self.index = columns.unpack(fds[0], answer)

    def give_up(self, rows: range, reason: str) -> None:  # noqa: ARG002 - the protocol's names
        """Report the shard as unreadable.

        Raises:
            BadShard: always.
        """
        raise errors.BadShard(
            f"expected to read the shard's framing, got a shard that killed two workers ({reason})",
            object=self._file.ref.url,
            stage="decode",
        )


class PinCall(_Short):
    """Resolves one ``npy`` field, for ``DecodePool.resolve``."""

    rows, stream = 1, 0

    def __init__(self, file: ShardFile, recipe: FieldRecipe, start: int, size: int) -> None:
        self._file = file
        self._span = (start, size)
        self.recipe = recipe

    def packet(self, rows: range, request_id: int) -> Packet:  # noqa: ARG002 - the protocol's names
        """Return the request."""
        (file,), fds = split.file_messages((self._file,))
        return Packet(encode(PinRequest(request_id, file, *self._span, self.recipe.encoding)), fds)

    def accept(self, rows: range, answer: Answer, fds: list[int]) -> None:  # noqa: ARG002 - the protocol's names
        """Take dtype and dimensions from the answer."""
        assert isinstance(answer, Pinned)
        self.recipe = pinned_as(self.recipe, answer.params)

    def give_up(self, rows: range, reason: str) -> None:  # noqa: ARG002 - the protocol's names
        """Report the sample as undecodable.

        Raises:
            BadSample: always.
        """
        raise errors.BadSample(
            f"expected to read a first {self.recipe.name}, got a sample that killed two workers ({reason})",
            object=self._file.ref.url,
            stage="decode",
        )


class GatherCall(_Short):
    """``DecodePool.gather``. Its units are batches, or parts of batches that are too large for one request.

    The position of a row follows from its number, so a request takes six bytes a row, however many fields there are.
    If the rows of each batch are successive samples of a file, the first row of a batch tells the others. Rows that
    cannot be copied are only counted here; decoding them one by one tells why.
    """

    def __init__(self, task: GatherTask) -> None:
        self._task = task = task if task.are_firsts else _in_parts(task)
        self._starts = np.concatenate(([0], task.batch_ends[:-1]))
        self._are_consecutive = task.are_firsts or _are_consecutive(task, self._starts)
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
        rows = 1 if self._are_consecutive else max(int((self._task.batch_ends - self._starts).max()), 1)
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
        used = np.flatnonzero(np.bincount(file_no, minlength=len(task.files)))
        if len(used) < len(task.files):
            renumber = np.zeros(len(task.files), np.uint16)
            renumber[used] = np.arange(len(used), dtype=np.uint16)
            file_no = renumber[file_no]
        files, fds = split.file_messages([task.files[number] for number in used.tolist()])
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
        request = GatherRequest(
            request_id,
            files,
            task.arena_id,
            columns,
            file_no.astype("<u2", copy=False).tobytes() if len(used) > 1 else b"",
            ordinal.astype("<u4").tobytes(),
            tuple((task.batch_ends[rows.start : rows.stop] - low).tolist()),
            task.out_at[rows.start : rows.stop].astype("<i8", copy=False).tobytes(),
            self._are_consecutive,
        )
        return Packet(encode(request), fds)

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
    plains = [plain_numbers(column.recipe) for column in task.columns]
    out_bytes = np.array([plain.out_bytes for plain in plains if plain is not None])
    return replace(task, batch_ends=ends, out_at=task.out_at[batch] + before[:, np.newaxis] * out_bytes)
