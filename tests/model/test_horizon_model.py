"""The timeline of several streams against the plain rule: the nearest use of anybody decides."""

from __future__ import annotations

import math

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from feedd.ordering.next_use import NextUseTimeline
from feedd.values import ObjectRef
from tests.budget import budget

REFS = [ObjectRef("s3://b", f"k{index}", 100, "e") for index in range(8)]
SLACK = 50.0
names = st.sampled_from(["a", "b", "c"])


class HorizonMachine(RuleBasedStateMachine):
    """Streams of integers; what was told must order uses of one stream exactly, of several within the slack."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline = NextUseTimeline()
        self.at: dict[str, float] = {}
        self.positions: dict[str, dict[ObjectRef, float]] = {}
        self.told: dict[ObjectRef, float] = {}

    @initialize()
    def begin(self) -> None:
        self.open("a", 0)

    @rule(name=names, at=st.integers(0, 1000))
    def open(self, name: str, at: int) -> None:
        if name not in self.at:
            self.timeline.open(name, float(at), SLACK)
            self.at[name], self.positions[name] = float(at), {}

    @rule(name=names, uses=st.lists(st.tuples(st.sampled_from(REFS), st.integers(0, 400)), max_size=6))
    def tell(self, name: str, uses: list[tuple[ObjectRef, int]]) -> None:
        if name in self.at:
            ahead = [(ref, self.at[name] + distance) for ref, distance in uses]
            self.told.update(self.timeline.set_uses(name, ahead))
            self.positions[name].update(ahead)

    @rule(name=names, step=st.integers(-30, 120))
    def advance(self, name: str, step: int) -> None:
        if name in self.at:
            self.told.update(self.timeline.advance(name, self.at[name] + step))
            self.at[name] += max(step, 0)

    @rule(name=names)
    def close(self, name: str) -> None:
        if name in self.at:
            del self.at[name], self.positions[name]
            self.told.update(self.timeline.close(name))

    def distance(self, ref: ObjectRef) -> float:
        """How far off the nearest use is."""
        return min((p[ref] - self.at[name] for name, p in self.positions.items() if ref in p), default=math.inf)

    @invariant()
    def the_nearest_use_decides(self) -> None:
        assert self.timeline.stream_count == len(self.at)
        wanted = {ref for positions in self.positions.values() for ref in positions}
        assert {ref for ref, time in self.told.items() if time < math.inf} == wanted
        for one in wanted:
            for other in wanted:
                if self.distance(one) + SLACK < self.distance(other):
                    assert self.told[one] < self.told[other]
                if len(self.at) == 1 and self.distance(one) < self.distance(other):
                    assert self.told[one] < self.told[other]


HorizonMachine.TestCase.settings = settings(max_examples=budget(100), stateful_step_count=30, deadline=None)
TestHorizon = HorizonMachine.TestCase
