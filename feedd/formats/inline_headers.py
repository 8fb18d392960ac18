"""Arrays with a header in front of their numbers, as MosaicML and LitData write them; decoded by ``npy``.

MosaicML [mosaicml-streaming, base/format/mds/encodings.py]: one byte for the dtype, unless the encoding names it. Then
one byte ``ndim << 2 | log2(bytes of a side)``, the sides in little-endian, and the numbers in C order.

LitData [litdata, streaming/serializers.py]: dtype and number of dimensions as u32 each, a u32 per side, and the numbers
in C order. The header is little-endian for numpy's arrays and big-endian for torch's tensors.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.errors import BadSample
from feedd.formats.npy_header import NpyHeader, read_npy_header
from feedd.recipe.params import DIMS_MAX, SAMPLE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MDS_DTYPES: Final[Mapping[int, str]] = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
NUMPY_DTYPES: Final[Mapping[int, str]] = dict(
    enumerate(
        (
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "float16",
            "float32",
            "float64",
        )
    )
) | {13: "bool"}
TORCH_DTYPES: Final[Mapping[int, str]] = {
    0: "float32",
    1: "float32",
    2: "float64",
    3: "float64",
    8: "float16",
    9: "float16",
    11: "uint8",
    12: "int8",
    13: "int16",
    14: "int16",
    15: "int32",
    16: "int32",
    17: "int64",
    18: "int64",
    19: "bool",
    20: "uint16",
}
"""LitData's numbers of dtypes; complex numbers and bfloat16 are not supported."""

_WORD: Final = 4


def header_reader(stored: str) -> Callable[[memoryview], NpyHeader]:
    """Return the function that reads the header of an array with this encoding (see ``recipe.encodings``)."""
    kind, _, rest = stored.partition(":")
    if kind == "mds":
        return functools.partial(_mds, fixed=rest)
    if kind == "litdata":
        return functools.partial(_litdata, torch=rest == "tensor")
    return read_npy_header


def _mds(data: memoryview, fixed: str) -> NpyHeader:
    """Read MosaicML's header.

    Raises:
        BadSample: the header is cut short, its dtype unknown, its shape too large, or its size does not match.
    """
    at = 0 if fixed else 1
    if len(data) <= at:
        raise BadSample(f"expected the header of an array, got {len(data)} bytes")
    name = fixed or MDS_DTYPES.get(data[0])
    if name is None:
        raise BadSample(f"expected the number of a MosaicML dtype, got {data[0]}")
    ndim, width = data[at] >> 2, 1 << (data[at] & 3)
    end = at + 1 + ndim * width
    if ndim > DIMS_MAX or end > len(data):
        raise BadSample(f"expected at most {DIMS_MAX} sides of {width} bytes, got {ndim} in {len(data)} bytes")
    shape = tuple(np.frombuffer(data, f"<u{width}", ndim, at + 1).tolist())
    return _checked(name, shape, end, len(data))


def _litdata(data: memoryview, *, torch: bool) -> NpyHeader:
    """Read LitData's header.

    Raises:
        BadSample: as for ``_mds``.
    """
    if len(data) < 2 * _WORD:
        raise BadSample(f"expected the header of an array, got {len(data)} bytes")
    word = ">u4" if torch else "<u4"
    number, ndim = np.frombuffer(data, word, 2).tolist()
    name = (TORCH_DTYPES if torch else NUMPY_DTYPES).get(number)
    if name is None:
        raise BadSample(f"expected the number of a LitData dtype that numpy has, got {number}")
    end = (2 + ndim) * _WORD
    if ndim > DIMS_MAX or end > len(data):
        raise BadSample(f"expected at most {DIMS_MAX} sides, got {ndim} in {len(data)} bytes")
    shape = tuple(np.frombuffer(data, word, ndim, 2 * _WORD).tolist())
    return _checked(name, shape, end, len(data))


def _checked(name: str, shape: tuple[int, ...], data_at: int, size_bytes: int) -> NpyHeader:
    dtype = np.dtype(name).newbyteorder("<")
    expected = math.prod(shape) * dtype.itemsize
    if math.prod(max(side, 1) for side in shape) * dtype.itemsize > SAMPLE_BYTES_MAX:  # checks empty arrays too
        raise BadSample(f"expected an array of at most {SAMPLE_BYTES_MAX} bytes, got shape {list(shape)}")
    if expected > SAMPLE_BYTES_MAX or size_bytes - data_at != expected:
        raise BadSample(f"expected {expected} bytes for {name}{list(shape)}, got {size_bytes - data_at}")
    return NpyHeader(dtype, shape, fortran_order=False, data_at=data_at)
