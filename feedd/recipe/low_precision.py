"""Floating-point types that NumPy lacks. Their numbers become float32, which holds each of them exactly. Pure."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NARROW: Final = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""The types, by torch's names, and the unsigned type with as many bits."""

WIDENED: Final = "float32"
"""The dtype that their numbers become."""


def item_bytes(name: str) -> int:
    """Return the bytes of one number of any type, low-precision or NumPy's."""
    return np.dtype(NARROW.get(name, name)).itemsize


def widened(data: NDArray[Any], name: str) -> NDArray[np.float32]:
    """Return the numbers of a low-precision type as float32[numbers].

    Args:
        data: bytes of the numbers, back to back and little-endian.
        name: one of ``NARROW``.
    """
    if name == "bfloat16":  # the upper half of a float32
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return _values(name)[data.view(np.uint8)]


@functools.cache
def _values(name: str) -> NDArray[np.float32]:
    """Return float32[256], the number that each byte stands for."""
    codes = np.arange(256, dtype=np.uint16)
    if name == "float8_e5m2":  # the upper half of a float16
        return (codes << 8).view(np.float16).astype(np.float32)
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    small = np.ldexp(mantissa, -9)
    values = np.where(exponent == 0, small, np.ldexp(8 + mantissa, exponent - 10)).astype(np.float32)
    values[codes & 127 == 127] = np.nan  # the type has no infinities
    return np.where(codes < 128, values, -values)
