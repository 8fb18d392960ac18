"""Arrays with one sample per entry of the first dimension: .npy files and safetensors, read in place."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.errors import BadSample
from feedd.formats.format_spec import AmongSamples, FormatSpec, cut_rows
from feedd.formats.framing import ShardReader, field_names, unread_of
from feedd.formats.npy_header import HEAD_BYTES_MAX, read_npy_head
from feedd.formats.outline import Outline, of_head
from feedd.recipe.low_precision import item_bytes
from feedd.recipe.params import DIMS_MAX, DTYPES, SAMPLE_BYTES_MAX
from feedd.shard_index import RegularIndex, ShardIndex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.protocols import PartialObject
    from feedd.values import ByteRange

FIELD: Final = "data"
"""The field of a .npy file."""

_TENSORS_MAX: Final = 65536
_HEADER_BYTES_MAX: Final = 100 << 20  # the limit of safetensors' own reader
_METADATA: Final = "__metadata__"
_DTYPES: Final = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StridedArray:
    """One array.

    Attributes:
        inner: shape of a sample.
        at: start of the array in the shard.
        step_bytes: bytes from one row to the next; negative: rows are contiguous.
    """

    name: str
    dtype: str
    inner: tuple[int, ...]
    at: int
    step_bytes: int = -1

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample."""
        return math.prod(self.inner) * item_bytes(self.dtype)

    @property
    def distance_bytes(self) -> int:
        """Bytes from one row to the next."""
        return self.row_bytes if self.step_bytes < 0 else self.step_bytes

    @property
    def encoding(self) -> str:
        """Encoding of a sample, see ``recipe.encodings``."""
        if not self.inner:
            return self.dtype
        return f"{self.dtype}[{','.join(map(str, self.inner)) if self.row_bytes else ''}]"


class NpyFormat:
    """``protocols.ShardFormat`` of .npy files, with one sample per row; stateless."""

    @property
    def name(self) -> str:
        """Name of the format: ``npy``."""
        return "npy"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the rows; a key is the row's number.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: not an array of numbers, or its rows are not contiguous.
        """
        return _NpyReader(data, url).npy()

    def outline(self, held: PartialObject, url: str) -> Outline | ByteRange:
        """Return the outline of a file from its header; see ``OutlinedFormat``."""
        return of_head(held, lambda _: HEAD_BYTES_MAX, lambda data: Outline.of(self.index(data, url)))


def first_rows(data: memoryview) -> tuple[bytes, memoryview]:
    """Return a smaller .npy file of the whole rows in a file's first bytes, as its header and its rows.

    Both are empty if no row is whole.
    """
    try:
        header = read_npy_head(data, DTYPES)
    except BadSample:
        return b"", data[:0]
    shape, start = header.shape, header.data_at
    row_bytes = math.prod(shape[1:]) * header.dtype.itemsize
    count = min(shape[0], (len(data) - start) // row_bytes) if shape and row_bytes else 0
    if not count:
        return b"", data[:0]
    head = io.BytesIO()
    told = {"descr": header.dtype.str, "fortran_order": header.fortran_order, "shape": (count, *shape[1:])}
    np.lib.format.write_array_header_1_0(head, told)
    return head.getvalue(), data[start : start + count * row_bytes]


class SafetensorsFormat:
    """``protocols.ShardFormat`` of safetensors: every tensor is a field with one sample per row; stateless.

    Tensors without dimensions are left out. ``bfloat16`` and 8-bit floats become ``float32``.
    """

    @property
    def name(self) -> str:
        """Name of the format: ``safetensors``."""
        return "safetensors"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of each tensor's rows; a key is the row's number.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: not safetensors, or tensors that reach beyond the file, or have different first dimensions.
        """
        return _SafetensorsReader(data, url).safetensors()

    def outline(self, held: PartialObject, url: str) -> Outline | ByteRange:
        """Return the outline of a file from its header; see ``OutlinedFormat``."""
        return of_head(held, _header_end, lambda data: Outline.of(self.index(data, url)))


def _header_end(data: memoryview) -> int:
    return 8 + min(int.from_bytes(data[:8], "little"), _HEADER_BYTES_MAX)


class StridedReader(ShardReader):
    """Reads the arrays of one shard."""

    def laid(self, arrays: Sequence[StridedArray], rows: int, unread: Mapping[str, str] | None = None) -> ShardIndex:
        """Return the index of each array's ``rows`` rows; ``unread``: names and types of other entries."""
        self.check_cells(max(1, len(arrays)), rows, column_count=0)
        empty = next((array for array in arrays if rows and not array.row_bytes), None)
        if empty is not None:  # otherwise a small header could announce any number of samples
            self.fail(empty.at, "rows of at least one byte", f"{rows} rows of {empty.name!r} without any")
        large = next((array for array in arrays if array.row_bytes > SAMPLE_BYTES_MAX), None)
        if large is not None:
            self.fail(large.at, f"samples of at most {SAMPLE_BYTES_MAX} bytes", f"{large.row_bytes}")
        strides = tuple((array.at, array.distance_bytes, array.row_bytes) for array in arrays)
        names = field_names([array.name for array in arrays], self._url)
        stored = tuple(array.encoding for array in arrays)
        return RegularIndex(names, strides, rows, stored, unread=unread_of(unread or {}))


