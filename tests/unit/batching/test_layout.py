from __future__ import annotations

import mmap
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.batching.gather import Text
from feedd.batching.slot_layout import ALIGN_BYTES, Layout, drop_rows, lay_out, slot_bytes, write_tables
from feedd.shard_index import ShardIndex
from feedd.values import FieldKind, FieldRecipe, TensorSpec

IMAGE = TensorSpec("jpg", FieldKind.DENSE, "uint8", (4, 5, 3), 3)
LABEL = TensorSpec("cls", FieldKind.DENSE, "int64", (), 0)
CLOUD = TensorSpec("npy", FieldKind.RAGGED, "float32", (), 2)
BYTES = TensorSpec("bin", FieldKind.RAGGED, "uint8", (), 1)
TEXT = TensorSpec("txt", FieldKind.TEXT, "uint8")
SPECS = (IMAGE, CLOUD, LABEL, TEXT, BYTES)


def spans(layout: Layout) -> list[tuple[int, int]]:
    """Return every part of the slot that a layout uses, (start, end)."""
    found = []
    for place in layout.fields:
        region = place.region
        found.append((region.values_at, region.values_at + region.values_bytes))
        if place.offsets is not None:
            found.append((region.offsets_at, region.offsets_at + place.offsets.nbytes))
        if region.shapes_at and place.shapes is not None:
            found.append((region.shapes_at, region.shapes_at + place.shapes.nbytes))
    return sorted(found)


