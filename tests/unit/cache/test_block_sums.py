"""Checksums of blocks, from parts in whatever order and size they come."""

from __future__ import annotations

import itertools
import random
import struct
from typing import TYPE_CHECKING

import hypothesis.strategies as st
from awscrt.checksums import crc32c
from hypothesis import given

from feedd.cache.block_sums import BlockSums
from feedd.flow.range_sinks import FileSink
from feedd.units import MIB
from feedd.values import ByteRange
from tests.fakes.sinks import into, sink_file

if TYPE_CHECKING:
    from pathlib import Path

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
        sums.take(ByteRange(start, end), into(view[start:end]))
    for start, end in parts:
        view[start:end] = DATA[start:end]
        sums.take(ByteRange(start, end), into(view[start:end]))
    assert sums.finish(into(view)) == WANTED


def test_what_was_written_over_counts_no_more() -> None:
    """A piece that a whole block was written over is forgotten, though another piece of that block comes again."""
    target = bytearray(SIZE)
    view = memoryview(target)
    sums = BlockSums(SIZE)
    half = MIB // 2
    sums.written(0, view[:half], begins=True)  # zeros: wrong
    sums.take(ByteRange(0, half), into(view[:half]))
    view[:] = DATA
    sums.take(ByteRange(0, SIZE), into(view))
    sums.take(ByteRange(half, MIB), into(view[half:MIB]))
    assert sums.finish(into(view)) == WANTED


def test_objects_side_by_side_are_summed_as_they_are_written() -> None:
    """What is written behind an object, before that one is taken, is another's; in whatever pieces it comes."""
    zeros = memoryview(bytearray(SIZE))
    borders = [0, *range(48 << 10, SIZE, 128 << 10), SIZE]  # no border of blocks leaves a short piece
    sums = BlockSums(SIZE, 4096)
    for start, end in itertools.pairwise(borders):
        middle = (start + end) // 2
        sums.written(4096 + start, memoryview(DATA)[start:middle], begins=True)
        sums.written(4096 + middle, memoryview(DATA)[middle:end])
    for start, end in itertools.pairwise(borders):
        sums.take(ByteRange(start, end), into(zeros[start:end]))  # if it looked there it would find zeros
    assert sums.finish(into(zeros)) == WANTED


async def test_zeros_in_the_place_of_what_was_lost_are_what_is_summed(tmp_path: Path) -> None:
    """An object across a border of blocks arrived in part before it was refused: its old bytes count no more."""
    size, low, high = 2 * MIB, MIB - 50_000, MIB + 50_000
    sums = BlockSums(size)
    with sink_file(tmp_path / "file", size) as file:
        whole = FileSink(file, 0, size, sums.written)
        part = whole.part(low, high)
        part.write_now(0, memoryview(DATA)[:70_000])
        await part.write(0, bytes(part.size_bytes))
        sums.take(ByteRange(low, high), part)
        assert sums.finish(whole) == struct.pack("<2I", *[crc32c(bytes(MIB))] * 2)


def test_unreported_bytes_are_summed_at_the_end() -> None:
    """A fetcher that tells of no part still leaves whole checksums."""
    assert BlockSums(SIZE).finish(into(DATA)) == WANTED
    assert BlockSums(0).finish(into(b"")) == b""
