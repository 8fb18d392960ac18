"""The Arrow columns that can be fields of samples, and their encodings.

Encodings by type::

    numbers, booleans                   unchanged
    decimals, dates, times              ``int64``: the unscaled number, or days, seconds and so on since 1970
    lists of numbers, of any depth      ``float32[]``: their numbers one after another
    lists of fixed length               ``float32[77]``
    strings, binary                     ``text``, and unchanged bytes
    a struct of ``bytes`` and ``path``  its bytes, as Hugging Face stores images and sound

Dictionaries, runs and extensions count as their values. Other types cannot be fields: maps, unions, other structs,
lists of strings.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from feedd.convert.table_writer import ColumnEncoding
from feedd.recipe.params import DIMS_MAX, DTYPES, SAMPLE_BYTES_MAX

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
    return _list(type_)


def _list(type_: pa.DataType) -> ColumnEncoding | None:
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
