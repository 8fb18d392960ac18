"""Turns Arrow arrays into pieces of a table's columns, all rows of an array at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from feedd.errors import BadShard
from feedd.recipe.params import DIMS_MAX, DTYPES, SAMPLE_BYTES_MAX
from feedd.tables.writer import ROWS_MAX, ColumnEncoding, Piece

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from numpy.typing import NDArray


_SPREAD_BYTES_MAX: Final = 64 << 20
"""Dictionaries and runs may expand to far more than their own size. They are expanded in pieces of about this size."""


_WIDE_NUMBERS: Final = {16: 2, 32: 4}  # bytes of a decimal, and its number of int64 words
_VIEW_BYTES: Final = 16  # a view's length, and its bytes or the place of them
_NARROW_TIMES: Final = {"date32[day]": "<i4", "time32[s]": "<i4", "time32[ms]": "<i4"}
_INT64: Final = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class _Flat:
    """The numbers of an array of lists.

    Attributes:
        values: all numbers.
        counts: int64[rows], numbers of each row; None: ``per_row`` in every row.
        valid: bool[rows], rows that exist and have no missing number; None: all rows.
    """

    values: NDArray[np.generic]
    per_row: int
    counts: NDArray[np.int64] | None
    valid: NDArray[np.bool_] | None


class ColumnReader:
    """Reads one column of one shard.

    Args:
        name: the column's name, for errors.
        how: the column's encoding, see ``column_encoding``.
        url: named in errors.
    """

    def __init__(self, name: str, how: ColumnEncoding, url: str) -> None:
        self._name, self._how, self._url = name, how, url
        self._memory_bytes = 0

    def pieces(self, array: pa.Array, memory_bytes: int) -> Iterator[Piece]:
        """Yield the rows of an array of the column.

        Args:
            array: the Arrow array; its offsets are known to lie within its buffers.
            memory_bytes: maximum size of the table.

        Raises:
            BadShard: decimals exceed 64 bits, or dictionaries or runs expand to too many bytes.
        """
        self._memory_bytes = memory_bytes
        array = _storage(array)
        if len(array) > ROWS_MAX:
            self._fail(f"at most {ROWS_MAX} rows", str(len(array)))
        if _is_spread(array.type):
            yield from self._spread(array, memory_bytes)
        elif kinds.is_null(array.type):
            yield self._nothing(len(array))
        elif self._how.dtype:
            yield self._numbers(array)
        elif kinds.is_fixed_size_binary(array.type) and self._how.width:
            yield Piece(_rows(array, self._how.width, "u1"), None, _valid(array))
        elif file_of(array.type):
            names = [array.type.field(number).name for number in range(array.type.num_fields)]
            child = array.flatten()[names.index(file_of(array.type))]  # includes the struct's nulls
            yield from self.pieces(child, memory_bytes)
        else:
            yield _blobs(array)

    def _spread(self, array: pa.Array, memory_bytes: int) -> Iterator[Piece]:
        """Yield the expanded values of a dictionary or of runs, some rows at a time."""
        worst = _value_bytes_max(array)
        if worst * min(len(array), 1) > memory_bytes:
            self._fail(f"values of at most {memory_bytes} bytes", f"one of {worst}")
        step = max(1, _SPREAD_BYTES_MAX // worst)
        for at in range(0, len(array), step):
            yield from self.pieces(_once_spread(array.slice(at, step)), memory_bytes)

    def _nothing(self, rows: int) -> Piece:
        return Piece(np.zeros(0, np.uint8), np.zeros(rows, np.int64), np.zeros(rows, np.bool_))

    def _numbers(self, array: pa.Array) -> Piece:
        flat = self._flat(array)
        itemsize = flat.values.dtype.itemsize
        if self._how.width is not None:
            return Piece(flat.values, None, flat.valid)
        rows = len(array)
        counts = np.full(rows, flat.per_row, np.int64) if flat.counts is None else flat.counts
        return Piece(flat.values, counts * itemsize, flat.valid)

    def _flat(self, array: pa.Array) -> _Flat:
        array = self._plain(array)
        if not len(array):  # its buffers may be missing
            return _Flat(np.zeros(0, np.dtype(self._how.dtype)), 1, None, None)
        valid = _valid(array)
        if is_list(array.type):
            array = _list(array)
            offsets = np.asarray(array.offsets).astype(np.int64)
            inner = self._flat(array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
            offsets -= offsets[0]
            counts: NDArray[np.int64] | None = np.diff(offsets) * inner.per_row
            if inner.counts is not None:
                counts = np.diff(_sums(inner.counts)[offsets])
            holes = None if inner.valid is None else np.diff(_sums(~inner.valid)[offsets])
            return _Flat(inner.values, 1, counts, _without(valid, holes))
        if kinds.is_fixed_size_list(array.type):
            size, rows = array.type.list_size, len(array)
            inner = self._flat(array.values.slice(array.offset * size, rows * size))
            counts = None if inner.counts is None else inner.counts.reshape(rows, size).sum(axis=1)
            holes = None if inner.valid is None else (~inner.valid).reshape(rows, size).sum(axis=1)
            return _Flat(inner.values, inner.per_row * size, counts, _without(valid, holes))
        return _Flat(self._scalars(array, valid), 1, None, valid)

    def _scalars(self, array: pa.Array, valid: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        """Return one number per row, with the dtype of ``dtype_of``."""
        type_, dtype = array.type, np.dtype(dtype_of(array.type))
        if kinds.is_boolean(type_):
            return _bits(array)
        if kinds.is_decimal(type_) and type_.byte_width in _WIDE_NUMBERS:
            words = _rows(array, type_.byte_width, _INT64).reshape(len(array), -1)
            low = words[:, 0]
            wide = (words[:, 1:] != (low >> 63)[:, None]).any(axis=1)
            if (wide if valid is None else wide & valid).any():
                self._fail("decimals of 64 bits", str(type_))
            return np.ascontiguousarray(low)
        if kinds.is_decimal(type_):
            return _rows(array, type_.byte_width, f"<i{type_.byte_width}").astype(_INT64)
        if kinds.is_temporal(type_):
            narrow = _NARROW_TIMES.get(str(type_), _INT64)
            return _rows(array, np.dtype(narrow).itemsize, narrow).astype(_INT64, copy=False)
        return _rows(array, dtype.itemsize, dtype)

    def _plain(self, array: pa.Array) -> pa.Array:
        """Return the expanded values of dictionaries and runs within lists, if there is space for them."""
        array = _storage(array)
        for _ in range(_DEPTH_MAX):
            if not _is_spread(array.type):
                break
            size = len(array) * _value_bytes_max(array)
            if size > self._memory_bytes:
                self._fail(
                    f"values of at most {self._memory_bytes} bytes", f"dictionaries or runs that expand to {size}"
                )
            array = _storage(_once_spread(array))
        return array

    def _fail(self, expected: str, got: str) -> None:
        raise BadShard(f"expected {expected} in column {self._name!r}, got {got}", object=self._url, stage="decode")


def _storage(array: pa.Array) -> pa.Array:
    """Return the storage array of an extension array."""
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array


def _is_spread(type_: pa.DataType) -> bool:
    """Whether arrays of the type may expand to more than their own size."""
    return bool(kinds.is_dictionary(type_) or kinds.is_run_end_encoded(type_))


def _once_spread(array: pa.Array) -> pa.Array:
    """Return the expanded values of a dictionary or of runs."""
    if kinds.is_dictionary(array.type):
        return array.dictionary_decode()
    from pyarrow import compute  # noqa: PLC0415 - slow to load, and rarely needed

    return compute.run_end_decode(array)


def _valid(array: pa.Array) -> NDArray[np.bool_] | None:
    if not array.null_count:
        return None
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _sums(counts: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))


def _without(valid: NDArray[np.bool_] | None, holes: NDArray[np.int64] | None) -> NDArray[np.bool_] | None:
    if holes is None:
        return valid
    whole: NDArray[np.bool_] = holes == 0
    return whole if valid is None else whole & valid


def _rows(array: pa.Array, width: int, dtype: npt.DTypeLike) -> NDArray[Any]:
    """Return the values of an array of fixed width."""
    rows, data = len(array), array.buffers()[1]
    if not rows or data is None:
        return np.zeros(rows * width, np.uint8).view(dtype)
    return np.frombuffer(data, np.uint8, rows * width, array.offset * width).view(dtype)


def _bits(array: pa.Array) -> NDArray[np.bool_]:
    rows, data = len(array), array.buffers()[1]
    if not rows or data is None:
        return np.zeros(rows, np.bool_)
    first, skip = divmod(array.offset, 8)
    packed = np.frombuffer(data, np.uint8, (skip + rows + 7) // 8, first)
    return np.unpackbits(packed, count=skip + rows, bitorder="little")[skip:].view(np.bool_)


def _list(array: pa.Array) -> pa.Array:
    """Return lists whose values are contiguous."""
    if kinds.is_list(array.type) or kinds.is_large_list(array.type):
        return array
    return array.cast(pa.large_list(array.type.value_field))


def _without_views_of_nulls(array: pa.Array) -> pa.Array:
    """Return an array of views that are empty where a value is missing.

    Arrow's check passes over those views, but its cast copies them: a negative length ends the process.
    """
    if not array.null_count:
        return array
    valid, views, *data = array.buffers()
    rows = np.frombuffer(views, np.uint8).reshape(-1, _VIEW_BYTES).copy()
    rows[array.offset : array.offset + len(array)][array.is_null().to_numpy(zero_copy_only=False)] = 0
    return pa.Array.from_buffers(array.type, len(array), [valid, pa.py_buffer(rows), *data], offset=array.offset)


def _offsets(array: pa.Array) -> tuple[NDArray[np.int64], Any]:
    """Return int64[rows + 1] offsets and the bytes that they refer to."""
    rows = len(array)
    if str(array.type).endswith("_view"):
        array = _without_views_of_nulls(array)
    if not is_bytes(plain(array.type)) or str(array.type).endswith("_view"):
        array = array.cast(pa.large_binary())
    _, ends, data = array.buffers()
    if not rows or ends is None:
        return np.zeros(rows + 1, np.int64), None
    large = kinds.is_large_string(array.type) or kinds.is_large_binary(array.type)
    dtype = np.dtype("<i8" if large else "<i4")
    offsets = np.frombuffer(ends, dtype, rows + 1, array.offset * dtype.itemsize)
    return offsets.astype(np.int64, copy=False), data


def _blobs(array: pa.Array) -> Piece:
    offsets, data = _offsets(array)
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    values = np.frombuffer(data, np.uint8, size, first) if size else np.zeros(0, np.uint8)
    return Piece(values, np.diff(offsets), _valid(array))


def _value_bytes_max(array: pa.Array) -> int:
    """Return an upper bound of a value's bytes, at least 1; for nested values, the bytes of all values."""
    array = _storage(array)
    for _ in range(_DEPTH_MAX):
        if not _is_spread(array.type):
            break
        array = _storage(array.dictionary if kinds.is_dictionary(array.type) else array.values)
    type_ = array.type
    if is_bytes(type_) and not str(type_).endswith("_view"):
        return int(np.diff(_offsets(array)[0]).max(initial=1))
    if kinds.is_fixed_size_binary(type_) or dtype_of(type_):
        return max(1, (int(type_.bit_width) + 7) // 8)
    of_numbers = bool(type_.num_fields) and bool(dtype_of(type_.field(0).type)) and not _is_spread(type_.field(0).type)
    if of_numbers and kinds.is_fixed_size_list(type_):
        return max(1, int(type_.list_size) * _value_bytes_max(array.values))
    if of_numbers and len(array) and (kinds.is_list(type_) or kinds.is_large_list(type_)):
        return max(1, int(np.diff(np.asarray(array.offsets)).max()) * _value_bytes_max(array.values))
    return max(1, int(array.nbytes))


BYTES: Final = "bytes"
PATH: Final = "path"

_DTYPE_OF: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}
_DEPTH_MAX: Final = 16


