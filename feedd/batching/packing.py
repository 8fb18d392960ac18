"""Documents of any length packed into rows of one: where each goes, and which document each token of a row is of.

``concat``: one after another, cut where a row ends. ``bins``: each into the first row that has room, longest first;
only a document longer than a row is cut. The documents are those of one step: a batch depends on nothing but its step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.batching.slot_layout import ALIGN_BYTES, FieldPlace, Layout, slot_pages
from feedd.values import FieldKind, Region, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.recipe.pack_params import Packing

_IDS = "int32"


def packed_specs(spec: TensorSpec, packing: Packing, beside: Sequence[TensorSpec] = ()) -> tuple[TensorSpec, ...]:
    """Return the fields that a packed one becomes, and behind them those that are packed ``beside`` it.

    ``NAME`` itself; ``NAME.document``: the place in the step of the sample that each token is of, -1 where none is;
    ``NAME.position``: of each token in its document, counted anew in each row.
    """
    shape = (packing.length,)
    return (
        TensorSpec(spec.name, FieldKind.DENSE, spec.dtype, shape),
        TensorSpec(f"{spec.name}.document", FieldKind.DENSE, _IDS, shape),
        TensorSpec(f"{spec.name}.position", FieldKind.DENSE, _IDS, shape),
        *(TensorSpec(other.name, FieldKind.DENSE, other.dtype, shape) for other in beside),
    )


@dataclass(frozen=True, slots=True)
class Packed:
    """Documents in rows.

    Attributes:
        packing: how.
        rows: of the batch.
        start: int64[documents], place of each one's first token, rows counted one after another.
        lengths: int64[documents].
    """

    packing: Packing
    rows: int
    start: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: NDArray[np.int64], packing: Packing) -> Packed:
        """Place documents of these lengths; negative ones (samples that are known to be bad) take no room."""
        lengths = np.maximum(lengths.reshape(-1), 0)
        if packing.how == "concat":
            start = np.cumsum(lengths) - lengths
            return cls(packing, -(-int(lengths.sum()) // packing.length), start, lengths)
        start, rows = _first_fit(lengths, packing.length)
        return cls(packing, rows, start, lengths)

    def layout(self, specs: Sequence[TensorSpec]) -> Layout:
        """Return where ``packed_specs`` lie; ``out_at`` of the first is where each document is decoded to."""
        places, at = [], 0
        for spec in specs:
            itemsize = np.dtype(spec.dtype).itemsize
            size_bytes = self.rows * self.packing.length * itemsize
            places.append(FieldPlace(spec, Region(at, size_bytes), at + self.start * itemsize))
            at += -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
        return Layout(self.rows, tuple(places), at)

    def finish(self, view: memoryview, layout: Layout, bad: Sequence[int]) -> None:
        """Write documents and positions, and ``fill`` where no token is.

        Args:
            view: the slot, its documents decoded.
            layout: of the batch.
            bad: documents that could not be decoded: their places are filled as if nobody took them.
        """
        total = self.rows * self.packing.length
        tokens, document, position, *beside = (
            np.frombuffer(view, place.spec.dtype, total, place.region.values_at) for place in layout.places
        )
        lengths = self.lengths.copy()
        lengths[list(bad)] = 0
        begin, number = self._pieces(lengths)
        sizes = np.diff(begin, append=total)
        document[:] = np.repeat(number.astype(_IDS), sizes)
        np.subtract(np.arange(total, dtype=_IDS), np.repeat(begin.astype(_IDS), sizes), out=position)
        if (number < 0).any():
            empty = np.flatnonzero(document < 0)
            position[empty] = 0
            for values, fill in zip((tokens, *beside), (self.packing.fill, *self.packing.beside), strict=True):
                values[empty] = fill

    def _pieces(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cut all places into pieces that are of one row, and of one document or of none.

        Args:
            lengths: int64[documents], 0 where one is left out.

        Returns:
            int64[pieces], where each begins, ascending; int64[pieces], its document, -1 where it is of none.
        """
        total = self.rows * self.packing.length
        held = np.flatnonzero(lengths)
        held = held[np.argsort(self.start[held])]
        low = self.start[held]
        high = low + lengths[held]
        begin = np.sort(np.concatenate((low, high, np.arange(0, total, self.packing.length))))
        begin = begin[(np.diff(begin, prepend=-1) > 0) & (begin < total)]
        at = np.searchsorted(low, begin, "right") - 1  # the last one that starts before
        inside = begin < np.append(high, 0)[at]
        return begin, np.where(inside, np.append(held, -1)[at], -1)


