"""Replaces bad rows by copies of good ones, so that a batch stays full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feedd.batching.slot_layout import lay_out, write_tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.batching.slot_layout import Layout


def stand_ins(good: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the source row of each row: the row itself if it is good, else the next good one, wrapping around.

    Args:
        good: bool[rows]; at least one is True.

    Returns:
        int64[rows].
    """
    chosen = np.flatnonzero(good)
    following = np.searchsorted(chosen, np.arange(len(good)))
    found: NDArray[np.int64] = chosen[following % len(chosen)].astype(np.int64, copy=False)
    return found


def repeated(layout: Layout, source: NDArray[np.int64]) -> Layout:
    """Return the layout of a batch in which row ``i`` is a copy of row ``source[i]``; fixed sizes give the same layout.

    Args:
        layout: the current layout.
        source: int64[rows].
    """
    shapes = {place.spec.name: place.shapes[source] for place in layout.fields if place.shapes is not None}
    if not shapes:
        return layout
    dims = {place.spec.name: place.region.dims for place in layout.fields}
    return lay_out([place.spec for place in layout.fields], layout.rows, shapes, dims)


def repeat_in_place(view: memoryview, layout: Layout, source: NDArray[np.int64]) -> None:
    """Overwrite rows if all rows have the same size (``repeated`` returned the layout that it was given).

    Args:
        view: the slot, decoded.
        layout: the layout of the slot.
        source: int64[rows]; an overwritten row must not be the source of another row.
    """
    moved = np.flatnonzero(source != np.arange(layout.rows))
    for place in layout.fields:
        rows = np.frombuffer(view, np.uint8, place.region.values_bytes, place.region.values_at)
        rows = rows.reshape(layout.rows, -1)
        rows[moved] = rows[source[moved]]


def repeat_into(view: memoryview, layout: Layout, source: NDArray[np.int64], target: memoryview, fresh: Layout) -> None:
    """Write a copy of a batch in which row ``i`` is a copy of row ``source[i]``.

    Args:
        view: the slot, decoded.
        layout: the layout of the slot.
        source: int64[rows].
        target: other memory, at least ``fresh.size_bytes``.
        fresh: the layout that ``repeated`` returned.
    """
    breaks = np.flatnonzero(np.diff(source) != 1) + 1
    first = np.concatenate((np.zeros(min(len(source), 1), np.int64), breaks))  # runs of adjacent source rows
    last = np.append(breaks, len(source))[: len(first)] - 1
    for place, its in zip(layout.fields, fresh.fields, strict=True):
        start = place.out_at[source[first]]
        end = (place.out_at + place.row_bytes)[source[last]]
        at = its.out_at[first]
        for low, high, to, until in zip(*(one.tolist() for one in (start, end, at, at + end - start)), strict=True):
            target[to:until] = view[low:high]
    write_tables(target, fresh)
