"""Packs documents of any length into rows of one length.

``concat`` puts documents one after another and cuts them where a row ends. ``bins`` puts each document into the first
row with space, longest first, and cuts only documents longer than a row. The documents are those of one step, so a
batch depends only on its step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.batching.slot_layout import ALIGN_BYTES, FieldRegion, Layout, slot_pages
from feedd.values import FieldKind, Region, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.recipe.pack_params import Packing

_IDS = "int32"


def packed_specs(spec: TensorSpec, packing: Packing, beside: Sequence[TensorSpec] = ()) -> tuple[TensorSpec, ...]:
    """Return the fields that a packed field becomes, then the fields that are packed with it.

    ``NAME`` has the tokens. ``NAME.document`` has the index in the step of each token's sample, or -1 without a token.
    ``NAME.position`` has the position of each token in its document, counted from 0 in each row.
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
    """Packed documents.

    Attributes:
        packing: the packing options.
        rows: number of rows of the batch.
        start: int64[documents], place of each document's first token, counted over all rows.
        lengths: int64[documents], tokens of each document.
    """

    packing: Packing
    rows: int
    start: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: NDArray[np.int64], packing: Packing) -> Packed:
        """Place documents; those with a negative length (known to be bad) take no space."""
        lengths = np.maximum(lengths.reshape(-1), 0)
        if packing.how == "concat":
            start = np.cumsum(lengths) - lengths
            return cls(packing, -(-int(lengths.sum()) // packing.length), start, lengths)
        start, rows = _first_fit(lengths, packing.length)
        return cls(packing, rows, start, lengths)

    def layout(self, specs: Sequence[TensorSpec]) -> Layout:
        """Return the layout of ``packed_specs``; ``out_at`` of the first field is where each document is decoded to."""
        places, at = [], 0
        for spec in specs:
            itemsize = np.dtype(spec.dtype).itemsize
            size_bytes = self.rows * self.packing.length * itemsize
            places.append(FieldRegion(spec, Region(at, size_bytes), at + self.start * itemsize))
            at += -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
        return Layout(self.rows, tuple(places), at)

    def finish(self, view: memoryview, layout: Layout, bad: Sequence[int]) -> None:
        """Write documents and positions, and ``fill`` in places without a token.

        Args:
            view: the slot with its documents decoded.
            layout: the layout of the batch.
            bad: documents that could not be decoded: their places are filled as if they were free.
        """
        total = self.rows * self.packing.length
        tokens, document, position, *beside = (
            np.frombuffer(view, place.spec.dtype, total, place.region.values_at) for place in layout.fields
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
        """Cut all places into pieces that each belong to one row, and to one document or none.

        Args:
            lengths: int64[documents], 0 if a document is left out.

        Returns:
            int64[pieces], start of each piece, ascending; int64[pieces], its document, or -1 without one.
        """
        total = self.rows * self.packing.length
        held = np.flatnonzero(lengths)
        held = held[np.argsort(self.start[held])]
        low = self.start[held]
        high = low + lengths[held]
        begin = np.sort(np.concatenate((low, high, np.arange(0, total, self.packing.length))))
        begin = begin[(np.diff(begin, prepend=-1) > 0) & (begin < total)]
        at = np.searchsorted(low, begin, "right") - 1  # the last document that starts before
        inside = begin < np.append(high, 0)[at]
        return begin, np.where(inside, np.append(held, -1)[at], -1)


def _first_fit(lengths: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], int]:
    """Return where each document starts, and the number of rows."""
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    sizes = lengths[order]
    long_count = int(np.count_nonzero(sizes > length))
    taken = -(-sizes[:long_count] // length)
    ends = np.cumsum(taken)  # long documents come first, each in own rows; its last row has space
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
    """Put each document into the first bin that has space, or into a new bin at the end.

    Each choice depends on the ones before, so documents are placed one by one, about a microsecond each. A tree of the
    largest space among neighbours leads to the first bin that has enough.

    Args:
        rooms: int64[bins], free places at the end of each.
        sizes: int64[documents], at most ``length`` each, in the order in which they are placed.
        length: places of a bin.

    Returns:
        int64[documents], the bin of each document; int64[documents], its first place there.
    """
    # All new bins but one are more than half full, because two half-full bins would have been one bin.
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
            if other > left:  # noqa: PLR1730 - max() takes as long as the whole loop body
                left = other
            if room_in[node] == left:
                break
            room_in[node] = left
    return np.array(bins, np.int64), np.array(at, np.int64)


def slot_bytes(specs: Sequence[TensorSpec], packing: Packing, rows: int, lengths: NDArray[np.int64]) -> int:
    """Estimate a slot's bytes for ``rows`` documents with lengths like ``lengths``, rounded up to pages."""
    tokens = 1.5 * float(lengths.mean()) * rows + float(lengths.max()) if len(lengths) else 0.0
    packed_rows = math.ceil(tokens / packing.length) + 1
    itemsizes = sum(np.dtype(spec.dtype).itemsize for spec in specs)
    return slot_pages(packed_rows * packing.length * itemsizes + len(specs) * ALIGN_BYTES)