def _first_fit(lengths: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], int]:
    """Return where each document starts, and how many rows they take."""
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    sizes = lengths[order]
    long_count = int(np.count_nonzero(sizes > length))
    taken = -(-sizes[:long_count] // length)
    ends = np.cumsum(taken)  # long ones come first, each in rows of its own, of which the last one has room
    bins, at = _fit(taken * length - sizes[:long_count], sizes[long_count:], length)
    behind = int(ends[-1]) if long_count else 0
    bin_count = max(long_count, int(bins.max(initial=-1)) + 1)
    row = np.concatenate((ends - 1, np.arange(behind, behind + bin_count - long_count)))
    start = np.zeros(lengths.shape[0], np.int64)
    start[order] = np.concatenate(((ends - taken) * length, row[bins] * length + at))
    return start, behind + bin_count - long_count


def _fit(
    rooms: NDArray[np.int64], sizes: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Put each document into the first bin that has room, or into a new one behind the others.

    What has been put where decides where the next one goes, so this is one after another, about a microsecond each:
    the most room among neighbours, neighbours of neighbours, ..., leads to the first that has enough.

    Args:
        rooms: int64[bins], free places at the end of each.
        sizes: int64[documents], in the order in which they choose; at most ``length``.
        length: places of a bin.

    Returns:
        int64[documents], the bin of each; int64[documents], its first place there.
    """
    # Of new ones all but one are more than half full: two that are not would have been one.
    most = len(rooms) + min(len(sizes), 2 * -(-int(sizes.sum()) // length) + 1)
    leaves = 1 << max(most - 1, 0).bit_length()
    tree = np.zeros(2 * leaves, np.int64)
    tree[leaves : leaves + len(rooms)] = rooms
    low = leaves
    while low > 1:
        tree[low // 2 : low] = tree[low : 2 * low].reshape(-1, 2).max(axis=1)
        low //= 2
    room_in: list[int] = tree.tolist()
    count, bins, at = len(rooms), [], []
    for size in sizes.tolist():
        if room_in[1] < size:
            node, count, left = leaves + count, count + 1, length
        else:
            node = 1
            while node < leaves:
                node += node
                if room_in[node] < size:
                    node += 1
            left = room_in[node]
        bins.append(node - leaves)
        at.append(length - left)
        left -= size
        room_in[node] = left
        while node > 1:
            other = room_in[node ^ 1]
            node >>= 1
            if other > left:  # noqa: PLR1730 - max() would take as long as all of this
                left = other
            if room_in[node] == left:
                break
            room_in[node] = left
    return np.array(bins, np.int64), np.array(at, np.int64)


def slot_bytes(specs: Sequence[TensorSpec], packing: Packing, rows: int, lengths: NDArray[np.int64]) -> int:
    """Estimate what a slot must hold for ``rows`` documents like those of these lengths; rounded up to pages."""
    tokens = 1.5 * float(lengths.mean()) * rows + float(lengths.max()) if len(lengths) else 0.0
    packed_rows = math.ceil(tokens / packing.length) + 1
    itemsizes = sum(np.dtype(spec.dtype).itemsize for spec in specs)
    return slot_pages(packed_rows * packing.length * itemsizes + len(specs) * ALIGN_BYTES)
