"""The calls of a pool: how each builds requests for some of its rows, and what it does with the answers."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from feedd import errors
from feedd.errors import CacheUnavailable
from feedd.flow.sink_file import OpenFile
from feedd.recipe.recipe import pinned_as
from feedd.shard_index import NO_LIMITS
from feedd.tables.registry import is_outline
from feedd.workers import index_columns as columns
from feedd.workers.fixed_width import plain_numbers
from feedd.workers.make_messages import outcome_of, request_of
from feedd.workers.messages import (
    Answer,
    ColumnMessage,
    ConvertedAnswer,
    Decoded,
    DecodeRequest,
    Failed,
    FieldMessage,
    FileMessage,
    Gathered,
    GatherRequest,
    Indexed,
    IndexRequest,
    Measured,
    MeasureRequest,
    NeedRanges,
    Packet,
    Pinned,
    PinRequest,
    encode,
    out_of_descriptors,
)
from feedd.workers.work import BadRow, DecodeResult, Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from feedd.conversion import Conversion
    from feedd.shard_index import IndexLimits, ShardIndex
    from feedd.tables.task import ConvertedShard, MakeTask, MissingRanges
    from feedd.values import FieldRecipe, ShardFile
    from feedd.workers.fixed_width import Plain
    from feedd.workers.work import DecodeTask, FieldWork, GatherTask


_SLOWEST_BYTES_PER_S: Final = 1 << 20  # bytes read; bzip2 at its slowest reads four times as much
_LEAST_LONG_S: Final = 1.0
_OUTLINE_BYTES_MAX: Final = 8 << 20  # of text, as many rows are read in a tenth of a second
LONG_STREAM: Final = -1
"""Queue of long conversions. It is separate, so that short calls never wait behind them."""


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


T = TypeVar("T")


class Short:
    """Base of most calls: their rows take no extra time."""

    long_s = 0.0


class DecodeCall(Short):
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
        return decode_packet(self._task, rows, request_id)

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


class MeasureCall(Short):
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
        return measure_packet(self._files, self._work, rows, request_id, values=self._values)

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
        return measure_packet(self._files, self._work, rows, request_id, keep=True)

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


class OneCall(Short, Generic[T]):
    """A call of one request, whose work is not divided: an index, a conversion, a first sample.

    Args:
        request: returns the request with an id.
        result: returns the result that an answer, and the descriptors that came with it, hold.
        failure: the error if the request kills two workers; gets the reason.
        long_s: extra seconds that the work may take.
    """

    rows = 1

    def __init__(
        self,
        request: Callable[[int], Packet],
        result: Callable[[Answer, list[int]], T],
        failure: Callable[[str], errors.FeeddError],
        long_s: float = 0.0,
    ) -> None:
        self._request, self._result, self._failure = request, result, failure
        self.long_s = long_s
        self.stream = LONG_STREAM if long_s else 0
        self._results: list[T] = []

    @property
    def result(self) -> T:
        """What came of the call."""
        return self._results[-1]

    def packet(self, rows: range, request_id: int) -> Packet:  # noqa: ARG002 - the protocol's names
        """Return the request."""
        return self._request(request_id)

    def accept(self, rows: range, answer: Answer, fds: list[int]) -> None:  # noqa: ARG002 - the protocol's names
        """Keep the result."""
        self._results.append(self._result(answer, fds))

    def give_up(self, rows: range, reason: str) -> None:  # noqa: ARG002 - the protocol's names
        """Report that there is no result.

        Raises:
            FeeddError: always.
        """
        raise self._failure(reason)


def index_call(file: ShardFile, format_name: str, object_bytes: int, limits: IndexLimits) -> OneCall[ShardIndex]:
    """Return the call that reads a shard's index, see ``DecodePool.index``."""

    def request(request_id: int) -> Packet:
        (message,), fds, opened = file_messages((file,))
        return Packet(encode(IndexRequest(request_id, message, format_name, object_bytes, limits)), fds, opened)

    def result(answer: Answer, fds: list[int]) -> ShardIndex:
        assert isinstance(answer, Indexed)
        if not fds:
            raise out_of_descriptors()
        return columns.unpack(fds[0], answer, limits.size_bytes)

    def failure(reason: str) -> errors.BadShard:
        message = f"expected to read the shard's framing, got a shard that killed two workers ({reason})"
        return errors.BadShard(message, object=file.ref.url, stage="decode")

    return OneCall(request, result, failure)


