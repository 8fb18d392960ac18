"""An index that three numbers a field describe is the index that its columns would be."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedd.shard_index import RegularIndex, ShardIndex, numbered
from feedd.workers.index_columns import pack, strides_of, unpack
from feedd.workers.messages import Indexed

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


@given(st.lists(STRIDE, min_size=1, max_size=3), st.integers(0, 50), st.integers(0, 3))
def test_a_worker_tells_strides_instead_of_columns(
    strides: list[tuple[int, int, int]], samples: int, broken: int
) -> None:
    """A field with a missing value, or with one distance that differs, is sent as columns beside the others."""
    fields, encodings = tuple(f"f{n}" for n in range(len(strides))), ("uint8",) * len(strides)
    regular = RegularIndex(fields, tuple(strides), samples, encodings)
    starts, sizes = regular.starts.copy(), regular.sizes.copy()
    if samples > 2:
        if broken == 1:
            sizes[0, 1] = -1
        elif broken == 2:
            starts[0, 2] += 1
    index = regular if broken == 3 else ShardIndex(fields, starts, sizes, *numbered(samples), encodings)
    found = strides_of(index)
    if samples > 2 and broken in {1, 2}:
        assert found[0] is None
    fd = pack(index, found)
    key_bytes = 0 if index.is_regular else len(index.key_blob)
    reply = Indexed(1, 0.0, fields, samples, key_bytes, encodings, strides=found, is_regular=index.is_regular)
    sent = unpack(fd, reply)
    os.close(fd)
    assert (sent.starts == index.starts).all()
    assert (sent.sizes == index.sizes).all()
    assert sent.key_blob == index.key_blob
    assert sent.is_regular == index.is_regular
