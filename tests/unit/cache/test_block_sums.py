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
_SUMMED_BYTES = 16 << 10  # and more at once are summed when they come
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


def test_what_was_written_over_counts_no_more() -> None:
    """A piece that a whole block was written over is forgotten, though another piece of that block comes again."""
    target = bytearray(SIZE)
    view = memoryview(target)
    sums = BlockSums(SIZE)
    half = MIB // 2
    sums.take(ByteRange(0, half), view[:half])  # zeros: wrong
    view[:] = DATA
    sums.take(ByteRange(0, SIZE), view)
    sums.take(ByteRange(half, MIB), view[half:MIB])
    assert sums.finish(view) == WANTED


@given(cuts=st.lists(st.integers(1, SIZE - 1), min_size=30, max_size=90, unique=True), seed=st.integers(0, 9))
def test_small_parts_are_summed_as_they_come(cuts: list[int], seed: int) -> None:
    """Objects of a pack, in any order, some of them more than once: of what came nothing need be read again."""
    borders = sorted({0, SIZE, *cuts})
    parts = list(itertools.pairwise(borders))
    random.Random(seed).shuffle(parts)
    sums = BlockSums(SIZE)
    for start, end in parts + parts[:5]:
        sums.take(ByteRange(start, end), memoryview(DATA)[start:end])
    small = [(start, end) for start, end in parts if end - start < 2 * _SUMMED_BYTES]
    seen = bytearray(SIZE)  # zeros in the place of all that was told and is not small
    for start, end in small:
        seen[start:end] = DATA[start:end]
    for at in range(0, SIZE, MIB):  # what a border of blocks leaves of a part may be small, too
        low, high = max(0, at - _SUMMED_BYTES), min(SIZE, at + _SUMMED_BYTES)
        seen[low:high] = DATA[low:high]
    assert sums.finish(memoryview(seen)) == WANTED


def test_objects_side_by_side_are_summed_as_they_are_written() -> None:
    """What is written behind an object, before that one is taken, is another's; in whatever pieces it comes."""
    zeros = memoryview(bytearray(SIZE))
    borders = [0, *range(48 << 10, SIZE, 128 << 10), SIZE]  # no border of blocks leaves a short piece
    sums = BlockSums(SIZE, 4096)
    for start, end in itertools.pairwise(borders):
        middle = (start + end) // 2
        sums.landed(4096 + start, memoryview(DATA)[start:middle], begins=True)
        sums.landed(4096 + middle, memoryview(DATA)[middle:end])
    for start, end in itertools.pairwise(borders):
        sums.take(ByteRange(start, end), zeros[start:end])  # if it looked there it would find zeros
    assert sums.finish(zeros) == WANTED


def test_unreported_bytes_are_summed_at_the_end() -> None:
    """A fetcher that tells of no part still leaves whole checksums."""
    assert BlockSums(SIZE).finish(memoryview(DATA)) == WANTED
    assert BlockSums(0).finish(memoryview(b"")) == b""
