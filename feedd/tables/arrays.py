"""Turns NumPy arrays, whose first dimension is the samples, into columns of a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feedd.errors import BadRecipe
from feedd.recipe.params import DIMS_MAX, DTYPES, SAMPLE_BYTES_MAX
from feedd.tables.writer import ColumnEncoding, Piece

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


PIECE_BYTES: Final = 16 << 20
_TIMES: Final = "mM"
_TEXTS: Final = "SU"


def array_encoding(dtype: np.dtype[Any], inner: Sequence[int]) -> ColumnEncoding | None:
    """Return the encoding of an array's column, or None if it cannot be a field.

    Args:
        dtype: the array's dtype.
        inner: the array's shape without the first dimension.
    """
    if dtype.kind in _TEXTS:
        return None if inner else ColumnEncoding("text", None)
    name = "int64" if dtype.kind in _TIMES else dtype.newbyteorder("=").name
    if name not in DTYPES or len(inner) > DIMS_MAX:
        return None
    width = math.prod(inner) * np.dtype(name).itemsize
    if width > SAMPLE_BYTES_MAX:
        return None
    if not inner:
        return ColumnEncoding(name, width, name)
    if not width:
        return ColumnEncoding(f"{name}[]", None, name)
    return ColumnEncoding(f"{name}[{','.join(map(str, inner))}]", width, name)


def piece(rows: NDArray[Any], how: ColumnEncoding) -> Piece:
    """Return rows of an array as a piece of a column."""
    if rows.dtype.kind in _TEXTS:
        return _texts(rows)
    values = rows.view(np.int64) if rows.dtype.kind in _TIMES and rows.dtype.isnative else rows
    values = np.ascontiguousarray(values, np.dtype(how.dtype).newbyteorder("<"))
    return Piece(values, None if how.width is not None else np.zeros(len(rows), np.int64))


def step_rows(how: ColumnEncoding, row_bytes: int) -> int:
    """Return the number of rows to read at a time."""
    return max(1, PIECE_BYTES // max(1, how.width or row_bytes))


def same_count(counts: Mapping[str, int], url: str) -> int | None:
    """Return the sample count that all arrays have, or None if there are no arrays.

    Args:
        counts: the first dimension of each array.
        url: named in errors.

    Raises:
        BadRecipe: the counts differ.
    """
    if len(set(counts.values())) > 1:
        raise BadRecipe(
            "expected arrays with the same number of rows, got "
            + ", ".join(f"{name} of {count}" for name, count in list(counts.items())[:60]),
            object=url,
            hint="select arrays of equal length in fields=",
            stage="decode",
        )
    return next(iter(counts.values()), None)


def _texts(rows: NDArray[Any]) -> Piece:
    """Return text of fixed width, as NumPy stores it, without its padding."""
    if not len(rows) or not rows.dtype.itemsize:
        return Piece(np.zeros(0, np.uint8), np.zeros(len(rows), np.int64))
    encoded = np.char.encode(rows, "utf-8") if rows.dtype.kind == "U" else np.ascontiguousarray(rows)
    sizes = np.char.str_len(encoded).astype(np.int64)
    width = encoded.dtype.itemsize
    if not width:
        return Piece(np.zeros(0, np.uint8), sizes)
    table = np.ascontiguousarray(encoded).view(np.uint8).reshape(len(rows), width)
    return Piece(table[np.arange(width) < sizes[:, None]], sizes)
