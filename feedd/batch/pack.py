"""Documents of any length packed into rows of one: where each goes, and which document each token of a row is of.

``concat``: one after another, cut where a row ends. ``bins``: each into the first row that has room, longest first;
only a document longer than a row is cut. The documents are those of one step: a batch depends on nothing but its step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from feedd.batch.layout import ALIGN_BYTES, FieldPlace, Layout, slot_pages
from feedd.values import FieldKind, Region, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_IDS = "int32"


@dataclass(frozen=True, slots=True)
class Packing:
    """How a field is packed.

    Attributes:
        length: tokens of a row.
        how: see above.
        fill: token in places that no document takes.
    """

    length: int
    how: Literal["concat", "bins"]
    fill: int = 0


def packed_specs(spec: TensorSpec, packing: Packing) -> tuple[TensorSpec, ...]:
    """Return the fields that a packed one becomes.

    ``NAME`` itself; ``NAME.document``: the place in the step of the sample that each token is of, -1 where none is;
    ``NAME.position``: of each token in its document, counted anew in each row.
    """
    shape = (packing.length,)
    return (
        TensorSpec(spec.name, FieldKind.DENSE, spec.dtype, shape),
        TensorSpec(f"{spec.name}.document", FieldKind.DENSE, _IDS, shape),
        TensorSpec(f"{spec.name}.position", FieldKind.DENSE, _IDS, shape),
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
        length, total = self.packing.length, self.rows * self.packing.length
        tokens, document, position = (
            np.frombuffer(view, place.spec.dtype, total, place.region.values_at) for place in layout.places
        )
        document[:] = -1
        position[:] = 0
        lengths = self.lengths.copy()
        lengths[list(bad)] = 0
        ends = np.cumsum(lengths)
        start = np.repeat(self.start, lengths)
        at = start + np.arange(start.shape[0]) - np.repeat(ends - lengths, lengths)
        document[at] = np.repeat(np.arange(lengths.shape[0]), lengths)
        position[at] = at - np.maximum(start, at // length * length)
        if start.shape[0] < total:
            tokens[document < 0] = self.packing.fill


def _first_fit(lengths: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], int]:
    """Return where each document starts, and how many rows they take."""
    start = np.zeros(lengths.shape[0], np.int64)
    room = np.zeros(int((-(-lengths // length)).sum()), np.int64)
    rows = 0
    for document in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[document])
        if not size:
            break
        place = int(np.argmax(room[:rows] >= size)) if rows and size <= length else 0
        if not rows or room[place] < size:
            place, taken = rows, -(-size // length)
            rows += taken
            room[rows - 1] = length * taken - size
            start[document] = place * length
        else:
            start[document] = (place + 1) * length - room[place]
            room[place] -= size
    return start, rows


def slot_bytes(specs: Sequence[TensorSpec], packing: Packing, rows: int, lengths: NDArray[np.int64]) -> int:
    """Estimate what a slot must hold for ``rows`` documents like those of these lengths; rounded up to pages."""
    tokens = 1.5 * float(lengths.mean()) * rows + float(lengths.max()) if len(lengths) else 0.0
    packed_rows = math.ceil(tokens / packing.length) + 1
    itemsizes = sum(np.dtype(spec.dtype).itemsize for spec in specs)
    return slot_pages(packed_rows * packing.length * itemsizes + len(specs) * ALIGN_BYTES)