def npy_rows(head: memoryview, size_bytes: int, url: str) -> tuple[StridedArray, int]:
    """Check a .npy file by its first bytes and its size; return its array and the number of rows.

    Args:
        head: the first ``npy_header.HEAD_BYTES_MAX`` bytes of the file.
        size_bytes: size of the whole file.
        url: URL of the file, for errors.

    Raises:
        BadShard: as ``NpyFormat.index``.
    """
    return _NpyReader(head, url).rows_in(size_bytes)


class _NpyReader(StridedReader):
    def npy(self) -> ShardIndex:
        """Read a .npy file."""
        array, rows = self.rows_in(len(self._data))
        return self.laid([array], rows)

    def rows_in(self, total: int) -> tuple[StridedArray, int]:
        """Return the array of a file of ``total`` bytes, and the number of its rows."""
        try:
            header = read_npy_head(self._data, DTYPES)
        except BadSample as error:
            self.fail(0, "a .npy array of numbers", error.message)
        if not header.shape:
            self.fail(0, "an array with a row per sample", "one number")
        if not header.dtype.isnative and header.dtype.itemsize > 1:
            self.fail(0, "little-endian numbers", str(header.dtype))
        rows, inner = header.shape[0], header.shape[1:]
        if header.fortran_order and math.prod(inner) > 1:
            self.fail(0, "contiguous rows (C order)", "columns (Fortran order)")
        array = StridedArray(FIELD, header.dtype.newbyteorder("=").name, inner, header.data_at)
        if total - header.data_at != rows * array.row_bytes:
            got = total - header.data_at
            self.fail(header.data_at, f"{rows * array.row_bytes} bytes of {header.shape}", str(got))
        return array, rows


class _SafetensorsReader(StridedReader):
    def safetensors(self) -> ShardIndex:
        """Read the header and locate its tensors; return the index."""
        total = len(self._data)
        size = int.from_bytes(self._data[:8], "little")
        if total < 8 or size > min(_HEADER_BYTES_MAX, total - 8):
            self.fail(0, f"the size of a header within {total} bytes", str(size))
        try:
            header = msgspec.json.decode(bytes(self._data[8 : 8 + size]), type=dict[str, msgspec.Raw])
            header.pop(_METADATA, None)
            if len(header) > _TENSORS_MAX:
                self.fail(8, f"at most {_TENSORS_MAX} tensors", str(len(header)))
            tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items()}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.fail(8, "JSON that names tensors", str(error))
        rows: int | None = None
        arrays = []
        unread: dict[str, str] = {}
        for name, tensor in tensors.items():
            array = self._tensor(name, tensor, 8 + size)
            if array is None:
                unread[name] = f"a tensor of {tensor.dtype} without dimensions"
                continue
            rows = tensor.shape[0] if rows is None else rows
            if rows != tensor.shape[0]:
                expected = f"tensors with a row per sample, {rows} as in the first"
                self.fail(8, expected, f"{name!r} of {tensor.shape}")
            arrays.append(array)
        return self.laid(sorted(arrays, key=lambda array: array.at), rows or 0, unread)

    def _tensor(self, name: str, tensor: _Tensor, base: int) -> StridedArray | None:
        """Return a tensor as an array; None: it has no dimensions."""
        dtype, shape, (start, end) = _DTYPES.get(tensor.dtype), tensor.shape, tensor.data_offsets
        if dtype is None:
            self.fail(8, f"one of the types {', '.join(_DTYPES)}", f"{name!r} of {tensor.dtype}")
        if len(shape) > DIMS_MAX + 1 or any(side < 0 for side in shape) or not 0 <= start <= end:
            self.fail(8, "a valid shape and valid offsets", f"{name!r} of {shape} at {start} to {end}")
        if end - start != math.prod(shape) * item_bytes(dtype) or base + end > len(self._data):
            self.fail(8, f"the bytes of a tensor within {len(self._data)}", f"{name!r} of {shape} at {start} to {end}")
        return StridedArray(name, dtype, tuple(shape[1:]), base + start) if shape else None


FORMATS: Final = (
    FormatSpec(NpyFormat(), (".npy",), first_samples=cut_rows(first_rows), among_samples=AmongSamples.SAMPLE),
    FormatSpec(SafetensorsFormat(), (".safetensors",)),
)