def pin_call(file: ShardFile, recipe: FieldRecipe, start: int, size: int) -> OneCall[FieldRecipe]:
    """Return the call that resolves one ``npy`` field by a sample, see ``DecodePool.resolve``."""

    def request(request_id: int) -> Packet:
        (message,), fds, opened = file_messages((file,))
        return Packet(encode(PinRequest(request_id, message, start, size, recipe.encoding)), fds, opened)

    def result(answer: Answer, _: list[int]) -> FieldRecipe:
        assert isinstance(answer, Pinned)
        return pinned_as(recipe, answer.params)

    def failure(reason: str) -> errors.BadSample:
        message = f"expected to read a first {recipe.name}, got a sample that killed two workers ({reason})"
        return errors.BadSample(message, object=file.ref.url, stage="decode")

    return OneCall(request, result, failure)


def make_call(task: MakeTask, limits: IndexLimits = NO_LIMITS) -> OneCall[ConvertedShard | MissingRanges]:
    """Return the call that converts an object, see ``DecodePool.make``.

    An outline of few bytes is no long call, because an open waits for it. Other conversions may take longer in
    proportion to the bytes to read.
    """

    def request(request_id: int) -> Packet:
        return Packet(encode(request_of(request_id, task, limits)), (task.source_fd, task.out_fd))

    def result(answer: Answer, _: list[int]) -> ConvertedShard | MissingRanges:
        assert isinstance(answer, ConvertedAnswer | NeedRanges)
        return outcome_of(answer)

    def failure(reason: str) -> errors.BadShard:
        message = f"expected to convert the object to a shard, got an object that killed two workers ({reason})"
        return errors.BadShard(message, object=task.url, stage="decode")

    held_bytes = sum(span.size_bytes for span in task.spans)
    is_short = held_bytes <= _OUTLINE_BYTES_MAX and is_outline(task.conversion)
    return OneCall(request, result, failure, 0.0 if is_short else _LEAST_LONG_S + held_bytes / _SLOWEST_BYTES_PER_S)


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
        files, fds, opened = file_messages([task.files[number] for number in used.tolist()])
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


_FEW_FILES: Final = 8  # up to this many files are all sent: choosing among them costs as much as the request


class SentFiles(NamedTuple):
    """What a worker needs to map files.

    Attributes:
        messages: one for each file.
        fds: the descriptors to send along.
        opened: files among them that are to be closed after that.
    """

    messages: tuple[FileMessage, ...]
    fds: tuple[int, ...]
    opened: tuple[OpenFile, ...] = ()


def file_messages(files: Sequence[ShardFile]) -> SentFiles:
    """Return what a worker needs to map files. Those that the cache could not keep open are opened.

    The cache has just opened and closed these files in a thread, so no open waits for the disk here.

    Raises:
        CacheUnavailable: a file cannot be opened.
    """
    fds: list[int] = []
    opened: list[OpenFile] = []
    found: list[FileMessage] = []
    for file in files:
        fd = file.fd
        if file.is_opened_late:
            opened.append(_opened(file))
            fd = opened[-1].fd
        given = -1
        if fd >= 0:
            given = len(fds)
            fds.append(fd)
        found.append(FileMessage(file.path, file.data_at, file.ref.size_bytes, file.ref.url, given))
    return SentFiles(tuple(found), tuple(fds), tuple(opened))


def _opened(file: ShardFile) -> OpenFile:
    try:
        # A FIFO that another process put there must not hold up the loop.
        opened = OpenFile(os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK))
        status = os.fstat(opened.fd)
    except OSError as error:
        raise CacheUnavailable(f"expected a file, got {error}", object=file.ref.url, stage="decode") from error
    if not stat.S_ISREG(status.st_mode) or status.st_size != file.data_at + file.ref.size_bytes:
        got = f"{stat.filemode(status.st_mode)} of {status.st_size} bytes at {file.path}"
        raise CacheUnavailable(f"expected a regular file of its length, got {got}", object=file.ref.url, stage="decode")
    return opened


def decode_packet(task: DecodeTask, rows: range, request_id: int) -> Packet:
    """Return the request to decode ``rows`` of ``task``."""
    files, renumber = _files(task.files, task.fields, rows)
    fields = tuple(_field(work, rows, renumber) for work in task.fields)
    seeds = task.seeds[rows.start : rows.stop].astype("<u8", copy=False).tobytes()
    request = DecodeRequest(request_id, files.messages, task.arena_id, task.slot_at, fields, seeds)
    return Packet(encode(request), files.fds, files.opened)


