"""Small objects share the places of the line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedd.fetch.scheduler import PARTS_PER_PLACE, FetchEntry, FetchScheduler
from feedd.flow.budget import ByteBudget
from feedd.values import ByteRange

MIB = 1 << 20


class Many(FetchEntry):
    """Objects of a pack."""

    many = True


def standing(kind: type[FetchEntry], sizes: list[int]) -> FetchEntry:
    """Return a fetch of spans one after another."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    spans = [ByteRange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return kind("bucket", spans, 8 * MIB, lambda: 0.0)


def taken(line: FetchScheduler[FetchEntry]) -> list[tuple[FetchEntry, ByteRange]]:
    """Take all places there are."""
    found = []
    while (one := line.take()) is not None:
        found.append(one)
    return found


def test_small_objects_share_a_place() -> None:
    """Two places hold sixteen small objects of a pack, but two of its large ones, and two small parts of others."""
    for kind, size, count in ((Many, 1000, 2 * PARTS_PER_PLACE), (Many, 2 * MIB, 2), (FetchEntry, 1000, 2)):
        line: FetchScheduler[FetchEntry] = FetchScheduler(2, ByteBudget(1 << 30), lambda _: 100)
        line.join(standing(kind, [size] * 40))
        assert len(taken(line)) == count
        assert line.in_flight_of("bucket") == 2


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=12)), max_size=6))
def test_places_come_back(fetches: list[tuple[bool, list[int]]]) -> None:
    """Whatever is mixed, bounds hold, everything is taken once, and all places are free in the end."""
    line: FetchScheduler[FetchEntry] = FetchScheduler(3, ByteBudget(1 << 30), lambda _: 2)
    for many, sizes in fetches:
        line.join(standing(Many if many else FetchEntry, sizes))
    total = 0
    while batch := taken(line):
        assert line.in_flight_of("bucket") <= 3  # the last one taken may reach beyond the group's two
        for one, span in batch:
            total += span.size_bytes
            line.give_back(one, span)
    assert total == sum(size for _, sizes in fetches for size in sizes)
    assert (line.in_flight_count, line.in_flight_of("bucket"), line.waiting_count) == (0, 0, 0)


def test_small_objects_have_a_limit_of_their_own() -> None:
    """Where the limit of small objects is reached, large ones still begin, and the next small one begins behind it."""
    limits = [3]
    line: FetchScheduler[FetchEntry] = FetchScheduler(8, ByteBudget(1 << 30), lambda _: 100, 2, lambda: limits[-1])
    many = standing(Many, [1000] * 40)
    line.join(many)
    assert len(taken(line)) == line.small_count == 3
    line.join(standing(FetchEntry, [4 * MIB] * 2))
    assert [span.size_bytes for _, span in taken(line)] == [4 * MIB] * 2
    line.give_back(many, ByteRange(0, 1000))
    assert len(taken(line)) == 1
    limits.append(5)
    assert len(taken(line)) == 2
    assert line.small_count == 5
