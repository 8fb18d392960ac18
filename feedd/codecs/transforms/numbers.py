"""Transforms of numbers: labels and pixel values. Imports no image library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.errors import BadSample
from feedd.recipe.transform_params import OneHot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.recipe.transform_params import NumberTransform


def cast(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return the numbers in another dtype; integers are rounded, half to even.

    Raises:
        BadSample: the integer dtype cannot hold one of the numbers.
    """
    target = np.dtype(dtype)
    if target.kind == "f":
        with np.errstate(over="ignore"):  # numbers beyond float16 become infinity, as IEEE rounds
            return values.astype(target)
    if values.size:
        low, high = values.min(), values.max()
        limits = np.iinfo(target)
        # Compare as Python integers: as floats, 2**64 would pass for uint64. NaN is in no range.
        fits = np.isfinite(low) and np.isfinite(high)
        if not (fits and limits.min <= round(low.item()) and round(high.item()) <= limits.max):
            raise BadSample(f"expected numbers that fit {dtype}, got {low} to {high}")
    return np.rint(values).astype(target) if values.dtype.kind == "f" else values.astype(target)


def one_hot(label: NDArray[Any], one: OneHot) -> NDArray[Any]:
    """Return zeros with a 1 at the label's index.

    Raises:
        BadSample: the label is not a class number.
    """
    place = int(label)
    if not 0 <= place < one.classes:
        raise BadSample(f"expected a label of 0 to {one.classes - 1}, got {place}")
    row = np.zeros(one.classes, one.dtype)
    row[place] = 1
    return row


def of_number(value: NDArray[Any], transforms: Sequence[NumberTransform]) -> NDArray[Any]:
    """Return a label or number after its transforms.

    Raises:
        BadSample: the number does not fit a transform.
    """
    for one in transforms:
        value = one_hot(value, one) if isinstance(one, OneHot) else cast(value, one.dtype)
    return value
