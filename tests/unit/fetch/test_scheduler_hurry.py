"""What is waited for apart from the rest of its object goes first, in the order in which that was said."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from feedd.fetch.scheduler import PARTS_PER_PLACE, FetchEntry, FetchScheduler
from feedd.flow.budget import ByteBudget
from feedd.values import ByteRange

PART_BYTES = 10


class Pack(FetchEntry):
    """Objects of a pack."""

    many = True


def pack(count: int, size_bytes: int = 5, urgency: float = -math.inf) -> Pack:
    """Return a fetch of so many objects of one size."""
    spans = [ByteRange(n * size_bytes, (n + 1) * size_bytes) for n in range(count)]
    return Pack("bucket", spans, PART_BYTES, lambda: urgency)


def line_of(*standings: FetchEntry) -> FetchScheduler[FetchEntry]:
    """Return a line in which they stand."""
    line: FetchScheduler[FetchEntry] = FetchScheduler(100, ByteBudget(1 << 30), lambda _: 100)
    for standing in standings:
        line.join(standing)
    return line


def numbers(standing: FetchEntry, taken: list[tuple[FetchEntry, ByteRange]], size_bytes: int = 5) -> list[int]:
    """Return which of its objects were taken, in order."""
    return [span.start // size_bytes for one, span in taken if one is standing]


def all_of(line: FetchScheduler[FetchEntry]) -> list[tuple[FetchEntry, ByteRange]]:
    """Take everything."""
    found = []
    while (one := line.take()) is not None:
        found.append(one)
    return found


def spans(*wanted: int) -> list[ByteRange]:
    """Return where objects of 5 bytes lie."""
    return [ByteRange(n * 5, n * 5 + 5) for n in wanted]


def test_what_is_hurried_goes_first() -> None:
    """In the order of turns over all packs; each once; then the rest as it lies."""
    one, other = pack(5), pack(5)
    line = line_of(one, other)
    first, second = next(line.tickets), next(line.tickets)
    one.expedite(first, spans(4))
    one.expedite(second, spans(2, 4))
    other.expedite(first, spans(3))
    taken = all_of(line)
    assert {(standing, span.start // 5) for standing, span in taken[:2]} == {(one, 4), (other, 3)}
    assert taken[2] == (one, ByteRange(10, 15))
    assert sorted(numbers(one, taken[3:])) == [0, 1, 3]
    assert sorted(numbers(other, taken[3:])) == [0, 1, 2, 4]
    assert not line.waiting_count


def test_an_earlier_turn_goes_first_whenever_it_is_said() -> None:
    """Who took a turn before may say later what it waits for: also for what was hurried for the other one."""
    one = pack(6)
    line = line_of(one)
    first, second = next(line.tickets), next(line.tickets)
    one.expedite(second, spans(0, 5, 2))
    one.expedite(first, spans(4, 2))
    assert numbers(one, all_of(line)) == [2, 4, 0, 5, 1, 3]


def test_who_came_before_goes_before() -> None:
    """A whole shard somebody waits for is not kept waiting by packs of which something is hurried later."""
    shard = FetchEntry("bucket", [ByteRange(0, 20)], PART_BYTES, lambda: -math.inf)
    one = pack(3)
    line = line_of(one, shard)
    one.expedite(next(line.tickets), spans(2))
    taken = all_of(line)
    assert [standing for standing, _ in taken[:3]] == [shard, shard, one]
    assert taken[2][1] == ByteRange(10, 15)


def test_who_waits_goes_before_who_does_not() -> None:
    """However it was hurried: what nobody needs yet stays behind."""
    later, now = pack(3, urgency=5.0), pack(3, urgency=-math.inf)
    line = line_of(later, now)
    later.expedite(next(line.tickets), spans(1))
    assert [standing for standing, _ in all_of(line)[:3]] == [now] * 3


def test_what_has_begun_is_left_as_it_is() -> None:
    """Hurried too late, or after all was given up, nothing is taken twice and nothing comes back."""
    one = pack(3)
    line = line_of(one)
    assert line.take() == (one, ByteRange(0, 5))
    one.expedite(next(line.tickets), spans(0, 1))
    assert numbers(one, all_of(line)) == [1, 2]
    gone = pack(3)
    line = line_of(gone)
    line.leave(gone)
    gone.expedite(next(line.tickets), spans(0, 1))
    assert gone.over
    assert line.take() is None


def test_the_rest_of_an_object_that_has_begun_goes_with_its_caller() -> None:
    """A large object of which some parts are in flight does not wait behind what later callers want."""
    begun, later = pack(2, size_bytes=25), pack(1, size_bytes=25)
    line = line_of(begun, later)
    assert line.take() == (begun, ByteRange(0, 10))
    first, second = next(line.tickets), next(line.tickets)
    later.expedite(second, [ByteRange(0, 25)])
    begun.expedite(second, [ByteRange(0, 25)])
    begun.expedite(first, [ByteRange(0, 25)])  # who took an earlier turn wants it too
    taken = all_of(line)
    assert taken[:2] == [(begun, ByteRange(10, 20)), (begun, ByteRange(20, 25))]
    assert [standing for standing, _ in taken[2:5]] == [later] * 3
    assert numbers(begun, taken[5:], size_bytes=25) == [1, 1, 1]


@given(
    st.integers(1, 12),
    st.integers(1, 25),
    st.lists(st.tuples(st.sets(st.integers(0, 11)), st.integers(0, 6), st.integers(0, 9)), max_size=5),
)
def test_everything_is_taken_once(count: int, size_bytes: int, calls: list[tuple[set[int], int, int]]) -> None:
    """Whatever is hurried when, and however parts are cut."""
    one = pack(count, size_bytes)
    line = line_of(one)
    taken: list[tuple[FetchEntry, ByteRange]] = []
    turns = [next(line.tickets) for _ in range(10)]
    for wanted, before, turn in calls:
        taken += [part for _ in range(before) if (part := line.take()) is not None]
        one.expedite(
            turns[turn], [ByteRange(n * size_bytes, (n + 1) * size_bytes) for n in sorted(wanted) if n < count]
        )
    taken += all_of(line)
    found = sorted((span.start, span.end) for _, span in taken)
    assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == count * size_bytes
    for standing, span in taken:
        line.give_back(standing, span)
    assert one.over
    assert (line.in_flight_count, line.waiting_count, line.waiting_bytes) == (0, 0, 0)


class _Counted:
    """An urgency that is counted when it is asked for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        return 0.0


