"""The codecs ``npy``, ``array``, ``tensor`` and ``tokens`` for arrays of numbers. No data is ever unpickled."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.errors import BadSample
from feedd.formats.npy_header import NpyHeader, read_npy_head, read_npy_header
from feedd.recipe.low_precision import item_bytes, widened
from feedd.recipe.params import DTYPES, NpyParams, canonical
from feedd.values import FieldKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from feedd.recipe.params import Params, TokensParams
    from feedd.values import TensorSpec


class RawCodec:
    """Codec of ``tensor``, ``tokens`` and ``array`` whose stored bytes are exactly the row: little-endian, C order."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def spec(self, name: str) -> TensorSpec:
        """DENSE, or RAGGED for ``array``."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the shape the recipe says, or how many numbers there are."""
        spec = self._params.spec("")
        return spec.shape if spec.kind is FieldKind.DENSE else (len(data) // np.dtype(spec.dtype).itemsize,)

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Copy ``data`` into ``out``.

        Raises:
            BadSample: another length than ``out`` has.
        """
        if len(data) != out.nbytes:
            raise BadSample(f"expected {out.nbytes} bytes for {out.dtype}{list(out.shape)}, got {len(data)}")
        little_endian = np.frombuffer(data, out.dtype.newbyteorder("<"))
        out[...] = little_endian.reshape(out.shape)

    def stored_at(self, head: memoryview, size_bytes: int, shape: Sequence[int]) -> int | None:  # noqa: ARG002 - no head
        """Return 0 if the sample is a row of this shape, else None; see ``workers.fixed_width``."""
        whole = np.dtype(self._params.spec("").dtype).itemsize * math.prod(shape)
        return 0 if size_bytes == whole and sys.byteorder == "little" else None


class ValuesCodec:
    """Codec of ``array``, ``tensor`` and ``tokens`` for numbers that are not stored as NumPy stores them in memory.

    Args:
        params: the field's parameters.
        read: returns a sample's numbers, one-dimensional, or raises BadSample.
        count: returns the count of these numbers, if counting is cheaper than reading.
    """

    def __init__(
        self,
        params: Params,
        read: Callable[[memoryview], NDArray[Any]],
        count: Callable[[memoryview], int] | None = None,
    ) -> None:
        self._params, self._read = params, read
        self._count = count or (lambda data: len(read(data)))

    def spec(self, name: str) -> TensorSpec:
        """DENSE, or RAGGED for ``array``."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the shape the recipe says, or how many numbers there are.

        Raises:
            BadSample: the numbers cannot be read.
        """
        spec = self._params.spec("")
        return spec.shape if spec.kind is FieldKind.DENSE else (self._count(data),)

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the numbers into ``out``.

        Raises:
            BadSample: the numbers cannot be read, their count differs from ``out``, or they do not fit its dtype.
        """
        values = self._read(data)
        if len(values) != out.size:
            raise BadSample(f"expected {out.size} numbers for {out.dtype}{list(out.shape)}, got {len(values)}")
        if values.dtype != out.dtype:
            with np.errstate(over="ignore", invalid="ignore"):  # values that do not fit are detected below
                fitting = values.astype(out.dtype)
            if not np.array_equal(fitting.astype(values.dtype), values, equal_nan=values.dtype.kind == "f"):
                raise BadSample(f"expected numbers that fit {out.dtype}, got {values.min()} to {values.max()}")
            values = fitting
        out[...] = values.reshape(out.shape)


def low_precision_reader(name: str) -> Callable[[memoryview], NDArray[np.float32]]:
    """Return a function that reads numbers of a type of ``recipe.low_precision`` as float32, one-dimensional.

    The function raises BadSample if the bytes are not a whole count of numbers of that type.
    """
    size_bytes = item_bytes(name)

    def read(data: memoryview) -> NDArray[np.float32]:
        if len(data) % size_bytes:
            raise BadSample(f"expected {name} numbers of {size_bytes} bytes, got {len(data)} bytes")
        return widened(np.frombuffer(data, np.uint8), name)

    return read


class TokensCodec(RawCodec):
    """Codec of ``tokens``: as ``tensor``, but fills up short samples if the recipe says so."""

    def __init__(self, params: TokensParams) -> None:
        super().__init__(params)
        self._pads, self._fill = params.last == "pad", params.fill

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:
        """Copy ``data`` into ``out``.

        Raises:
            BadSample: another length than ``out`` has.
        """
        count, rest = divmod(len(data), out.dtype.itemsize)
        if not self._pads or rest or not 0 < count < out.size:
            super().decode(data, out, seed)
            return
        out[count:] = self._fill
        super().decode(data, out[:count], seed)


class NpyCodec:
    """Codec of ``npy``: any byte and memory order in the file, native C order in the batch.

    Args:
        params: the field's parameters.
        header: reads the array's header.
    """

    def __init__(self, params: NpyParams, header: Callable[[memoryview], NpyHeader] = read_npy_header) -> None:
        self._params = params
        self._read = header

    def spec(self, name: str) -> TensorSpec:
        """DENSE if the recipe has a shape, else RAGGED."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the shape of the array from its header.

        Raises:
            BadSample: not .npy, or the dtype or the number of dimensions differs from the recipe.
        """
        return self._header(data).shape

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Copy the array into ``out``.

        Raises:
            BadSample: not .npy, or it differs from the recipe or from ``out``.
        """
        header = self._header(data)
        if header.shape != out.shape:
            raise BadSample(f"expected shape {list(out.shape)}, got {list(header.shape)}")
        flat = np.frombuffer(data, header.dtype, offset=header.data_at)
        out[...] = flat.reshape(header.shape, order="F" if header.fortran_order else "C")

    def stored_at(self, head: memoryview, size_bytes: int, shape: Sequence[int]) -> int | None:
        """Return where the numbers begin if they lie as in a row of this shape, else None; see ``workers.fixed_width``.

        None also stands for a sample that ``decode`` refuses.
        """
        if self._read is not read_npy_header:
            return None
        try:
            header = read_npy_head(head, DTYPES)
        except BadSample:
            return None
        as_listed = header.dtype.isnative and not (header.fortran_order and len(shape) > 1)
        numbers_bytes = header.dtype.itemsize * math.prod(shape)
        if not as_listed or header.dtype.name != self._params.dtype or header.shape != tuple(shape):
            return None
        return header.data_at if size_bytes == header.data_at + numbers_bytes else None

    def _header(self, data: memoryview) -> NpyHeader:
        header = self._read(data)
        params = self._params
        ndim = params.ndim if params.shape is None else len(params.shape)
        name = header.dtype.newbyteorder("=").name
        if name != params.dtype or len(header.shape) != ndim:
            raise BadSample(f"expected {params.dtype} with {ndim} dimensions, got {name}{list(header.shape)}")
        return header


def pin_npy(data: memoryview, header: Callable[[memoryview], NpyHeader] = read_npy_header) -> str:
    """Return canonical parameters from a first array: its dtype and number of dimensions.

    Args:
        data: the first array.
        header: see ``NpyCodec``.

    Raises:
        BadSample: not .npy.
    """
    found = header(data)
    dtype = found.dtype.newbyteorder("=").name
    if not found.shape:
        return canonical(NpyParams(dtype=dtype, shape=()))
    return canonical(NpyParams(dtype=dtype, ndim=len(found.shape)))
