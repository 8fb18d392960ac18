"""Files of common libraries, as bytes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def npy(array: ArrayLike) -> bytes:
    """Return a .npy file."""
    sink = io.BytesIO()
    np.save(sink, array, allow_pickle=False)
    return sink.getvalue()


def parquet(table: pa.Table, **options: Any) -> bytes:
    """Return a Parquet file of a table, written with options of ``pyarrow.parquet.write_table``."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def parquet_of(**columns: Any) -> bytes:
    """Return a Parquet file of columns."""
    return parquet(pa.table(columns))
