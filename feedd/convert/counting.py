"""The conversions that tell only how many samples an object has, so that few of its bytes are read."""

from __future__ import annotations

from typing import Final

from feedd.conversion import PARAMS_BYTES_MAX, Conversion
from feedd.convert.columnar import ROWS_ONLY
from feedd.formats import format_registry as formats
from feedd.formats.outline import REQUESTS_MAX, is_outlined

COUNT: Final = "count"
"""The conversion of a shard's headers to the number of its samples; it is requested, and never derived from a name."""

PARQUET: Final = "parquet"
_REQUESTS_MAX: Final = 16


def count_conversion(conversion: Conversion | None, format_name: str) -> Conversion | None:
    """Return the conversion of an object's headers to the number of its samples; None: the whole object is needed.

    Args:
        conversion: the shard's conversion; None if it has none.
        format_name: format of the object, if it has no conversion.
    """
    spec = None if conversion is not None else formats.find(format_name.partition(":")[0])
    fits = len(format_name.encode()) <= PARAMS_BYTES_MAX
    return Conversion(COUNT, format_name) if spec is not None and fits and is_outlined(spec) else None


def only_counts(conversion: Conversion | None) -> bool:
    """Whether a conversion reads few bytes of an object, and never the whole."""
    if conversion is None:
        return False
    return conversion.name == COUNT or (conversion.name == PARQUET and conversion.params == ROWS_ONLY)


def requests_max(name: str) -> int:
    """Return how many times a converter may ask for further ranges of an object."""
    return REQUESTS_MAX if name == COUNT else _REQUESTS_MAX
