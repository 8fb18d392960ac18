"""Checksums of blocks, from parts in whatever order and size they come."""

from __future__ import annotations

import itertools
import random
import struct

import hypothesis.strategies as st
from awscrt.checksums import crc32c
from hypothesis import given

from feedd.cache.blocks import BlockSums
from feedd.units import MIB
from feedd.values import ByteRange

SIZE = 5 * MIB + 12_345
DATA = random.Random(0).randbytes(SIZE)
WANTED = struct.pack("<6I", *(crc32c(DATA[at : at + MIB]) for at in range(0, SIZE, MIB)))
edges = st.lists(
    st.integers(0, SIZE) | st.integers(0, 5).map(lambda block: block * MIB) | st.just(SIZE), max_size=8, unique=True
)


@given(edges=edges, seed=st.integers(0, 9))
def test_any_parts_give_the_same_sums(edges: list[int], seed: int) -> None:
    """Aligned or not, in any order, some parts first with wrong bytes: the sums are those of the final bytes."""
    target = bytearray(SIZE)
    view = memoryview(target)
    cuts = sorted({0, SIZE, *edges})
    parts = list(itertools.pairwise(cuts))
    rng = random.Random(seed)
    rng.shuffle(parts)
    again = parts[: len(parts) // 2]
    sums = BlockSums(SIZE)
    for start, end in again:
        view[start:end] = bytes(end - start)
        sums.take(ByteRange(start, end), view[start:end])
    for start, end in parts:
        view[start:end] = DATA[start:end]
        sums.take(ByteRange(start, end), view[start:end])
    assert sums.finish(view) == WANTED


def test_unreported_bytes_are_summed_at_the_end() -> None:
    """A fetcher that tells of no part still leaves whole checksums."""
    assert BlockSums(SIZE).finish(memoryview(DATA)) == WANTED
    assert BlockSums(0).finish(memoryview(b"")) == b""