def measure_packet(
    files: Sequence[ShardFile],
    work: FieldWork,
    rows: range,
    request_id: int,
    *,
    values: bool = False,
    keep: bool = False,
) -> Packet:
    """Return the request to measure ``rows`` of one field, to read them as numbers, or to keep their values."""
    needed, renumber = _files(files, (work,), rows)
    request = MeasureRequest(request_id, needed.messages, _field(work, rows, renumber), values, keep)
    return Packet(encode(request), needed.fds, needed.opened)


def _files(
    files: Sequence[ShardFile], fields: Sequence[FieldWork], rows: range
) -> tuple[SentFiles, NDArray[np.int32] | None]:
    """Return the files that ``rows`` need, and their new numbers.

    The numbers are int32[files], by old number; None: unchanged.
    """
    if len(files) <= _FEW_FILES and len(rows) > 1:  # the request for a single row is kept as small as possible
        return file_messages(files), None
    needed = np.zeros(len(files), np.bool_)
    for work in fields:
        needed[work.file_no[rows.start : rows.stop]] = True
    used = np.flatnonzero(needed)
    renumber = np.zeros(len(files), np.int32)
    renumber[used] = np.arange(len(used))
    return file_messages([files[old] for old in used.tolist()]), renumber


def _field(work: FieldWork, rows: range, renumber: NDArray[np.int32] | None) -> FieldMessage:
    part = slice(rows.start, rows.stop)
    file_no = work.file_no[part] if renumber is None else renumber[work.file_no[part]]
    return FieldMessage(
        name=work.recipe.name,
        codec=work.recipe.codec,
        params=work.recipe.params,
        encoding=work.recipe.encoding,
        file_no=file_no.astype("<i4", copy=False).tobytes(),
        start=work.start[part].astype("<i8", copy=False).tobytes(),
        size=work.size[part].astype("<i8", copy=False).tobytes(),
        out_at=work.out_at[part].astype("<i8", copy=False).tobytes(),
        shape=b"" if work.shape is None else work.shape[part].astype("<i8", copy=False).tobytes(),
        pad=work.recipe.pad,
        dims=work.dims,
    )


REMEMBERED_S: Final = 3600.0
_ROWS_MAX: Final = 4096

_Spot = tuple[
    str, str, "Conversion | None", tuple[int, ...]
]  # the object's URL, version, conversion, and the starts of the fields


class Poison:
    """Rows that killed workers, by the fields that were requested. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[FieldRecipe, ...], dict[_Spot, tuple[str, float]]] = {}
        self._count = 0

    def add(self, files: Sequence[ShardFile], fields: Sequence[FieldWork], row: int, reason: str) -> None:
        """Remember a row and the reason."""
        if self._count >= _ROWS_MAX:
            self._known.clear()
            self._count = 0
        spots = self._known.setdefault(tuple(work.recipe for work in fields), {})
        spots[_spot(files, fields, row)] = reason, self._clock() + REMEMBERED_S
        self._count += 1

    def concerns(self, files: Sequence[ShardFile]) -> bool:
        """Whether a row of these files is known, or was until recently."""
        if not self._known:
            return False
        urls = {file.ref.url for file in files}
        return any(spot[0] in urls for spots in self._known.values() for spot in spots)

    def rows(self, files: Sequence[ShardFile], fields: Sequence[FieldWork]) -> dict[int, str]:
        """Return known rows with their reasons; a row is known for all its fields, or for one that was measured."""
        found: dict[int, str] = {}
        if not self._known:
            return found
        now_s = self._clock()
        groups = [tuple(fields), *((work,) for work in fields)]
        for group in groups:
            spots = self._known.get(tuple(work.recipe for work in group))
            for row in range(len(group[0].size)) if spots else ():
                reason, until_s = (spots or {}).get(_spot(files, group, row), ("", 0.0))
                if now_s < until_s:
                    found[row] = reason
        return found


def _spot(files: Sequence[ShardFile], fields: Sequence[FieldWork], row: int) -> _Spot:
    """Return a key for a row. It includes all fields, because samples with the same label may start at one place."""
    ref = files[int(fields[0].file_no[row])].ref
    return ref.url, ref.etag, ref.conversion, tuple(int(work.start[row]) for work in fields)
