"""An index that three numbers a field describe is the index that its columns would be."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.shard_index import NumberedIndex, RegularIndex, ShardIndex, numbered
from feedd.workers.index_columns import indexed, pack, packed, unpack

STRIDE = st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 20), st.integers(1, 1 << 20))


@given(st.lists(STRIDE, min_size=1, max_size=4), st.integers(0, 300))
def test_columns_follow_from_strides(strides: list[tuple[int, int, int]], samples: int) -> None:
    """Starts, sizes, keys and single cells are the same as where the columns are stored."""
    fields, encodings = tuple(f"f{n}" for n in range(len(strides))), ("uint8",) * len(strides)
    index = RegularIndex(fields, tuple(strides), samples, encodings)
    every = np.arange(samples, dtype=np.int64)
    starts = np.array([at + step * every for at, step, _ in strides], np.int64)
    sizes = np.array([[size] * samples for _, _, size in strides], np.int64).reshape(len(strides), samples)
    stored = ShardIndex(fields, starts, sizes, *numbered(samples), encodings)
    assert index.is_regular
    assert not stored.is_regular
    assert index.nbytes == 0 < stored.nbytes + (not samples)
    for one in (index, stored):
        assert one.sample_count == samples
        assert (one.starts == starts).all()
        assert (one.sizes == sizes).all()
        assert one.key_blob == stored.key_blob
        assert (one.key_ends == stored.key_ends).all()
        if samples:
            assert [part.tolist() for part in one.cells(0, every[-1:])] == [[starts[0, -1]], [sizes[0, -1]]]
            assert one.key(samples - 1) == f"{samples - 1:08d}"


BROKEN = ("missing", "moved", "longer", "far", "overlapping", "none", "regular")


@given(st.lists(STRIDE, min_size=1, max_size=3), st.integers(0, 50), st.sampled_from(BROKEN), st.booleans())
def test_a_worker_tells_little_of_columns(
    strides: list[tuple[int, int, int]], samples: int, broken: str, has_keys: bool
) -> None:
    """Whatever form a field is sent in, the daemon finds every start, size and key, and counts the memory right."""
    fields, encodings = tuple(f"f{n}" for n in range(len(strides))), ("uint8",) * len(strides)
    regular = RegularIndex(fields, tuple(strides), samples, encodings)
    starts, sizes = regular.starts.copy(), regular.sizes.copy()
    if samples > 2:
        if broken == "missing":
            sizes[0, 1] = -1
        elif broken == "moved":
            starts[0, 2] += 1
        elif broken == "longer":
            starts[0, 1:], sizes[0, 0] = starts[0, 1:] + 1, sizes[0, 0] + 1
        elif broken == "far":
            starts[0, -1] += 1 << 33
        elif broken == "overlapping":
            starts[0] = starts[0, ::-1].copy()
    made: ShardIndex = NumberedIndex(fields, starts, sizes, samples, encodings)
    if has_keys:
        made = ShardIndex(fields, starts, sizes, *numbered(samples), encodings)
    index = packed(regular if broken == "regular" else made)
    fd = pack(index)
    assert os.fstat(fd).st_size == index.nbytes
    sent = unpack(fd, indexed(1, 0.0, index), index.nbytes)
    os.close(fd)
    assert sent.nbytes == index.nbytes
    every = np.arange(samples)
    for number in range(len(fields)):
        for found in (sent.cells(number, every), (sent.starts[number], sent.sizes[number])):
            assert [one.dtype for one in found] == [np.int64] * 2
            assert [one.tolist() for one in found] == [starts[number].tolist(), sizes[number].tolist()]
        assert set(sent.sizes_of([number]).tolist()) == set(sizes[number].tolist())
        if samples:
            assert sent.cell(number, samples - 1) == (starts[number, -1], sizes[number, -1])
    assert sent.sizes_of(range(len(fields))).max(initial=-2) == sizes.max(initial=-2)
    assert sent.key_blob == numbered(samples)[0]
    assert sent.is_regular == (broken == "regular")


@pytest.mark.parametrize(("gap", "first", "row_bytes"), [(0, 0, 4), (1, 9, 4), (0, 1 << 31, 8), (1 << 33, 0, 16)])
def test_values_that_follow_one_another_take_one_number(gap: int, first: int, row_bytes: int) -> None:
    """Lines and texts of a table take four bytes each below 2 GiB, and eight above."""
    sizes = np.tile(np.array([3, 0, 5]), 1000)
    starts = first + np.cumsum(sizes + gap) - sizes - gap
    index = packed(NumberedIndex(("text",), starts[None], sizes[None], 3000, ("text",)))
    assert 0 <= index.nbytes - row_bytes * 3000 <= row_bytes
