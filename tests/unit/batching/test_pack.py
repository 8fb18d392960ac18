"""Packing: every token once, in the order of its document, and told which document it is of."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.batching.packing import Packed, packed_specs, slot_bytes
from feedd.recipe.pack_params import Packing
from feedd.values import FieldKind, TensorSpec
from tests.budget import budget

SPECS = packed_specs(TensorSpec("t", FieldKind.RAGGED, "uint16"), Packing(1, "concat"))
FILL = 65000


def packed(
    lengths: list[int], length: int, how: Literal["concat", "bins"], bad: list[int] | None = None
) -> tuple[np.ndarray, ...]:
    """Pack documents whose tokens are ``100 * document + place``; return tokens, documents and positions by row."""
    packing = Packing(length, how, FILL)
    specs = packed_specs(TensorSpec("t", FieldKind.RAGGED, "uint16"), packing)
    made = Packed.of(np.array(lengths, np.int64), packing)
    layout = made.layout(specs)
    view = memoryview(bytearray(b"\xee" * layout.size_bytes))
    for document, (at, size) in enumerate(zip(layout.fields[0].out_at.tolist(), lengths, strict=True)):
        if size > 0 and document not in (bad or []):
            np.frombuffer(view, np.uint16, size, at)[:] = 100 * document + np.arange(size)
    made.finish(view, layout, bad or [])
    return tuple(
        np.frombuffer(view, place.spec.dtype, made.rows * length, place.region.values_at).reshape(made.rows, length)
        for place in layout.fields
    )


def test_documents_one_after_another_are_cut_where_rows_end() -> None:
    """Concatenated documents go on in the next row, where their positions start anew; the last row is filled up."""
    tokens, document, position = packed([3, 0, 4, 2], 4, "concat")
    assert tokens.tolist() == [[0, 1, 2, 200], [201, 202, 203, 300], [301, FILL, FILL, FILL]]
    assert document.tolist() == [[0, 0, 0, 2], [2, 2, 2, 3], [3, -1, -1, -1]]
    assert position.tolist() == [[0, 1, 2, 0], [0, 1, 2, 0], [0, 0, 0, 0]]


def test_documents_go_where_they_fit_longest_first() -> None:
    """Each lies in one row, the first that has room; a longer one takes rows of its own, its last shared."""
    tokens, document, position = packed([2, 3, 6, 1], 4, "bins")
    assert document.tolist() == [[2, 2, 2, 2], [2, 2, 0, 0], [1, 1, 1, 3]]
    assert tokens.tolist() == [[200, 201, 202, 203], [204, 205, 0, 1], [100, 101, 102, 300]]
    assert position.tolist() == [[0, 1, 2, 3], [0, 1, 0, 1], [0, 1, 2, 0]]


@settings(max_examples=budget(150), deadline=None)
@given(
    lengths=st.lists(st.integers(-1, 30), max_size=25),
    length=st.integers(1, 12),
    how=st.sampled_from(["concat", "bins"]),
    data=st.data(),
)
def test_every_token_once(lengths: list[int], length: int, how: Literal["concat", "bins"], data: st.DataObject) -> None:
    """Whatever the lengths: each token of each good document comes once, in order, and all else is filled."""
    bad = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=3)) if lengths else []
    tokens, document, position = packed(lengths, length, how, bad)
    assert (tokens[document < 0] == FILL).all()
    for number, size in enumerate(lengths):
        mine = document == number
        expected = 0 if number in bad else max(size, 0)
        assert tokens[mine].tolist() == [100 * number + place for place in range(expected)]
        rows = mine.any(axis=1).sum()
        assert rows == 0 or how == "concat" or rows == -(-expected // length)
        for row in np.flatnonzero(mine.any(axis=1)).tolist():
            assert position[row, mine[row]].tolist() == list(range(mine[row].sum()))
    total = sum(max(size, 0) for size in lengths)
    if how == "concat":
        assert len(tokens) == -(-total // length)
    assert len(tokens) <= sum(-(-max(size, 0) // length) for size in lengths)


def plainly(lengths: list[int], length: int) -> tuple[list[int], int]:
    """Return where first fit, longest first, puts documents, said as plainly as can be; and how many rows it takes."""
    start = [0] * len(lengths)
    rooms: list[int] = []
    for document in sorted(range(len(lengths)), key=lambda document: -lengths[document]):
        size = lengths[document]
        if size <= 0:
            break
        row = next((row for row, room in enumerate(rooms) if room >= size), None)
        if row is None or size > length:
            taken = -(-size // length)
            row = len(rooms) + taken - 1
            start[document] = len(rooms) * length
            rooms += [0] * (taken - 1) + [taken * length - size]
        else:
            start[document] = (row + 1) * length - rooms[row]
            rooms[row] -= size
    return start, len(rooms)


@settings(max_examples=budget(150), deadline=None)
@given(lengths=st.lists(st.integers(-1, 40), max_size=120), length=st.integers(1, 50))
def test_bins_are_those_of_first_fit(lengths: list[int], length: int) -> None:
    """A packed step is what it was in earlier versions: each document in the very first row that has room."""
    made = Packed.of(np.array(lengths, np.int64), Packing(length, "bins"))
    start, rows = plainly(lengths, length)
    assert made.rows == rows
    assert [at for at, size in zip(made.start.tolist(), lengths, strict=True) if size > 0] == [
        at for at, size in zip(start, lengths, strict=True) if size > 0
    ]


@pytest.mark.parametrize("how", ["concat", "bins"])
def test_a_slot_like_the_first_shards_holds_a_batch(how: Literal["concat", "bins"]) -> None:
    """The estimate covers batches of documents like those it was made from."""
    lengths = np.random.default_rng(3).integers(1, 500, 1000)
    packing = Packing(512, how)
    assert Packed.of(lengths[:64], packing).layout(SPECS).size_bytes <= slot_bytes(SPECS, packing, 64, lengths)
    assert slot_bytes(SPECS, packing, 64, lengths[:0]) % 4096 == 0
