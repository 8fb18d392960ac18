"""The header of a .npy file. Nothing is ever unpickled."""

from __future__ import annotations

import ast
import functools
import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from feedd.errors import BadSample
from feedd.recipe.params import DIMS_MAX, DTYPES, SAMPLE_BYTES_MAX

_NPY_MAGIC: Final = b"\x93NUMPY"
_HEADER_BYTES_MAX: Final = 10_000
HEAD_BYTES_MAX: Final = 12 + _HEADER_BYTES_MAX
"""Bytes of the longest header that is read, with what comes before it."""

_DESCR_CHARS_MAX: Final = 12
_SIDE_MAX: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """The header of a .npy file; ``data_at`` is the offset of the numbers."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    data_at: int


def read_npy_header(data: memoryview) -> NpyHeader:
    """Read the header of a .npy file and check its size; allocate no memory of the array's size.

    Raises:
        BadSample: not .npy, an object or structured dtype, a shape that is too large, or a size that does not match.
    """
    header = read_npy_head(data, DTYPES)
    expected = header.dtype.itemsize * math.prod(header.shape)
    if header.dtype.itemsize * math.prod(max(side, 1) for side in header.shape) > SAMPLE_BYTES_MAX:  # empty arrays too
        what = f"shape {header.shape!r} of {header.dtype}"
        raise BadSample(f"expected an array of at most {SAMPLE_BYTES_MAX} bytes, got {what}")
    if len(data) - header.data_at != expected:
        left = len(data) - header.data_at
        raise BadSample(f"expected {expected} bytes for {header.dtype}{list(header.shape)}, got {left}")
    return header


def read_npy_head(data: memoryview, dtypes: tuple[str, ...] = ()) -> NpyHeader:
    """Read the header of a .npy file of which only the beginning is available.

    Args:
        data: at least the header.
        dtypes: allowed dtypes; empty: all but objects and structures, so text and times are allowed.

    Raises:
        BadSample: see ``read_npy_header``.
    """
    head = bytes(data[:12])
    if head[:6] != _NPY_MAGIC or len(head) < 12 or head[6] not in {1, 2, 3}:
        raise BadSample(f"expected a .npy array, got {head!r}")
    length_size = 2 if head[6] == 1 else 4
    length = int.from_bytes(head[8 : 8 + length_size], "little")
    data_at = 8 + length_size + length
    if length > _HEADER_BYTES_MAX or data_at > len(data):
        raise BadSample(f"expected a .npy header of at most {_HEADER_BYTES_MAX} bytes, got {length}")
    return _parse_header(bytes(data[8 + length_size : data_at]), data_at, dtypes)


@functools.lru_cache(maxsize=256)  # a dataset has few different headers; parsing one takes 30 us
def _parse_header(text: bytes, data_at: int, dtypes: tuple[str, ...]) -> NpyHeader:
    try:
        fields = ast.literal_eval(text.decode("utf-8").strip())
        descr, fortran_order, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise BadSample(f"expected a .npy header, got {text[:60]!r}") from error
    if not (isinstance(descr, str) and len(descr) <= _DESCR_CHARS_MAX and isinstance(fortran_order, bool)):
        raise BadSample(f"expected a plain dtype in the .npy header, got {text[:60]!r}")
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError, OverflowError, SyntaxError, RecursionError, MemoryError) as error:  # numpy parses it
        raise BadSample(f"expected a dtype in the .npy header, got {descr!r}") from error
    if dtype.hasobject or dtype.kind == "V" or (dtypes and dtype.newbyteorder("=").name not in dtypes):
        raise BadSample(f"expected one of the dtypes {', '.join(dtypes or DTYPES)}, got {dtype}")
    if not (
        isinstance(shape, tuple)
        and len(shape) <= DIMS_MAX
        and all(isinstance(side, int) and 0 <= side <= _SIDE_MAX for side in shape)
    ):
        raise BadSample(f"expected a shape of at most {DIMS_MAX} sizes, got shape {shape!r} of {dtype}")
    return NpyHeader(dtype, shape, fortran_order, data_at)
