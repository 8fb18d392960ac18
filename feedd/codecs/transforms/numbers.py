"""Transforms of numbers as such: labels, and what pixels hold. Loads no image library."""

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
    """Return the same numbers in another dtype; to integers they are rounded, half to even.

    Raises:
        BadSample: an integer dtype that cannot hold one of them.
    """
    target = np.dtype(dtype)
    if target.kind == "f":
        with np.errstate(over="ignore"):  # beyond float16 it is infinity, as IEEE rounds
            return values.astype(target)
    if values.size:
        low, high = values.min(), values.max()
        limits = np.iinfo(target)
        # As Python's integers: floats would take 2**64 for what uint64 holds. NaN is in no range.
        fits = np.isfinite(low) and np.isfinite(high)
        if not (fits and limits.min <= round(low.item()) and round(high.item()) <= limits.max):
            raise BadSample(f"expected numbers that fit {dtype}, got {low} to {high}")
    return np.rint(values).astype(target) if values.dtype.kind == "f" else values.astype(target)


def one_hot(label: NDArray[Any], one: OneHot) -> NDArray[Any]:
    """Return zeros, and 1 at the label's place.

    Raises:
        BadSample: a label that is none of the classes.
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
        BadSample: one that does not fit.
    """
    for one in transforms:
        value = one_hot(value, one) if isinstance(one, OneHot) else cast(value, one.dtype)
    return value