def test_a_choice_holds_for_small_objects() -> None:
    """As many objects of a pack as share a place take one look at all fetches; large parts take one look each."""
    counted = _Counted()
    packs = [Pack("bucket", [ByteRange(n, n + 1) for n in range(64)], PART_BYTES, counted) for _ in range(2)]
    line = line_of(*packs)
    assert len(all_of(line)) == 128
    looks = 2 * 128 // PARTS_PER_PLACE
    assert looks // 2 < counted.count <= looks
    shards, counted.count = [FetchEntry("bucket", [ByteRange(0, 640)], PART_BYTES, counted) for _ in range(2)], 0
    assert len(all_of(line_of(*shards))) == 100, "there are no more places"
    assert counted.count >= 150


def test_a_choice_ends_with_its_ticket() -> None:
    """However few objects a caller waits for: the next object of that pack is not taken before another pack's."""
    one, other = pack(20), pack(20)
    line = line_of(one, other)
    first, second = next(line.tickets), next(line.tickets)
    one.expedite(first, spans(19))
    one.expedite(second, spans(*range(10)))
    other.expedite(first, spans(7, 8, 9))
    taken = all_of(line)
    assert {(standing, span.start // 5) for standing, span in taken[:4]} == {
        (one, 19),
        *((other, n) for n in (7, 8, 9)),
    }


def test_a_choice_ends_at_a_limit() -> None:
    """A limit that falls between two small objects counts at once."""
    limit = 10
    line: FetchScheduler[FetchEntry] = FetchScheduler(100, ByteBudget(1 << 30), lambda _: 100, 2, lambda: limit)
    line.join(pack(20))
    assert line.take() is not None
    limit = 1
    assert line.take() is None
    limit = 10
    assert len(all_of(line)) == 9


def test_a_choice_ends_with_its_fetch() -> None:
    """A fetch that was given up between two small objects gets no more of them."""
    one, other = pack(20), pack(20)
    line = line_of(one, other)
    first = line.take()
    assert first is not None
    line.leave(first[0])
    assert all(standing is not first[0] for standing, _ in all_of(line))


def test_a_choice_ends_when_the_order_changes() -> None:
    """What is hurried with an earlier turn between two small objects goes before the second one."""
    one, other = pack(20), pack(20)
    line = line_of(one, other)
    earlier, chosen, later = (next(line.tickets) for _ in range(3))
    one.expedite(chosen, spans(5, 6, 7))
    other.expedite(later, spans(1))
    assert line.take() == (one, ByteRange(25, 30))
    other.expedite(earlier, spans(9))
    assert line.take() == (other, ByteRange(45, 50))


def test_a_choice_ends_when_a_fetch_joins() -> None:
    """A more urgent one goes before the next small object of the last choice."""
    one, urgent = pack(20, urgency=1.0), pack(1)
    line = line_of(one)
    assert line.take() == (one, ByteRange(0, 5))
    line.join(urgent)
    assert line.take() == (urgent, ByteRange(0, 5))
