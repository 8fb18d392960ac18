"""Megatron's indexed datasets, written by their layout: an index and the tokens it is of."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_DTYPES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def megatron(documents: Sequence[Sequence[int]], dtype: str) -> tuple[bytes, bytes]:
    """Return the contents of ``.idx`` and ``.bin``: one sequence per document."""
    lengths = np.array([len(one) for one in documents], np.int32)
    size = np.dtype(dtype).itemsize
    sizes = lengths.astype(np.int64) * size
    pointers = np.cumsum(sizes) - sizes
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, _DTYPES[dtype], len(documents), len(documents) + 1)
    index += lengths.tobytes() + pointers.tobytes()
    index += np.arange(len(documents) + 1, dtype=np.int64).tobytes()
    return index, b"".join(np.array(one, dtype).tobytes() for one in documents)
