"""Masks and lengths of padded fields, which mark a sample's own values. One vector operation for all rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.batching.slot_layout import Layout

_BLOCK: Final = 1 << 16


def own_lengths(shapes: NDArray[np.int64], dims: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the size of each dimension that is a sample's own, int64[rows, ndim]; longer samples are cut.

    Args:
        shapes: int64[rows, ndim], decoded; negative if a row is bad.
        dims: the padded shape of a row.
    """
    return np.clip(shapes, 0, np.array(dims, np.int64))


def write_lengths(view: memoryview, layout: Layout, name: str, lengths: NDArray[np.int64]) -> None:
    """Write int64 lengths into the DENSE field ``name``.

    Args:
        view: the slot; borrowed for the call.
        layout: of the batch.
        name: the field.
        lengths: int64[rows, ndim].
    """
    at = layout.field(name).region.values_at
    np.frombuffer(view, np.int64, lengths.size, at)[:] = lengths.reshape(-1)


def write_mask(view: memoryview, layout: Layout, name: str, lengths: NDArray[np.int64]) -> None:
    """Write the mask into the PADDED bool field ``name``: True within the sample's own extent of each dimension.

    Args:
        view: the slot; borrowed for the call.
        layout: of the batch.
        name: the field.
        lengths: int64[rows, ndim]; for dimensions that the mask lacks, only 0 or not 0 matters.
    """
    region = layout.field(name).region
    dims = region.dims
    mask = np.frombuffer(view, np.bool_, layout.rows * math.prod(dims), region.values_at)
    mask = mask.reshape(layout.rows, *dims)
    if not dims:
        mask[...] = True
    # The last axis goes first with one pass over the mask. Values beyond the other axes are then cleared.
    for axis, side in reversed(tuple(enumerate(dims))):
        across = np.moveaxis(mask, axis + 1, 1)
        for low in range(0, side, _BLOCK):  # indices of all places would be larger than the mask
            high = min(low + _BLOCK, side)
            own = np.arange(low, high) < lengths[:, axis, None]
            own = own.reshape(layout.rows, high - low, *(1,) * (len(dims) - 1))
            if axis == len(dims) - 1:
                across[:, low:high] = own
            else:
                across[:, low:high] &= own
    if lengths.shape[1] > len(dims):
        mask[(lengths[:, len(dims) :] == 0).any(axis=1)] = False
