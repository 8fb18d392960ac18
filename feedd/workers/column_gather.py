"""Copies numbers that lie at regular distances in shards into batches: for each field one take for many batches.

A value is copied once if its file's values are entries of one array that spans all mappings. That is so if they lie
back to back and begin at the same remainder of their size, as columns of tables do. Other values are copied twice.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from feedd.errors import Internal
from feedd.recipe.low_precision import NARROW, widened

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from feedd.workers.fixed_width import Plain
    from feedd.workers.messages import ColumnMessage, GatherRequest
    from feedd.workers.shards import MappedFiles

_WIDE_BYTES: Final = 1 << 10
"""Values of at least this size are taken batch by batch straight into the arena; a second copy of them costs more than
the calls. Smaller ones are taken for many batches at once, and copied from the processor's cache."""

_TAKEN_ROWS: Final = 1 << 14
"""Small values are taken for this many rows at once, so that they stay in the processor's cache until they are copied.
"""


def gather(
    request: GatherRequest, plains: Sequence[Plain], kept: MappedFiles, arena: mmap.mmap
) -> NDArray[np.integer[Any]]:
    """Copy the rows of a request.

    Args:
        request: the request.
        plains: how to copy each of its columns.
        kept: keeps its files mapped.
        arena: the memory to write to.

    Returns:
        int[], rows that were not copied: those of batches with a row outside its file, or with a number that does not
        fit its type. What lies in their places is undefined.

    Raises:
        CacheUnavailable: a file is missing or too short.
        Internal: a batch lies outside the arena.
    """
    rows = _Rows(request, arena)
    files = [np.frombuffer(kept.get(file), np.uint8) for file in request.files]
    first = np.array([file.__array_interface__["data"][0] for file in files], np.int64)
    size = np.array([len(file) for file in files], np.int64)
    out_at = np.frombuffer(request.out_at, "<i8").reshape(len(rows.ends), len(plains))
    counts = _counts(request.columns, plains, size)
    bad = rows.outside(counts)
    if counts.max() < 1:
        return np.arange(len(rows.ordinal))
    for number, (column, plain) in enumerate(zip(request.columns, plains, strict=True)):
        _check_room(plain, rows, out_at[:, number], len(arena))
        source = _Source(files, first, column, plain.width_bytes)
        bad |= _copy(plain, source, rows, out_at[:, number], arena, skip=bad)
    undone = [np.arange(rows.starts[batch], rows.ends[batch]) for batch in np.flatnonzero(bad).tolist()]
    return np.concatenate(undone) if undone else np.zeros(0, np.int64)


