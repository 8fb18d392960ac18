"""Values that measuring already produced: they are copied into their rows and not decoded again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.values import FieldKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.batching.slot_layout import FieldRegion
    from feedd.recipe.padding import Pad
    from feedd.workers.work import FieldWork, Piece


@dataclass(frozen=True, slots=True)
class PrecomputedValues:
    """The values of one field for some rows of a batch.

    Attributes:
        lengths: int64[rows]; -1 if a row could not be measured.
        pieces: the values, in the order of the rows.
    """

    lengths: NDArray[np.int64]
    pieces: Sequence[Piece]

    def ready(self, room: int | None) -> NDArray[np.bool_]:
        """Return bool[rows]: whether a row's values are present.

        Args:
            room: the maximum length of a value that is no bad sample; None: no limit.
        """
        here = np.zeros(len(self.lengths), np.bool_)
        for piece in self.pieces:
            here[piece.rows.start : piece.rows.stop] = True
        here &= self.lengths >= 0
        return here if room is None else here & (self.lengths <= room)

    def lay(self, view: memoryview, place: FieldRegion, out_at: NDArray[np.int64], rows: NDArray[np.bool_]) -> None:
        """Copy values into their rows.

        Args:
            view: the slot.
            place: the place of the field.
            out_at: int64[rows], first byte of each row.
            rows: bool[rows], the rows to copy.
        """
        target, itemsize = _values(view, place), np.dtype(place.spec.dtype).itemsize
        at = (out_at - place.region.values_at) // itemsize
        room = place.region.dims[0] if place.spec.kind is FieldKind.PADDED else None
        for piece in self.pieces:
            here = slice(piece.rows.start, piece.rows.stop)
            lengths = np.maximum(self.lengths[here], 0)
            source = np.cumsum(lengths) - lengths
            chosen = np.flatnonzero(rows[here] & (lengths > 0))
            sizes = lengths[chosen] if room is None else np.minimum(lengths[chosen], room)
            _copy(target, at[here][chosen], piece.values, source[chosen], sizes)


def _copy(
    target: NDArray[Any],
    to: NDArray[np.int64],
    values: NDArray[Any],
    source: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Copy spans; spans that are adjacent in both arrays are copied together."""
    if not len(to):
        return
    apart = np.flatnonzero((to[1:] != to[:-1] + sizes[:-1]) | (source[1:] != source[:-1] + sizes[:-1])) + 1
    first = np.concatenate(([0], apart))
    last = np.concatenate((apart, [len(to)])) - 1
    counts = source[last] + sizes[last] - source[first]
    for begin, at, count in zip(to[first].tolist(), source[first].tolist(), counts.tolist(), strict=True):
        target[begin : begin + count] = values[at : at + count]


def fill_up(view: memoryview, place: FieldRegion, pad: Pad) -> None:
    """Fill a padded field with its padding value before values are copied into it."""
    _values(view, place)[:] = np.array(pad.value).astype(place.spec.dtype)


def _values(view: memoryview, place: FieldRegion) -> NDArray[Any]:
    dtype, region = np.dtype(place.spec.dtype), place.region
    if not region.values_bytes:
        return np.empty(0, dtype)
    return np.frombuffer(view, dtype, region.values_bytes // dtype.itemsize, region.values_at)


def some(work: FieldWork, rows: NDArray[np.intp]) -> FieldWork:
    """Return a field's work restricted to some rows."""
    return replace(
        work,
        file_no=work.file_no[rows],
        start=work.start[rows],
        size=work.size[rows],
        out_at=work.out_at[rows],
        shape=None if work.shape is None else work.shape[rows],
    )
