"""Masks and repeated rows against the plainest Python that says what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedd.batching.gather import Text
from feedd.batching.pad_masks import own_lengths, write_lengths, write_mask
from feedd.batching.row_repeats import repeat_in_place, repeat_into, repeated, stand_ins
from feedd.batching.slot_layout import Layout, drop_rows, lay_out, write_tables
from feedd.recipe.padding import Pad, batch_specs, mask_ndim
from feedd.values import FieldKind, TensorSpec

LABEL = TensorSpec("cls", FieldKind.DENSE, "int64", (), 0)
BLOCK = TensorSpec("tok", FieldKind.PADDED, "int16", (), 1)
CLOUD = TensorSpec("npy", FieldKind.RAGGED, "float32", (), 2)
TEXT = TensorSpec("txt", FieldKind.TEXT, "uint8")


def _values(view: memoryview, layout: Layout) -> list[list[list[Any]]]:
    """Return every row's numbers, per field."""
    found = []
    for place in layout.fields:
        dtype = np.dtype(place.spec.dtype)
        spans = zip(place.out_at.tolist(), place.row_bytes.tolist(), strict=True)
        found.append([np.frombuffer(view, dtype, size // dtype.itemsize, at).tolist() for at, size in spans])
    return found


@st.composite
def batches(draw: st.DrawFn) -> tuple[memoryview, Layout]:
    """A filled batch: every byte of every row different from its neighbours'."""
    rows = draw(st.integers(1, 8))
    ragged = draw(st.booleans())
    specs = (LABEL, BLOCK, CLOUD, TEXT) if ragged else (LABEL, BLOCK)
    side = st.integers(0, 4)
    shapes = np.array(draw(st.lists(st.tuples(side, side), min_size=rows, max_size=rows)), np.int64)
    texts = draw(st.lists(st.binary(max_size=5), min_size=rows, max_size=rows))
    offsets = np.concatenate(([0], np.cumsum([len(text) for text in texts])))
    text = Text(b"".join(texts), offsets)
    lengths = {"npy": shapes, "txt": text.lengths}
    layout = lay_out(specs, rows, lengths, {"tok": (draw(st.integers(0, 3)),)})
    view = memoryview(bytearray(max(layout.size_bytes, 1) + draw(st.integers(0, 600))))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    for place in layout.fields:
        for at, size in zip(place.out_at.tolist(), place.row_bytes.tolist(), strict=True):
            view[at : at + size] = rng.integers(0, 120, size, np.uint8).tobytes()
    write_tables(view, layout, {"txt": text} if ragged else {})
    return view, layout


@given(made=batches(), data=st.data())
def test_repeated_rows_are_the_rows_they_repeat(made: tuple[memoryview, Layout], data: st.DataObject) -> None:
    """Each bad row shows the next good one, around the end; tables say so; good rows are what they were."""
    view, layout = made
    good = np.array(data.draw(st.lists(st.booleans(), min_size=layout.rows, max_size=layout.rows)))
    good[data.draw(st.integers(0, layout.rows - 1))] = True
    source = stand_ins(good)
    for row, shown in enumerate(source.tolist()):
        following = [(row + step) % layout.rows for step in range(layout.rows)]
        assert shown == next(one for one in following if good[one])
    before = _values(view, layout)
    fresh = repeated(layout, source)
    if fresh is layout:
        repeat_in_place(view, layout, source)
    else:
        target = memoryview(bytearray(fresh.size_bytes))
        repeat_into(view, layout, source, target, fresh)
        view = target
        for place in fresh.fields:
            if place.offsets is not None:
                told = np.frombuffer(view, np.int64, fresh.rows + 1, place.region.offsets_at)
                assert told.tolist() == place.offsets.tolist()
    assert _values(view, fresh) == [[rows[shown] for shown in source.tolist()] for rows in before]


@given(made=batches(), data=st.data())
def test_dropped_rows_leave_the_others(made: tuple[memoryview, Layout], data: st.DataObject) -> None:
    """Padded fields close their gaps as all others do."""
    view, layout = made
    keep = data.draw(st.lists(st.booleans(), min_size=layout.rows, max_size=layout.rows))
    before = _values(view, layout)
    left = drop_rows(view, layout, [row for row, kept in enumerate(keep) if not kept])
    assert _values(view, left) == [[row for row, kept in zip(rows, keep, strict=True) if kept] for rows in before]


@given(
    data=st.data(),
    rows=st.integers(0, 6),
    ndim=st.integers(1, 3),
    pad=st.builds(
        Pad,
        to=st.one_of(
            st.just("longest"), st.integers(1, 6), st.sets(st.integers(1, 6), min_size=1).map(sorted).map(tuple)
        ),
        lengths=st.just(value=True),
    ),
    truncate=st.booleans(),
)
def test_masks_are_true_where_a_value_is_its_own(
    data: st.DataObject, rows: int, ndim: int, pad: Pad, *, truncate: bool
) -> None:
    """Dimensions are the least that hold every sample that fits; masks and lengths follow from the shapes."""
    if pad.to != "longest":
        pad = Pad(pad.to, 0, truncate, lengths=True)
    side = st.integers(0, 7)
    shapes = [tuple(data.draw(side) for _ in range(ndim)) for _ in range(rows)]
    bad = data.draw(st.sets(st.integers(0, max(0, rows - 1)))) if rows else set()
    held = np.array([(-1,) * ndim if n in bad else shape for n, shape in enumerate(shapes)], np.int64)
    dims = pad.dims(held.reshape(rows, ndim))
    most = pad.buckets[-1] if pad.buckets else 99
    fits = [s for n, s in enumerate(shapes) if n not in bad and (s[0] <= most or pad.truncate)]
    longest = max((s[0] for s in fits), default=0)
    expected = min((b for b in pad.buckets if b >= longest), default=most) if pad.buckets else longest
    assert dims == (expected, *(max((s[axis] for s in fits), default=0) for axis in range(1, ndim)))
    specs = batch_specs([(TensorSpec("x", FieldKind.PADDED, "uint8", (), ndim), pad)])
    layout = lay_out(specs, rows, {}, {"x": dims, "x_mask": dims[: mask_ndim(ndim)]})
    view = memoryview(bytearray(layout.size_bytes + 1))
    own = own_lengths(held.reshape(rows, ndim), dims)
    write_mask(view, layout, "x_mask", own)
    write_lengths(view, layout, "x_length", own)
    region = layout.field("x_mask").region
    mask = np.frombuffer(view, np.bool_, rows * int(np.prod(region.dims)), region.values_at).reshape(rows, *region.dims)
    for row in range(rows):
        whole = np.zeros(dims, np.bool_)
        if row not in bad:
            whole[tuple(slice(0, one) for one in shapes[row])] = True
        one = whole if ndim == 1 else whole.any(axis=-1)
        assert np.array_equal(mask[row], one)
        got = np.frombuffer(view, np.int64, ndim, layout.field("x_length").region.values_at + row * ndim * 8)
        assert got.tolist() == [0 if row in bad else min(*pair) for pair in zip(shapes[row], dims, strict=True)]
