"""The timeline of several streams against the plain rule: the nearest use of anybody decides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from feedd.ordering.next_use import NextUseTimeline
from feedd.values import ObjectRef
from tests.budget import budget

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

REFS = [ObjectRef("s3://b", f"k{index}", 100, "e") for index in range(8)]
SLACK = 50.0
names = st.sampled_from(["a", "b", "c"])


class _Uses:
    """The positions of one stream, which the test may change."""

    def __init__(self, positions: dict[ObjectRef, float]) -> None:
        self._positions = positions

    def next_uses(self, refs: Collection[ObjectRef], window: int) -> NDArray[np.float64]:
        """Return the positions; all windows are alike."""
        del window
        return np.array([self._positions.get(ref, math.inf) for ref in refs])


class HorizonMachine(RuleBasedStateMachine):
    """Streams of integers; what was told must order uses of one stream exactly, of several within the slack."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline = NextUseTimeline()
        self.at: dict[str, float] = {}
        self.positions: dict[str, dict[ObjectRef, float]] = {}

    @initialize()
    def begin(self) -> None:
        self.open("a", 0)

    @rule(name=names, at=st.integers(0, 1000))
    def open(self, name: str, at: int) -> None:
        if name not in self.at:
            self.positions[name] = found = dict[ObjectRef, float]()
            self.timeline.open(name, _Uses(found), 0, float(at), SLACK)
            self.at[name] = float(at)

    @rule(name=names, uses=st.lists(st.tuples(st.sampled_from(REFS), st.integers(0, 400)), max_size=6))
    def tell(self, name: str, uses: list[tuple[ObjectRef, int]]) -> None:
        if name in self.at:
            self.positions[name].update((ref, self.at[name] + distance) for ref, distance in uses)

    @rule(name=names, step=st.integers(-30, 120))
    def advance(self, name: str, step: int) -> None:
        if name in self.at:
            before = self.times()
            shifted = self.timeline.advance(name, self.at[name] + step)
            self.at[name] += max(step, 0)
            assert shifted or self.times() == before

    @rule(name=names)
    def close(self, name: str) -> None:
        if name in self.at:
            del self.at[name], self.positions[name]
            self.timeline.close(name)

    def times(self) -> dict[ObjectRef, float]:
        return dict(zip(REFS, self.timeline.times(REFS), strict=True))

    def distance(self, ref: ObjectRef) -> float:
        """How far off the nearest use is."""
        return min((p[ref] - self.at[name] for name, p in self.positions.items() if ref in p), default=math.inf)

    @invariant()
    def the_nearest_use_decides(self) -> None:
        assert self.timeline.stream_count == len(self.at)
        wanted = {ref for positions in self.positions.values() for ref in positions}
        told = self.times()
        assert {ref for ref, time in told.items() if time < math.inf} == wanted
        for one in wanted:
            for other in wanted:
                if self.distance(one) + SLACK < self.distance(other):
                    assert told[one] < told[other]
                if len(self.at) == 1 and self.distance(one) < self.distance(other):
                    assert told[one] < told[other]


HorizonMachine.TestCase.settings = settings(max_examples=budget(100), stateful_step_count=30, deadline=None)
TestHorizon = HorizonMachine.TestCase
