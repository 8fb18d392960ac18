"""The line against a model: any order of joining, taking, giving back and leaving."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feedd.fetch.scheduler import FetchEntry, FetchScheduler
from feedd.flow.budget import ByteBudget
from feedd.values import ByteRange
from tests.budget import budget

AT = st.integers(0, 3).map(float) | st.just(-math.inf)
PLACES, BUDGET_BYTES, PART_BYTES = 4, 25, 10


class LineModel(RuleBasedStateMachine):
    """The model keeps every part of every fetch in a list, cut in advance."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = {"a": 2, "b": 3}
        self.budget = ByteBudget(BUDGET_BYTES)
        self.line: FetchScheduler[FetchEntry] = FetchScheduler(PLACES, self.budget, self.limits.__getitem__)
        self.urgency: dict[FetchEntry, float] = {}
        self.left: dict[FetchEntry, list[ByteRange]] = {}  # in order of arrival
        self.flying: list[tuple[FetchEntry, ByteRange]] = []

    @rule(group=st.sampled_from("ab"), sizes=st.lists(st.integers(0, 35), min_size=1, max_size=3), at=AT)
    def join(self, group: str, sizes: list[int], at: float) -> None:
        spans, start = [], 0
        for size in sizes:
            spans.append(ByteRange(start, start + size))
            start += size + 1
        standing = FetchEntry(group, spans, PART_BYTES, lambda: self.urgency[standing])
        self.urgency[standing] = at
        self.left[standing] = [
            ByteRange(low, min(low + PART_BYTES, span.end))
            for span in spans
            for low in range(span.start, span.end, PART_BYTES)
        ]
        self.line.join(standing)

    def expected(self) -> tuple[FetchEntry, ByteRange] | None:
        """Return what must be given next."""
        flying = [standing.group for standing, _ in self.flying]
        able = [s for s, left in self.left.items() if left and flying.count(s.group) < self.limits[s.group]]
        if not able or len(flying) >= PLACES:
            return None
        chosen, *others = sorted(able, key=self.urgency.__getitem__)[:2]
        for other in others:
            awaited = any(
                self.urgency[one] == -math.inf for one in (chosen, *(standing for standing, _ in self.flying))
            )
            counts = [sum(standing is one for standing, _ in self.flying) for one in (chosen, other)]
            if counts[1] < counts[0] and (not awaited or self.urgency[chosen] == self.urgency[other]):
                chosen = other
        span = self.left[chosen][0]
        held = sum(other.size_bytes for _, other in self.flying)
        return (chosen, span) if not held or held + span.size_bytes <= BUDGET_BYTES else None

    @rule()
    def take(self) -> None:
        wanted = self.expected()
        assert self.line.take() == wanted
        if wanted is not None:
            self.left[wanted[0]].pop(0)
            self.flying.append(wanted)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        place = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.line.give_back(*place)

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        standing = data.draw(st.sampled_from(list(self.left)))
        self.left[standing].clear()
        self.line.leave(standing)

    @precondition(lambda self: self.left)
    @rule(data=st.data(), at=AT)
    def change_urgency(self, data: st.DataObject, at: float) -> None:
        self.urgency[data.draw(st.sampled_from(list(self.left)))] = at

    @rule(group=st.sampled_from("ab"), limit=st.integers(1, 5))
    def change_limit(self, group: str, limit: int) -> None:
        self.limits[group] = limit

    @invariant()
    def books_agree(self) -> None:
        assert self.line.in_flight_count == len(self.flying) <= PLACES
        assert self.budget.reserved_bytes == sum(span.size_bytes for _, span in self.flying) <= BUDGET_BYTES
        assert self.line.waiting_count == sum(bool(left) for left in self.left.values())
        assert self.line.waiting_bytes == sum(span.size_bytes for left in self.left.values() for span in left)
        for standing, left in self.left.items():
            assert standing.waiting == bool(left)
            assert standing.over == (not left and standing not in [other for other, _ in self.flying])

    def teardown(self) -> None:
        """Whatever was done, the rest gets through."""
        while any(self.left.values()) or self.flying:
            before = sum(map(len, self.left.values())), len(self.flying)
            while self.expected() is not None:
                self.take()
            if self.flying:
                self.line.give_back(*self.flying.pop())
            assert (sum(map(len, self.left.values())), len(self.flying)) != before
        assert self.budget.reserved_bytes == self.line.in_flight_count == self.line.waiting_count == 0


TestLineModel = LineModel.TestCase
TestLineModel.settings = settings(max_examples=budget(50), stateful_step_count=40, deadline=None)
