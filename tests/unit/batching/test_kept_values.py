"""Kept values lie where a decoder would have put them, however they came and wherever rows begin."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.batching.packing import Packed
from feedd.batching.precomputed_values import PrecomputedValues, fill_up
from feedd.batching.slot_layout import FieldRegion
from feedd.recipe.pack_params import Packing
from feedd.recipe.padding import Pad
from feedd.values import FieldKind, Region, TensorSpec
from feedd.workers.work import Piece
from tests.budget import budget

LENGTHS = st.lists(st.integers(-1, 6), max_size=20)
AT = 64
SLOT = AT + 4 * 20 * 8


def kept(lengths: list[int], cuts: list[int], lost: set[int]) -> tuple[PrecomputedValues, list[list[int]]]:
    """Return values of rows in pieces that end at ``cuts``, some of them lost; and what each row's are."""
    rows = [[100 * row + n for n in range(max(length, 0))] for row, length in enumerate(lengths)]
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {len(rows)})
    pieces = []
    for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if number not in lost and end > start:
            flat = [one for row in rows[start:end] for one in row]
            pieces.append(Piece(range(start, end), np.array(flat, np.int32)))
    return PrecomputedValues(np.array(lengths, np.int64), pieces), rows


def slot() -> tuple[memoryview, np.ndarray]:
    """Return memory that nobody has written to, and its numbers behind ``AT``."""
    data = memoryview(bytearray(b"\xff" * SLOT))
    return data, np.frombuffer(data, np.int32, offset=AT)


@settings(max_examples=budget(200), deadline=None)
@given(LENGTHS, st.lists(st.integers(0, 20), max_size=4), st.sets(st.integers(0, 4)), st.sampled_from(["rag", "bins"]))
def test_values_lie_in_their_rows(lengths: list[int], cuts: list[int], lost: set[int], how: str) -> None:
    """Back to back or packed: those of chosen rows, and nothing else is touched."""
    found, rows = kept(lengths, cuts, lost)
    sizes = np.maximum(np.array(lengths, np.int64), 0)
    start = np.cumsum(sizes) - sizes
    if how == "bins":
        start = Packed.of(np.array(lengths, np.int64), Packing(8, "bins")).start
    spec = TensorSpec("x", FieldKind.RAGGED, "int32")
    view, numbers = slot()
    ready = found.ready(None)
    found.lay(view, FieldRegion(spec, Region(AT, SLOT - AT), AT + 4 * start), AT + 4 * start, ready)
    expected = np.full(len(numbers), -1)
    for row, at in enumerate(start.tolist()):
        if ready[row]:
            expected[at : at + len(rows[row])] = rows[row]
    assert numbers.tolist() == expected.tolist()
    assert bytes(view[:AT]) == b"\xff" * AT
    assert not ready[np.array(lengths, np.int64) < 0].any()


@settings(max_examples=budget(200), deadline=None)
@given(LENGTHS, st.lists(st.integers(0, 20), max_size=4), st.integers(1, 7), st.booleans())
def test_padded_rows(lengths: list[int], cuts: list[int], width: int, truncate: bool) -> None:
    """Filled up behind their values; too long ones are cut, or not ready."""
    found, rows = kept(lengths, cuts, set())
    out_at = AT + 4 * width * np.arange(len(rows), dtype=np.int64)
    place = FieldRegion(
        TensorSpec("x", FieldKind.PADDED, "int32"), Region(AT, 4 * width * len(rows), dims=(width,)), out_at
    )
    view, numbers = slot()
    ready = found.ready(None if truncate else width)
    fill_up(view, place, Pad(value=-7))
    found.lay(view, place, out_at, ready)
    for row, values in enumerate(rows):
        assert ready[row] == (lengths[row] >= 0 and (truncate or len(values) <= width))
        head = values[:width] if ready[row] else []
        assert numbers[row * width : (row + 1) * width].tolist() == head + [-7] * (width - len(head))
    assert (numbers[len(rows) * width :] == -1).all()