class _Rows:
    """The rows of a request.

    Attributes:
        are_consecutive: see ``GatherRequest``.
        starts: int64[batches], the first row of each batch.
        ends: int64[batches], the row behind the last one.
    """

    def __init__(self, request: GatherRequest, arena: mmap.mmap) -> None:
        self.are_consecutive = request.are_consecutive
        self.ends = np.array(request.batch_ends, np.int64)
        self.starts = np.concatenate(([0], self.ends[:-1]))
        self._file_no: NDArray[np.uint16] | None = None
        if request.rows_at >= 0:  # copies, because batches are written there
            count, at = int(self.ends[-1]), request.rows_at
            self._ordinal = np.frombuffer(arena, "<u4", count, at).astype(np.int64)
            if len(request.files) > 1:
                self._file_no = np.frombuffer(arena, "<u2", count, at + 4 * count).copy()
            return
        if request.file_no:
            self._file_no = np.frombuffer(request.file_no, "<u2")
        self._ordinal = np.frombuffer(request.ordinal, "<u4").astype(np.int64)

    @functools.cached_property
    def file_no(self) -> NDArray[np.uint16] | None:
        """uint16[rows]; None: all lie in the only file."""
        if self._file_no is None or not self.are_consecutive:
            return self._file_no
        return np.repeat(self._file_no, self.ends - self.starts)

    @functools.cached_property
    def ordinal(self) -> NDArray[np.int64]:
        """int64[rows], sample in the file."""
        if not self.are_consecutive:
            return self._ordinal
        return np.repeat(self._ordinal - self.starts, self.ends - self.starts) + np.arange(self.ends[-1])

    def first_of(self, batch: int) -> tuple[int, int]:
        """Return the file and the ordinal of the first row of a batch whose rows are consecutive."""
        return 0 if self._file_no is None else int(self._file_no[batch]), int(self._ordinal[batch])

    def outside(self, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool[batches], which batches have a row beyond its file's ``counts``."""
        limit = counts[0] if self._file_no is None else counts[self._file_no]
        if self.are_consecutive:
            return np.asarray(self._ordinal + (self.ends - self.starts) > limit)
        beyond = self._ordinal >= limit
        if not beyond.any():
            return np.zeros(len(self.ends), np.bool_)
        return np.logical_or.reduceat(beyond, self.starts)

    def blocks(self, out_at: NDArray[np.int64], skip: NDArray[np.bool_]) -> Iterator[tuple[int, int, int]]:
        """Yield ranges of batches to copy together: equally many rows, at equal distances; and the distance."""
        sizes = self.ends - self.starts
        distances = np.diff(out_at)
        if self._goes_on and not skip.any() and (distances == distances[:1]).all():  # the usual case
            step = int(distances[0]) if len(distances) else 0
            most = len(sizes) if self.are_consecutive else max(_TAKEN_ROWS // int(sizes[0]), 1)
            for low in range(0, len(sizes), most):
                yield low, min(low + most, len(sizes)), step
            return
        low = 0
        while low < len(sizes):
            high = low + 1
            if not skip[low]:
                step = int(out_at[high] - out_at[low]) if high < len(sizes) else 0
                while high < len(sizes) and sizes[high] == sizes[low] and not skip[high]:
                    if out_at[high] - out_at[high - 1] != step or not self._continues(high):
                        break
                    high += 1
                yield low, high, step
            low = high

    @functools.cached_property
    def _goes_on(self) -> bool:
        """Whether all batches have equally many rows, and each goes on where the one before ends."""
        sizes = self.ends - self.starts
        if (sizes != sizes[0]).any():
            return False
        if not self.are_consecutive:
            return True
        same_file = self._file_no is None or bool((self._file_no == self._file_no[0]).all())
        return same_file and bool((np.diff(self._ordinal) == sizes[0]).all())

    def _continues(self, batch: int) -> bool:
        """Whether a batch may be copied with the one before: consecutive rows must go on where that one ends."""
        if not self.are_consecutive:
            return True
        file_no, ordinal = self.first_of(batch - 1)
        return self.first_of(batch) == (file_no, ordinal + int(self.ends[batch - 1] - self.starts[batch - 1]))


class _Source:
    """The values of one column in all files, as entries of one array over the address range of all mappings.

    The gaps between mappings are never read, because each row is checked against its file's size.
    """

    def __init__(
        self, files: Sequence[NDArray[np.uint8]], first: NDArray[np.int64], column: ColumnMessage, width: int
    ) -> None:
        at, step_bytes = np.array(column.at, np.int64), np.array(column.step_bytes, np.int64)
        lowest, end = int(first.min()), int((first + [len(file) for file in files]).max())
        every = as_strided(files[int(first.argmin())][:1], (end - lowest,), (1,), writeable=False)
        places = first + at - lowest
        base = int(places.min())
        regular = bool((step_bytes == width).all()) and not ((places - base) % width).any()
        self._unit_bytes = width if regular else 1
        self._overlap = self._unit_bytes < width
        self._width = width
        self._bytes = every[base:]
        entry = self._bytes[:width].view(f"V{width}")
        count = (len(self._bytes) - width) // self._unit_bytes + 1
        self._entries = as_strided(entry, (count,), (self._unit_bytes,), writeable=False)
        self._rows_at = (places - base) // self._unit_bytes
        self._step = step_bytes // self._unit_bytes

    def entries_of(self, rows: _Rows) -> NDArray[np.int64]:
        """Return int64[rows], the entry of each row's value."""
        if rows.file_no is None:
            if self._step[0] == 1 and not self._rows_at[0]:
                return rows.ordinal
            return np.asarray(rows.ordinal * self._step[0] + self._rows_at[0])
        step = self._step[0] if (self._step == self._step[0]).all() else self._step[rows.file_no]
        return np.asarray(rows.ordinal * step + self._rows_at[rows.file_no])

    def span(self, rows: _Rows, low: int, high: int) -> NDArray[Any] | None:
        """Return the values of successive batches where they lie; None: they do not lie back to back."""
        if not rows.are_consecutive or self._overlap:
            return None
        file_no, ordinal = rows.first_of(low)
        if self._step[file_no] != 1:
            return None
        start = ordinal + int(self._rows_at[file_no])
        return self._entries[start : start + int(rows.ends[high - 1] - rows.starts[low])]

    def take(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return a copy of the values."""
        if self._overlap:
            return self._entries[places]  # ``take`` would first copy all overlapping entries
        return self._entries.take(places, mode="clip")

    def take_into(self, places: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy large values to a contiguous array.

        Both ends of each value are read first, so that the processor looks up all their pages at once instead of one
        after another.
        """
        self._bytes[places[:, np.newaxis] * self._unit_bytes + np.array([[0, self._width - 1]])]
        if self._overlap:
            out[...] = self._entries[places]
        else:
            self._entries.take(places, out=out, mode="clip")


def _counts(columns: Sequence[ColumnMessage], plains: Sequence[Plain], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[files], how many samples have all their values within the file; not positive: none."""
    counts = np.full(len(size), np.iinfo(np.int64).max)
    for column, plain in zip(columns, plains, strict=True):
        at, step_bytes = np.array(column.at, np.int64), np.array(column.step_bytes, np.int64)
        if not plain.width_bytes or (at < 0).any() or (step_bytes < 1).any():
            raise Internal(f"expected values at regular distances, got field {column.name!r}", stage="decode")
        counts = np.minimum(counts, (size - plain.width_bytes - at) // step_bytes + 1)
    return counts


def _check_room(plain: Plain, rows: _Rows, out_at: NDArray[np.int64], arena_bytes: int) -> None:
    ends = out_at + (rows.ends - rows.starts) * plain.out_bytes
    if out_at.min() < 0 or ends.max() > arena_bytes:
        raise Internal(f"expected batches in the arena, got bytes {out_at.min()} to {ends.max()}", stage="decode")


def _copy(
    plain: Plain,
    source: _Source,
    rows: _Rows,
    out_at: NDArray[np.int64],
    arena: mmap.mmap,
    *,
    skip: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Copy one column; return bool[batches], which batches have a number that does not fit its type."""
    bad = np.zeros(len(rows.ends), np.bool_)
    width, kind = plain.out_bytes, f"V{plain.out_bytes}"
    places = None
    plainly = plain.encoding == plain.out
    for low, high, step in rows.blocks(out_at, skip):
        count, start = high - low, int(out_at[low])
        per_batch = int(rows.ends[low] - rows.starts[low])
        values = source.span(rows, low, high)
        if values is None:
            if places is None:
                places = source.entries_of(rows)
            its = places[rows.starts[low] : rows.ends[high - 1]]
            if plainly and width >= _WIDE_BYTES:
                for number in range(count):
                    target = np.ndarray((per_batch,), kind, arena, start + number * step)
                    source.take_into(its[number * per_batch : (number + 1) * per_batch], target)
                continue
            values = source.take(its)
        if not plainly:
            numbers, fitting = _converted(plain, values)
            values = numbers.view(kind)
            if fitting is not None:
                bad[low:high] = ~fitting.reshape(count, -1).all(axis=1)
        np.ndarray((count, per_batch), kind, arena, start, (step or width, width))[...] = values.reshape(count, -1)
    return bad


def _converted(plain: Plain, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return numbers in the batch's type, and which of them fit it, or None if all do."""
    if plain.encoding in NARROW:
        return widened(values.view(np.uint8), plain.encoding), None
    numbers, fitting = values.view(plain.encoding), None
    if plain.out == "int64" and plain.encoding == "uint64":
        fitting = numbers <= np.iinfo(np.int64).max
    with np.errstate(over="ignore", invalid="ignore"):  # numbers beyond float32 become infinity, as in IEEE
        return numbers.astype(plain.out), fitting
