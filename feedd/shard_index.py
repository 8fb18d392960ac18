"""Where each sample's fields lie in one shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from feedd.errors import BadShard
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Strides = tuple[tuple[int, int, int] | None, ...]

_DIGITS: Final = 8
_BLOCK: Final = 10**4  # number of ordinals with the same first four digits

ORDER_BYTES: Final = 16
"""Memory of a sample in the orders of epochs: a reader has two windows while it sorts a third."""

CELL_BYTES: Final = 4
"""Least memory of a sample in a column of a ``PackedIndex``."""

_OBJECT_TIMES: Final = 12  # most objects are much larger than their index
_CONVERTED_TIMES: Final = 6  # a compressed object is much smaller than what it holds
_NARROW: Final = np.iinfo(np.int32)

SAMPLES_MAX: Final = 1 << 26
"""Maximum number of samples of a shard, and of its fields times its samples."""


class IndexLimits(NamedTuple):
    """What the index of one shard may take.

    Attributes:
        size_bytes: memory in the daemon, of the columns and of the order of the samples.
        samples: number of samples of an index without columns: their order takes memory, too.
    """

    size_bytes: int = 1 << 62
    samples: int = SAMPLES_MAX

    @classmethod
    def of(cls, index_bytes: int, object_bytes: int, *, is_converted: bool) -> IndexLimits:
        """Return the limits of an object.

        Args:
            index_bytes: ``decode.index_size``.
            object_bytes: size of the object in its store. A large object may have a larger index.
            is_converted: whether the object may expand. If not, each byte may be a sample.
        """
        size_bytes = max(index_bytes, (_CONVERTED_TIMES if is_converted else _OBJECT_TIMES) * object_bytes)
        return cls(size_bytes, min(SAMPLES_MAX, max(size_bytes // ORDER_BYTES, 0 if is_converted else object_bytes)))

    def check(self, columns_bytes: int, samples: int, url: str) -> None:
        """Refuse an index.

        Args:
            columns_bytes: memory of its columns; 0: it has none.
            samples: number of its samples.
            url: URL of the object, for errors.

        Raises:
            BadShard: it exceeds a limit.
        """
        needed_bytes = columns_bytes + ORDER_BYTES * samples
        if columns_bytes and needed_bytes > self.size_bytes:
            expected = f"an index of at most {format_size(self.size_bytes)}"
            got = f"samples that need {format_size(needed_bytes)} or more"
        elif samples > self.samples:
            expected, got = f"at most {self.samples} samples in an object of this size", f"{samples} or more"
        else:
            return
        hint = "raise decode.index_size, or store smaller shards"
        raise BadShard(f"expected {expected}, got {got}", object=url, hint=hint, stage="decode")


NO_LIMITS: Final = IndexLimits()


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Position of each sample's fields in one shard: columns, so that a batch takes a few vector operations.

    Attributes:
        fields: extensions found anywhere in the shard, in order of first appearance.
        starts: int64[field, sample], byte offset of the field in the object; with a reason, of its record, 0: unknown.
        sizes: int64[field, sample], bytes of the field; -1 if the sample lacks it.
        key_blob: UTF-8 keys, concatenated.
        key_ends: int64[sample], end of each key in ``key_blob``.
        encodings: of each field (see ``recipe.encodings``); empty: each field is a separate file, as in a tar.
        notes: field's number (-1: all), sample, and what the data holds instead of a value; for the first of each kind.
        unread: name and type of columns that no field can read if all are requested, or that lose their decimal point.
        reasons: uint8[field, sample], why a field is missing (``formats.missing_reasons``); None: nothing is known.
        strides: for each field whose values all have one size and lie at regular distances: the start of the first one,
            the distance, and the size, in bytes; None for other fields. Empty: not known.
    """

    fields: tuple[str, ...]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    key_blob: bytes
    key_ends: NDArray[np.int64]
    encodings: tuple[str, ...] = ()
    notes: tuple[tuple[int, int, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    reasons: NDArray[np.uint8] | None = None
    strides: Strides = ()

    @property
    def is_regular(self) -> bool:
        """Whether strides and numbers tell everything: a ``RegularIndex``."""
        return False

    @property
    def is_numbered(self) -> bool:
        """Whether the keys are the numbers of the samples: a ``NumberedIndex``."""
        return False

    @property
    def sample_count(self) -> int:
        """Number of samples in the shard."""
        return int(self.key_ends.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the columns."""
        arrays = (self.starts, self.sizes, self.key_ends, *(() if self.reasons is None else (self.reasons,)))
        return sum(int(array.nbytes) for array in arrays) + len(self.key_blob)

    def cells(self, column: int, ordinals: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and sizes, int64[ordinals] each, of one field of some samples."""
        return self.starts[column, ordinals], self.sizes[column, ordinals]

    def cell(self, column: int, ordinal: int) -> tuple[int, int]:
        """Return start and size of one field of one sample."""
        start, size = self.cells(column, np.array([ordinal], np.int64))
        return int(start[0]), int(size[0])

    def sizes_of(self, columns: Sequence[int]) -> NDArray[np.integer]:
        """Return the sizes of some fields of all samples; of a field with a stride, of one sample."""
        return self.sizes[columns].reshape(-1)

    def encoding_of(self, column: int) -> str:
        """Return how one field is stored."""
        return self.encodings[column] if self.encodings else ""

    def key(self, ordinal: int) -> str:
        """Return the key of one sample."""
        return self.key_bytes(ordinal).decode("utf-8", "replace")

    def key_bytes(self, ordinal: int) -> bytes:
        """Return the key of one sample in UTF-8."""
        start = int(self.key_ends[ordinal - 1]) if ordinal else 0
        return self.key_blob[start : int(self.key_ends[ordinal])]

    def with_fields(
        self,
        fields: tuple[str, ...],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        encodings: tuple[str, ...],
        reasons: NDArray[np.uint8] | None,
    ) -> ShardIndex:
        """Return the index of the same samples with other fields."""
        keys = self.key_blob, self.key_ends
        return ShardIndex(fields, starts, sizes, *keys, encodings, self.notes, self.unread, reasons)


class NumberedIndex(ShardIndex):
    """The index of samples whose keys are their numbers. The keys take no memory: each read makes them anew."""

    __slots__ = ("_first", "_sample_count")

    _first: int
    _sample_count: int

    def __init__(
        self,
        fields: tuple[str, ...],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        sample_count: int,
        encodings: tuple[str, ...] = (),
        notes: tuple[tuple[int, int, str], ...] = (),
        unread: tuple[tuple[str, str], ...] = (),
        reasons: NDArray[np.uint8] | None = None,
        strides: Strides = (),
        first: int = 0,
    ) -> None:
        """Create an index; see ``ShardIndex``. ``first``: number of the first sample."""
        self._set(fields=fields, starts=starts, sizes=sizes, encodings=encodings, notes=notes, unread=unread)
        self._set(reasons=reasons, strides=strides, _sample_count=sample_count, _first=first)

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)  # as the frozen base class sets its own

    @property
    def is_numbered(self) -> bool:
        """Whether the keys are the numbers of the samples: yes."""
        return True

    @property
    def sample_count(self) -> int:
        """Number of samples in the shard."""
        return self._sample_count

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the columns."""
        return int(self.starts.nbytes + self.sizes.nbytes) + (0 if self.reasons is None else int(self.reasons.nbytes))

    @property
    def key_blob(self) -> bytes:
        """The numbers of all samples."""
        return numbered(self._sample_count, self._first)[0]

    @property
    def key_ends(self) -> NDArray[np.int64]:
        """int64[sample], see ``ShardIndex``."""
        return numbered(self._sample_count, self._first)[1]

    def key_bytes(self, ordinal: int) -> bytes:
        """Return the number of one sample as its key."""
        return b"%0*d" % (_DIGITS, self._first + ordinal)

    def with_fields(
        self,
        fields: tuple[str, ...],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        encodings: tuple[str, ...],
        reasons: NDArray[np.uint8] | None,
    ) -> ShardIndex:
        """Return the index of the same samples with other fields."""
        told = encodings, self.notes, self.unread, reasons
        return NumberedIndex(fields, starts, sizes, self._sample_count, *told, first=self._first)


class PackedColumn(NamedTuple):
    """Where the values of one field lie, int32 if they all lie below 2 GiB, else int64.

    Attributes:
        starts: start of each value. Without ``sizes``, one more, as if another value followed.
        sizes: size of each value, -1: the sample lacks it. None: ``gap`` bytes lie between each value and the next.
        gap: see ``sizes``.
    """

    starts: NDArray[np.signedinteger]
    sizes: NDArray[np.signedinteger] | None
    gap: int = 0

    @classmethod
    def of(cls, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> PackedColumn:
        """Pack a column."""
        ends = starts + sizes
        gap = int(starts[1] - ends[0]) if len(starts) > 1 else 0
        is_joined = (
            len(starts) > 0
            and abs(gap) <= _NARROW.max
            and bool((sizes >= 0).all())
            and bool((starts[1:] - ends[:-1] == gap).all())
        )
        low = int(starts.min(initial=0))
        high = max(int(starts.max(initial=0)), int(ends.max(initial=0)) + max(gap, 0))
        dtype = np.int32 if _NARROW.min <= low and high <= _NARROW.max else np.int64
        if not is_joined:
            return cls(starts.astype(dtype), sizes.astype(dtype))
        return cls(np.append(starts, ends[-1:] + gap).astype(dtype), None, gap)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.starts.nbytes + (0 if self.sizes is None else self.sizes.nbytes)

    def cells(self, ordinals: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and sizes of some samples."""
        starts = self.starts[ordinals].astype(np.int64)
        if self.sizes is not None:
            return starts, self.sizes[ordinals].astype(np.int64)
        return starts, self.starts[ordinals + 1] - starts - self.gap

    def every_size(self) -> NDArray[np.signedinteger]:
        """Return the sizes of all samples, in this column's type."""
        if self.sizes is not None:
            return self.sizes
        sizes = np.diff(self.starts)
        sizes -= self.gap
        return sizes


class PackedIndex(NumberedIndex):
    """The index of samples whose keys are their numbers, in little memory.

    A field has a stride or a column. Each read of ``starts``, ``sizes`` or the keys makes them anew, so read single
    samples by ``cells``, ``cell`` and ``key``.
    """

    __slots__ = ("columns",)

    columns: tuple[PackedColumn | None, ...]

    def __init__(
        self,
        fields: tuple[str, ...],
        columns: tuple[PackedColumn | None, ...],
        strides: Strides,
        sample_count: int,
        encodings: tuple[str, ...],
        notes: tuple[tuple[int, int, str], ...] = (),
        unread: tuple[tuple[str, str], ...] = (),
        reasons: NDArray[np.uint8] | None = None,
    ) -> None:
        """Create an index; see ``NumberedIndex``. ``columns``: of each field without a stride; None for the others."""
        self._set(fields=fields, columns=columns, strides=strides, encodings=encodings, notes=notes, unread=unread)
        self._set(reasons=reasons, _sample_count=sample_count, _first=0)

    @classmethod
    def of(cls, index: NumberedIndex, strides: Strides) -> PackedIndex:
        """Pack an index with these strides."""
        columns = tuple(
            PackedColumn.of(index.starts[number], index.sizes[number]) if stride is None else None
            for number, stride in enumerate(strides)
        )
        told = index.encodings, index.notes, index.unread, index.reasons
        return cls(index.fields, columns, strides, index.sample_count, *told)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the columns."""
        columns_bytes = sum(column.nbytes for column in self.columns if column is not None)
        return columns_bytes + (0 if self.reasons is None else self.reasons.nbytes)

    @property
    def starts(self) -> NDArray[np.int64]:
        """int64[field, sample], see ``ShardIndex``."""
        return self._every(0)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64[field, sample], see ``ShardIndex``."""
        return self._every(1)

    def cells(self, column: int, ordinals: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and sizes, int64[ordinals] each, of one field of some samples."""
        packed = self.columns[column]
        if packed is not None:
            return packed.cells(ordinals)
        at, step, size = self.strides[column] or (0, 0, 0)
        return at + step * ordinals, np.full(len(ordinals), size, np.int64)

    def sizes_of(self, columns: Sequence[int]) -> NDArray[np.integer]:
        """Return the sizes of some fields; see ``ShardIndex``."""
        found: list[NDArray[np.integer]] = [np.zeros(0, np.int64)]
        for column in columns if self._sample_count else ():
            packed, stride = self.columns[column], self.strides[column]
            found.append(np.array((stride or (0, 0, 0))[2:]) if packed is None else packed.every_size())
        return found[1] if len(found) == 2 else np.concatenate(found)

    def _every(self, which: int) -> NDArray[np.int64]:
        every = np.arange(self._sample_count, dtype=np.int64)
        columns = [self.cells(column, every)[which] for column in range(len(self.fields))]
        return np.array(columns, np.int64).reshape(len(columns), self._sample_count)


class RegularIndex(PackedIndex):
    """The index of samples whose fields all lie at regular distances, as in a table, and whose keys are their numbers.

    It takes no memory per sample: the columns of a million rows with four fields would take 80 MB.
    """

    __slots__ = ()

    def __init__(
        self,
        fields: tuple[str, ...],
        strides: Strides,
        sample_count: int,
        encodings: tuple[str, ...],
        notes: tuple[tuple[int, int, str], ...] = (),
        unread: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Create an index; see ``ShardIndex``. Every field has a stride."""
        assert None not in strides, "a field without a stride needs columns"
        super().__init__(fields, (None,) * len(fields), strides, sample_count, encodings, notes, unread)

    def numbered_from(self, first: int) -> RegularIndex:
        """Return the index of the same samples with keys from ``first`` on."""
        given = self.fields, self.strides, self.sample_count, self.encodings, self.notes, self.unread
        index = RegularIndex(*given)
        index._set(_first=first)
        return index

    @property
    def is_regular(self) -> bool:
        """Whether strides and numbers tell everything: yes."""
        return True


def numbered(sample_count: int, first: int = 0) -> tuple[bytes, NDArray[np.int64]]:
    """Return ``key_blob`` and ``key_ends`` of an index: numbers with at least eight digits, so that keys sort.

    Args:
        sample_count: number of samples.
        first: number of the first sample.
    """
    if first:
        return _numbered_from(first, sample_count)
    most = 10**_DIGITS
    keys = np.empty((min(sample_count, most), 2), np.uint32)  # the first four digits, and the last
    last = np.frombuffer(b"".join(b"%04d" % ordinal for ordinal in range(min(sample_count, _BLOCK))), np.uint32)
    for low in range(0, len(keys), _BLOCK):
        block = keys[low : low + _BLOCK]
        block[:, 0] = np.frombuffer(b"%04d" % (low // _BLOCK), np.uint32)
        block[:, 1] = last[: len(block)]
    beyond = b"".join(b"%d" % ordinal for ordinal in range(most, sample_count))  # rare: needs over 10**8 samples
    ends = np.arange(1, sample_count + 1, dtype=np.int64) * _DIGITS
    if sample_count > most:
        ends[most:] = ends[most - 1] + np.cumsum([len(b"%d" % ordinal) for ordinal in range(most, sample_count)])
    return keys.tobytes() + beyond, ends


def _numbered_from(first: int, sample_count: int) -> tuple[bytes, NDArray[np.int64]]:
    """Return keys and their ends for numbers from ``first`` on, one number of digits after another."""
    blobs, lengths = [], []
    low, end = first, first + sample_count
    while low < end:
        digits = max(_DIGITS, len(str(low)))
        numbers = np.arange(low, min(end, 10**digits), dtype=np.int64)
        keys = np.empty((len(numbers), digits), np.uint8)
        for place in range(digits):
            keys[:, digits - 1 - place] = numbers // 10**place % 10 + ord("0")
        blobs.append(keys.tobytes())
        lengths.append(np.full(len(numbers), digits, np.int64))
        low += len(numbers)
    return b"".join(blobs), np.cumsum(np.concatenate(lengths or [np.zeros(0, np.int64)]))
