"""``npy``, ``tensor`` and ``tokens``: arrays of numbers. Nothing is ever unpickled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feedd.errors import BadSample
from feedd.formats.npy_header import NpyHeader, read_npy_header
from feedd.recipe.low_precision import item_bytes, widened
from feedd.recipe.params import NpyParams, canonical
from feedd.values import FieldKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from feedd.recipe.params import Params, TokensParams
    from feedd.values import TensorSpec


class RawCodec:
    """``tensor``, ``tokens`` and ``array``: exactly the row's bytes, little-endian, C order."""

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


class LowPrecisionCodec(RawCodec):
    """``tensor`` and ``array`` over numbers that become float32.

    Args:
        params: of the field.
        dtype: their type, one of ``recipe.low_precision``.
    """

    def __init__(self, params: Params, dtype: str) -> None:
        super().__init__(params)
        self._dtype, self._item_bytes = dtype, item_bytes(dtype)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the shape the recipe says, or how many numbers there are."""
        spec = self._params.spec("")
        return spec.shape if spec.kind is FieldKind.DENSE else (len(data) // self._item_bytes,)

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the numbers into ``out``.

        Raises:
            BadSample: another length than ``out`` takes.
        """
        if len(data) != out.size * self._item_bytes:
            expected = f"{out.size * self._item_bytes} bytes for {self._dtype}{list(out.shape)}"
            raise BadSample(f"expected {expected}, got {len(data)}")
        out[...] = widened(np.frombuffer(data, np.uint8), self._dtype).reshape(out.shape)


class TokensCodec(RawCodec):
    """``tokens``: as ``tensor``, and short samples filled up where the recipe says so."""

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
    """``npy``: any byte and memory order in the file, native C order in the batch.

    Args:
        params: of the field.
        header: reads what the array says of itself in front of its numbers.
    """

    def __init__(self, params: NpyParams, header: Callable[[memoryview], NpyHeader] = read_npy_header) -> None:
        self._params = params
        self._read = header

    def spec(self, name: str) -> TensorSpec:
        """DENSE with a shape in the recipe, else RAGGED."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Shape of the array.

        Raises:
            BadSample: not .npy, or another dtype or number of dimensions than the recipe has.
        """
        return self._header(data).shape

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Copy the array into ``out``.

        Raises:
            BadSample: not .npy, or not what the recipe and ``out`` expect.
        """
        header = self._header(data)
        if header.shape != out.shape:
            raise BadSample(f"expected shape {list(out.shape)}, got {list(header.shape)}")
        flat = np.frombuffer(data, header.dtype, offset=header.data_at)
        out[...] = flat.reshape(header.shape, order="F" if header.fortran_order else "C")

    def _header(self, data: memoryview) -> NpyHeader:
        header = self._read(data)
        params = self._params
        ndim = params.ndim if params.shape is None else len(params.shape)
        name = header.dtype.newbyteorder("=").name
        if name != params.dtype or len(header.shape) != ndim:
            raise BadSample(f"expected {params.dtype} with {ndim} dimensions, got {name}{list(header.shape)}")
        return header


def pin_npy(data: memoryview, header: Callable[[memoryview], NpyHeader] = read_npy_header) -> str:
    """Return canonical parameters for arrays like this first one: its dtype and number of dimensions.

    Args:
        data: the first one.
        header: see ``NpyCodec``.

    Raises:
        BadSample: not .npy.
    """
    found = header(data)
    dtype = found.dtype.newbyteorder("=").name
    if not found.shape:
        return canonical(NpyParams(dtype=dtype, shape=()))
    return canonical(NpyParams(dtype=dtype, ndim=len(found.shape)))