def sizes_of(draw: st.DataObject, rows: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Draw shapes and lengths for the ragged fields of SPECS."""
    side = st.integers(-1, 6)
    return {
        "npy": np.array(draw.draw(st.lists(st.tuples(side, side), min_size=rows, max_size=rows)), np.int64).reshape(
            rows, 2
        ),
        "txt": np.array(draw.draw(st.lists(side, min_size=rows, max_size=rows)), np.int64),
        "bin": np.array(draw.draw(st.lists(side, min_size=rows, max_size=rows)), np.int64),
    }


@given(data=st.data(), rows=st.integers(0, 9))
def test_regions_are_aligned_and_disjoint(data: st.DataObject, rows: int) -> None:
    """Values, offsets and shapes start at multiples of 256 and never overlap; the size covers all of them."""
    layout = lay_out(SPECS, rows, sizes_of(data, rows))
    used = spans(layout)
    assert all(start % ALIGN_BYTES == 0 for start, _ in used)
    assert all(end <= start for (_, end), (start, _) in pairwise(used))
    assert layout.size_bytes == max(end for _, end in used)
    assert layout.regions == tuple(place.region for place in layout.fields)


def test_rows_lie_back_to_back() -> None:
    """DENSE rows are rows x shape; ragged rows follow each other, offsets count elements and text counts bytes."""
    sizes = {"npy": np.array([[2, 3], [-1, -1], [1, 4]]), "txt": np.array([3, 0, 2]), "bin": np.array([7, -1, 1])}
    layout = lay_out(SPECS, 3, sizes)
    assert np.diff(layout.field("jpg").out_at).tolist() == [60, 60]
    cloud, text = layout.field("npy"), layout.field("txt")
    assert cloud.offsets is not None
    assert cloud.shapes is not None
    assert cloud.offsets.tolist() == [0, 6, 6, 10]
    assert (cloud.out_at - cloud.region.values_at).tolist() == [0, 24, 24]
    assert cloud.shapes.tolist() == [[2, 3], [0, 0], [1, 4]]
    assert cloud.region.values_bytes == 40
    assert text.offsets is not None
    assert text.offsets.tolist() == [0, 3, 3, 5]
    assert text.region.shapes_at == 0
    with pytest.raises(KeyError):
        lay_out(SPECS, 3, {})


def test_tables_and_literals_are_written_where_the_regions_say() -> None:
    """Offsets, shapes and literal text can be read back from the slot by the regions alone."""
    text = Text("grün".encode() + b"ab", np.array([0, 5, 5, 7]))
    layout = lay_out((CLOUD, TEXT), 3, {"npy": np.array([[2, 3], [0, 9], [1, 4]]), "txt": text.lengths})
    slot = bytearray(b"\xa5" * layout.size_bytes)
    write_tables(memoryview(slot), layout, {"txt": text})
    cloud, literal = layout.regions
    assert np.frombuffer(slot, np.int64, 4, cloud.offsets_at).tolist() == [0, 6, 6, 10]
    assert np.frombuffer(slot, np.int64, 6, cloud.shapes_at).tolist() == [2, 3, 0, 9, 1, 4]
    assert np.frombuffer(slot, np.int64, 4, literal.offsets_at).tolist() == [0, 5, 5, 7]
    assert slot[literal.values_at : literal.values_at + literal.values_bytes] == "grünab".encode()


def rows_of(slot: bytearray, layout: Layout) -> list[list[bytes]]:
    """Return every row's values, shape and length per field, read from the slot by regions only."""
    read: list[list[bytes]] = []
    for place in layout.fields:
        region, itemsize = place.region, np.dtype(place.spec.dtype).itemsize
        if place.spec.kind is FieldKind.DENSE:
            row = int(np.prod(place.spec.shape, dtype=np.int64)) * itemsize
            edges = [n * row for n in range(layout.rows + 1)]
        else:
            table = np.frombuffer(bytes(slot), np.int64, layout.rows + 1, region.offsets_at)
            edges = (table * itemsize).tolist()
        assert region.values_bytes == edges[-1]
        values = [bytes(slot[region.values_at + a : region.values_at + b]) for a, b in pairwise(edges)]
        if region.shapes_at:
            shapes = np.frombuffer(bytes(slot), np.int64, layout.rows * place.spec.ndim, region.shapes_at)
            chunks = shapes.reshape(layout.rows, place.spec.ndim)
            values = [value + chunk.tobytes() for value, chunk in zip(values, chunks, strict=True)]
        read.append(values)
    return read


@given(data=st.data(), rows=st.integers(1, 9))
def test_dropping_rows_keeps_the_others_and_their_order(data: st.DataObject, rows: int) -> None:
    """After drop_rows the slot holds exactly the kept rows, in order, for every kind of field."""
    layout = lay_out(SPECS, rows, sizes_of(data, rows))
    slot = bytearray(np.random.default_rng(rows).bytes(layout.size_bytes))
    write_tables(memoryview(slot), layout)
    before = rows_of(slot, layout)
    bad = data.draw(st.lists(st.integers(0, rows - 1), max_size=rows))
    left = drop_rows(memoryview(slot), layout, bad)
    kept = [row for row in range(rows) if row not in bad]
    assert left.rows == len(kept)
    assert rows_of(slot, left) == [[field[row] for row in kept] for field in before]
    for place in left.fields:
        assert len(place.out_at) == len(kept)
    again = drop_rows(memoryview(slot), left, list(range(left.rows)))
    assert (again.rows, [region.values_bytes for region in again.regions]) == (0, [0] * len(SPECS))


def test_a_slot_holds_the_batches_of_its_first_shard() -> None:
    """The estimate covers any batch of ordinary samples, is exact to alignment for DENSE, and counts whole pages."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(100, 2000, (1, 500))
    index = ShardIndex(("bin",), sizes * 0, sizes, b"", np.zeros(500, np.int64))
    recipe = FieldRecipe("bin", ("bin",), "bytes")
    capacity = slot_bytes((IMAGE, LABEL, BYTES), 64, index, (recipe,))
    assert capacity % mmap.PAGESIZE == 0
    for _ in range(50):
        chosen = rng.choice(sizes[0], 64)
        assert lay_out((IMAGE, LABEL, BYTES), 64, {"bin": chosen}).size_bytes <= capacity
    dense = lay_out((IMAGE, LABEL), 64, {}).size_bytes
    assert dense <= slot_bytes((IMAGE, LABEL), 64, index, ()) < dense + 2 * mmap.PAGESIZE


def test_measured_shapes_beat_the_guess() -> None:
    """With measured shapes the estimate follows them and ignores what could not be measured; else images grow."""
    spec = TensorSpec("jpg", FieldKind.RAGGED, "uint8", (), 3)
    sizes = np.full((1, 10), 1000, np.int64)
    index = ShardIndex(("jpg",), sizes * 0, sizes, b"", np.zeros(10, np.int64))
    recipes = (FieldRecipe("jpg", ("jpg",), "image"),)
    measured = {"jpg": np.array([[100, 100, 3], [-1, -1, -1]])}
    assert slot_bytes((spec,), 10, index, recipes, measured) >= 16 * 30_000
    guess = slot_bytes((spec,), 10, index, recipes)
    assert 16 * 16_000 <= guess < 18 * 16_000
    empty = ShardIndex((), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64), b"", np.zeros(0, np.int64))
    assert slot_bytes((spec,), 10, empty, recipes) == mmap.PAGESIZE
