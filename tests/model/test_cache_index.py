"""The cache's index, quotas included, against a naive model of itself: a dict, a sort and sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feedd.cache import entry_layout
from feedd.cache.index import NOT_NEEDED, CacheIndex, Entry, EntryState, FullNow, Quotas, Reservation, TooLarge
from feedd.values import ObjectRef
from tests.budget import budget
from tests.fakes.next_uses import note_next_use

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = entry_layout.PAGE_BYTES
LIMIT = 20 * PAGE
REFS = [ObjectRef("s3://b", f"k{index}", index % 5 * PAGE + index, "e") for index in range(12)]
QUOTAS = {"s3://b/k": 15 * PAGE, "s3://b/k1": 6 * PAGE, "s3://b/k3": 4 * PAGE, "s3://other/": PAGE}
MANY = [ObjectRef("s3://b", f"k{index}", index % 3 * PAGE, "e") for index in range(40)]
refs = st.sampled_from(REFS)
positions = st.one_of(st.just(math.inf), st.integers(0, 6).map(float))


@dataclass
class Row:
    """What the model knows of one object."""

    state: str
    pins: int = 0
    used: int = 0
    damaged: bool = False


class IndexMachine(RuleBasedStateMachine):
    """Drives index and model side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.index = CacheIndex(LIMIT, Quotas(QUOTAS))
        self.rows: dict[ObjectRef, Row] = {}
        self.uses: dict[ObjectRef, float] = {}
        self.hidden: list[Entry] = []
        self.lost_pins: list[Entry] = []
        self.held: list[Entry] = []
        self.tick = 0

    def size(self, ref: ObjectRef) -> int:
        return PAGE + -(-ref.size_bytes // PAGE) * PAGE

    def used_bytes(self) -> int:
        return sum(map(self.size, self.rows)) + sum(entry.disk_bytes for entry in self.hidden)

    def group(self, ref: ObjectRef) -> str:
        return max((prefix for prefix in QUOTAS if ref.url.startswith(prefix)), key=len)

    def group_bytes(self, group: str) -> int:
        held = [*self.rows, *(entry.ref for entry in self.hidden)]
        return sum(self.size(ref) for ref in held if self.group(ref) == group)

    def over_quota(self, missing: Sequence[ObjectRef]) -> dict[str, int]:
        """By how much each quota would be passed, where it would."""
        groups = dict.fromkeys(map(self.group, missing))
        wanted = {group: sum(self.size(ref) for ref in missing if self.group(ref) == group) for group in groups}
        over = {group: self.group_bytes(group) + size - QUOTAS[group] for group, size in wanted.items()}
        return {group: size for group, size in over.items() if size > 0}

    def room_for(
        self, missing: Sequence[ObjectRef], after: float, keep: Sequence[ObjectRef] = ()
    ) -> list[ObjectRef] | None:
        """Who has to go for these: first inside their quotas, then anywhere."""
        chosen: list[ObjectRef] = []
        for group, size in self.over_quota(missing).items():
            others = [ref for ref in self.rows if self.group(ref) != group]
            inside = self.victims(size, after, [*keep, *chosen, *others])
            if inside is None:
                return None
            chosen += inside
        wanted = sum(map(self.size, missing)) - sum(map(self.size, chosen)) + self.used_bytes() - LIMIT
        anywhere = self.victims(wanted, after, [*keep, *chosen])
        return None if anywhere is None else chosen + anywhere

    def too_large(self, wanted: Sequence[ObjectRef]) -> TooLarge | None:
        needed = sum(map(self.size, wanted))
        if needed > LIMIT:
            return TooLarge(needed, LIMIT)
        for group in dict.fromkeys(map(self.group, wanted)):
            inside = sum(self.size(ref) for ref in wanted if self.group(ref) == group)
            if inside > QUOTAS[group]:
                return TooLarge(inside, QUOTAS[group], group)
        return None

    def victims(self, wanted_bytes: int, after: float, keep: Sequence[ObjectRef] = ()) -> list[ObjectRef] | None:
        """Who has to go by the rules, in order; None where that is not enough."""
        idle = [ref for ref, row in self.rows.items() if row.state == "whole" and not row.pins and ref not in keep]
        idle = [ref for ref in idle if self.uses.get(ref, math.inf) > after]
        idle.sort(key=lambda ref: (-self.uses.get(ref, math.inf), self.rows[ref].used))
        chosen: list[ObjectRef] = []
        while wanted_bytes > 0:
            if not idle:
                return None
            chosen.append(idle.pop(0))
            wanted_bytes -= self.size(chosen[-1])
        return chosen

    def touch(self, ref: ObjectRef) -> None:
        self.tick += 1
        self.rows[ref].used = self.tick

    def evicted(self, outcome: tuple[Entry, ...], expected: list[ObjectRef]) -> None:
        assert [entry.ref for entry in outcome] == expected
        assert all(not entry.pins and entry.state is EntryState.GONE for entry in outcome)
        for ref in expected:
            del self.rows[ref]

    @rule(wanted=st.lists(refs, max_size=4, unique=True))
    def reserve_all(self, wanted: list[ObjectRef]) -> None:
        missing = [ref for ref in wanted if ref not in self.rows]
        expected = self.room_for(missing, -math.inf, wanted)
        outcome = self.index.reserve_all(wanted)
        too_large = self.too_large(wanted)
        if too_large is not None:
            assert outcome == too_large
            return
        if expected is None:
            assert isinstance(outcome, FullNow)
            return
        assert isinstance(outcome, Reservation)
        self.evicted(outcome.evicted, expected)
        refill = [ref for ref in wanted if ref in self.rows and self.rows[ref].damaged]
        assert {entry.ref for entry in outcome.missing} == {*missing, *refill}
        for ref in missing:
            self.rows[ref] = Row("filling")
        for ref in refill:
            self.rows[ref].state, self.rows[ref].damaged = "filling", False
        for ref in wanted:
            self.rows[ref].pins += 1
        assert [entry.ref for entry in outcome.entries] == wanted
        assert all(self.rows[entry.ref].state == "whole" for entry in outcome.present)
        assert all(self.rows[entry.ref].state == "filling" for entry in outcome.running)
        assert len(outcome.present) + len(outcome.running) + len(outcome.missing) == len(wanted)
        self.held += outcome.entries

    @rule(ref=refs)
    def reserve_early(self, ref: ObjectRef) -> None:
        if ref in self.rows:
            return
        expected = self.room_for([ref], self.uses.get(ref, math.inf))
        outcome = self.index.reserve_early(ref)
        too_large = self.too_large([ref])
        if too_large is not None:
            assert outcome == too_large
            return
        if expected is None:
            assert isinstance(outcome, FullNow)
            return
        assert isinstance(outcome, Reservation)
        self.evicted(outcome.evicted, expected)
        self.rows[ref] = Row("filling")
        assert not outcome.entries[0].pins

    @rule(wanted=st.lists(refs, max_size=4, unique=True))
    def price(self, wanted: list[ObjectRef]) -> None:
        missing = [ref for ref in wanted if ref not in self.rows]
        victims = self.room_for(missing, -math.inf)
        uses = [self.uses.get(ref, math.inf) for ref in victims or ()]
        if victims is None:
            assert self.index.space.price(missing) == -math.inf
        else:
            assert self.index.space.price(missing) == (min(*uses, NOT_NEEDED) if uses else math.inf)

    @rule(found=st.lists(refs, max_size=8))
    def adopt_all(self, found: list[ObjectRef]) -> None:
        refused = []
        for ref in found:
            if ref in self.rows or self.used_bytes() + self.size(ref) > LIMIT or self.over_quota([ref]):
                refused.append(ref)
                continue
            self.rows[ref] = Row("whole")
            self.touch(ref)
        assert self.index.adopt_all([(ref, self.size(ref)) for ref in found]) == refused

    def filling(self) -> list[ObjectRef]:
        return [ref for ref, row in self.rows.items() if row.state == "filling"]

    @precondition(lambda self: self.filling())
    @rule(data=st.data(), how=st.sampled_from(["commit", "commit", "commit", "abort", "orphan"]))
    def end_fill(self, data: st.DataObject, how: str) -> None:
        ref = data.draw(st.sampled_from(self.filling()))
        entry = self.index.find(ref)
        assert entry is not None
        if how == "commit":
            assert self.index.commit(entry)
            self.rows[ref].state = "whole"
            self.touch(ref)
            return
        if how == "abort":
            self.index.abort(entry)
        else:
            self.index.orphan(entry)
            self.hidden.append(entry)
        del self.rows[ref]

    @precondition(lambda self: self.hidden)
    @rule(finished=st.booleans())
    def end_hidden(self, finished: bool) -> None:
        entry = self.hidden.pop()
        if finished:
            assert not self.index.commit(entry)
        else:
            self.index.abort(entry)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        entry = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        mine = self.index.find(entry.ref) is entry
        removed = self.index.unpin(entry)
        row = self.rows.get(entry.ref)
        if not mine or row is None:
            assert not removed
            return
        row.pins -= 1
        ends = row.pins == 0 and row.state == "whole"
        assert removed == (ends and row.damaged)
        if removed:
            del self.rows[entry.ref]
        elif ends:
            self.touch(entry.ref)

    @rule(ref=refs)
    def discard(self, ref: ObjectRef) -> None:
        gone = self.index.discard(ref)
        row = self.rows.get(ref)
        if row is None or row.state == "filling":
            assert gone is None
        elif row.pins:
            assert gone is None
            row.damaged = True
        else:
            assert gone is not None
            assert gone.ref == ref
            del self.rows[ref]

    @rule(ref=refs)
    def vanish(self, ref: ObjectRef) -> None:
        row, entry = self.rows.get(ref), self.index.find(ref)
        if row is not None and entry is not None and row.state == "whole":
            self.index.reopen(entry)
            row.state, row.damaged = "filling", False

    @rule(wanted=st.integers(1, 6), after=st.sampled_from([-math.inf, 2.0, math.inf]))
    def free_space(self, wanted: int, after: float) -> None:
        expected = self.victims(wanted * PAGE, after)
        self.evicted(self.index.free_space(wanted * PAGE, after), expected or [])

    @rule(uses=st.lists(st.tuples(refs, positions), max_size=5))
    def note_next_use(self, uses: list[tuple[ObjectRef, float]]) -> None:
        note_next_use(self.index, uses)
        self.uses.update(uses)

    @invariant()
    def same_books(self) -> None:
        entries = {entry.ref: entry for entry in self.index}
        assert entries.keys() == self.rows.keys()
        for ref, row in self.rows.items():
            entry = entries[ref]
            assert entry.pins == row.pins
            assert entry.state is (EntryState.COMMITTED if row.state == "whole" else EntryState.RESERVED)
            assert entry.next_use == self.uses.get(ref, math.inf)
            assert entry.disk_bytes == self.size(ref)

    @invariant()
    def sums_add_up(self) -> None:
        whole = [ref for ref, row in self.rows.items() if row.state == "whole"]
        assert self.index.committed_count == len(whole)
        assert self.index.committed_bytes == sum(map(self.size, whole))
        assert self.index.committed_bytes + self.index.reserved_bytes == self.used_bytes() <= LIMIT
        assert self.index.space.taken_bytes == self.used_bytes()
        idle = [ref for ref in whole if not self.rows[ref].pins]
        assert self.index.space.order.idle_bytes == sum(map(self.size, idle))
        assert all(self.group_bytes(group) <= limit for group, limit in QUOTAS.items())
        assert self.index.pin_count == len(self.held) == sum(entry.pins for entry in set(self.held))


def books(index: CacheIndex) -> dict[str, object]:
    """All that an index knows, in the order in which it would evict."""
    order = [
        (entry.ref, entry.disk_bytes, entry.state, entry.next_use, entry.used_at, entry.stamp, entry.group)
        for entry in index
    ]
    sums = (index.committed_bytes, index.reserved_bytes, index.committed_count, index.pin_count)
    space = (index.space.taken_bytes, index.space.order.idle_bytes, dict(index.space._group_bytes))
    gone = [entry.ref for entry in index.free_space(index.space.order.idle_bytes)]
    return {"order": order, "sums": sums, "room": space, "gone": gone, "after": index.space.order.idle_bytes}


def adopt(index: CacheIndex, ref: ObjectRef) -> bool:
    """Enter one object as a fill does; False where that is not free of evictions, or it is here."""
    if index.find(ref) is not None or index.space.lacking_bytes({ref: entry_layout.disk_bytes(ref)}) > 0:
        return False
    outcome = index.reserve_early(ref)
    assert isinstance(outcome, Reservation)
    return index.commit(outcome.entries[0])


@given(
    found=st.lists(st.sampled_from(MANY), max_size=60),
    before=st.lists(st.sampled_from(MANY), max_size=60),
    uses=st.lists(st.tuples(st.sampled_from(MANY), positions), max_size=20),
    limit=st.integers(1, 120),
    quotas=st.sampled_from([{}, QUOTAS, {"s3://b/k": 60 * PAGE, "s3://b/k1": 20 * PAGE}]),
)
@settings(max_examples=budget(200), deadline=None)
def test_adopting_all_is_adopting_each(
    found: list[ObjectRef],
    before: list[ObjectRef],
    uses: list[tuple[ObjectRef, float]],
    limit: int,
    quotas: dict[str, int],
) -> None:
    """Entering a list at once leaves the books that entering its objects one by one leaves, down to what goes first."""
    at_once, one_by_one = (CacheIndex(limit * PAGE, Quotas(quotas)) for _ in range(2))
    for index in (at_once, one_by_one):
        note_next_use(index, uses)
        for ref in before:  # a list that is short beside them takes another way into the order
            adopt(index, ref)
        note_next_use(index, ((ref, 1.0) for ref, _ in uses[::2]))  # leaves stale tickets
    refused = at_once.adopt_all((ref, entry_layout.disk_bytes(ref)) for ref in found)
    assert refused == [ref for ref in found if not adopt(one_by_one, ref)]
    assert books(at_once) == books(one_by_one)


def test_an_unpinned_entry_that_broke_is_not_evicted_while_it_is_fetched_again() -> None:
    """A reopened entry leaves the order of eviction until it is whole again."""
    index, ref = CacheIndex(LIMIT, Quotas({})), REFS[1]
    assert adopt(index, ref)
    entry = index.find(ref)
    assert entry is not None
    index.reopen(entry)
    assert index.space.order.idle_bytes == 0
    assert index.free_space(PAGE) == ()
    assert index.find(ref) is entry
    assert index.commit(entry)
    assert index.free_space(PAGE) == (entry,)


IndexMachine.TestCase.settings = settings(max_examples=budget(120), stateful_step_count=50, deadline=None)
TestIndex = IndexMachine.TestCase