def plain(type_: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary, of runs or of an extension."""
    for _ in range(_DEPTH_MAX):
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif kinds.is_dictionary(type_) or kinds.is_run_end_encoded(type_):
            type_ = type_.value_type
        else:
            break
    return type_


def dtype_of(type_: pa.DataType) -> str:
    """Return the dtype that numbers of the type are stored as, or an empty string for other types."""
    type_ = plain(type_)
    if kinds.is_decimal(type_) or kinds.is_temporal(type_):
        return "" if kinds.is_interval(type_) else "int64"
    name = _DTYPE_OF.get(str(type_), str(type_))
    return name if name in DTYPES else ""


def is_list(type_: pa.DataType) -> bool:
    """Whether values are lists of any length."""
    views = (getattr(kinds, name, None) for name in ("is_list_view", "is_large_list_view"))  # only in newer versions
    return bool(
        kinds.is_list(type_) or kinds.is_large_list(type_) or any(check is not None and check(type_) for check in views)
    )


def is_bytes(type_: pa.DataType) -> bool:
    """Whether values are strings or binary of any length."""
    return is_text(type_) or bool(kinds.is_binary(type_) or kinds.is_large_binary(type_) or str(type_) == "binary_view")


def is_text(type_: pa.DataType) -> bool:
    """Whether values are strings."""
    return bool(kinds.is_string(type_) or kinds.is_large_string(type_) or str(type_) == "string_view")


def file_of(type_: pa.DataType) -> str:
    """Return the child with the value if the type is a struct of a file's bytes and path, else an empty string."""
    if not kinds.is_struct(type_):
        return ""
    names = {type_.field(number).name for number in range(type_.num_fields)}
    whole = BYTES in names and names <= {BYTES, PATH} and is_bytes(plain(type_.field(BYTES).type))
    return BYTES if whole and type_.num_fields == len(names) else ""


def column_encoding(type_: pa.DataType) -> ColumnEncoding | None:
    """Return the encoding of a column of the type, or None if it cannot be a field."""
    type_ = plain(type_)
    if kinds.is_null(type_):
        return ColumnEncoding("", None)
    dtype = dtype_of(type_)
    if dtype:
        return ColumnEncoding(dtype, np.dtype(dtype).itemsize, dtype)
    if is_bytes(type_):
        return ColumnEncoding("text" if is_text(type_) else "", None)
    if kinds.is_fixed_size_binary(type_):
        return ColumnEncoding("", type_.byte_width or None)
    if file_of(type_):
        return ColumnEncoding("", None)
    return _list_encoding(type_)


def _list_encoding(type_: pa.DataType) -> ColumnEncoding | None:
    sides: list[int] = []
    fixed = True
    for _ in range(_DEPTH_MAX):
        if is_list(type_):
            fixed = False
        elif kinds.is_fixed_size_list(type_):
            sides.append(type_.list_size)
        else:
            break
        type_ = plain(type_.value_type)
    dtype = dtype_of(type_)
    if not dtype:
        return None
    width = math.prod(sides) * np.dtype(dtype).itemsize
    if not fixed or not 0 < width <= SAMPLE_BYTES_MAX or len(sides) > DIMS_MAX:
        return ColumnEncoding(f"{dtype}[]", None, dtype)
    return ColumnEncoding(f"{dtype}[{','.join(map(str, sides))}]", width, dtype)


def unscaled(type_: pa.DataType) -> bool:
    """Whether the type is a decimal with a scale, or a list of these: its numbers are stored unscaled."""
    type_ = plain(type_)
    for _ in range(_DEPTH_MAX):
        if not (is_list(type_) or kinds.is_fixed_size_list(type_)):
            break
        type_ = plain(type_.value_type)
    return bool(kinds.is_decimal(type_) and type_.scale)


def leaf_count(type_: pa.DataType) -> int:
    """Return the number of Parquet leaf columns that store a column of the type."""
    type_ = plain(type_)
    if type_.num_fields and not kinds.is_run_end_encoded(type_):
        return sum(leaf_count(type_.field(number).type) for number in range(type_.num_fields))
    return 1
