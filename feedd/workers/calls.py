"""The calls of a pool: how each builds requests for some of its rows, and what it does with the answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from feedd import errors
from feedd.recipe.recipe import pinned_as
from feedd.workers import index_columns as columns
from feedd.workers import request_split as split
from feedd.workers.descriptors import out_of_descriptors
from feedd.workers.messages import (
    Answer,
    Decoded,
    Failed,
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

    from feedd.shard_index import IndexLimits, ShardIndex
    from feedd.values import FieldRecipe, ShardFile
    from feedd.workers.poison import Poison
    from feedd.workers.work import DecodeTask, FieldWork


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


class IndexCall(Short):
    """``DecodePool.index``."""

    rows, stream = 1, 0

    def __init__(self, file: ShardFile, format_name: str, object_bytes: int, limits: IndexLimits) -> None:
        self._file = file
        self._format_name = format_name
        self._object_bytes, self._limits = object_bytes, limits
        self.index: ShardIndex | None = None

    def packet(self, rows: range, request_id: int) -> Packet:  # noqa: ARG002 - the protocol's names
        """Return the request."""
        (file,), fds, opened = split.file_messages((self._file,))
        request = IndexRequest(request_id, file, self._format_name, self._object_bytes, self._limits)
        return Packet(encode(request), fds, opened)

    def accept(self, rows: range, answer: Answer, fds: list[int]) -> None:  # noqa: ARG002 - the protocol's names
        """Read the index's columns.

        Raises:
            Internal: they take more memory than the request allowed.
            ResourceExhausted: they were lost, because this process may open no more files.
        """
        assert isinstance(answer, Indexed)
        if not fds:
            raise out_of_descriptors()
        self.index = columns.unpack(fds[0], answer, self._limits.size_bytes)

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


class PinCall(Short):
    """Resolves one ``npy`` field, for ``DecodePool.resolve``."""

    rows, stream = 1, 0

    def __init__(self, file: ShardFile, recipe: FieldRecipe, start: int, size: int) -> None:
        self._file = file
        self._span = (start, size)
        self.recipe = recipe

    def packet(self, rows: range, request_id: int) -> Packet:  # noqa: ARG002 - the protocol's names
        """Return the request."""
        (file,), fds, opened = split.file_messages((self._file,))
        return Packet(encode(PinRequest(request_id, file, *self._span, self.recipe.encoding)), fds, opened)

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
