from __future__ import annotations

import mmap

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feedd.flow.arena import Arena
from feedd.values import SlotRef
from tests.budget import budget


class ArenaModel(RuleBasedStateMachine):
    """The arena against a set of what is taken and a list of all that ever was."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(3, mmap.PAGESIZE)
        self.taken: set[SlotRef] = set()
        self.marks: dict[SlotRef, int] = {}
        self.history: list[SlotRef] = []

    def teardown(self) -> None:
        self.arena.close()

    @rule()
    def take(self) -> None:
        slot = self.arena.take()
        if len(self.taken) == 3:
            assert slot is None
            return
        assert slot is not None
        assert slot not in self.history, "a use came twice"
        assert slot.index not in {other.index for other in self.taken}, "a slot was handed out twice"
        former = [old.generation for old in self.history if old.index == slot.index]
        assert slot.generation > max(former, default=0)
        self.taken.add(slot)
        self.history.append(slot)
        self.marks[slot] = len(self.history) % 251
        self.arena.view(slot)[:] = bytes([self.marks[slot]]) * self.arena.slot_bytes

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def give_back_any_use_ever(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.history))
        assert self.arena.give_back(slot) == (slot in self.taken)
        self.taken.discard(slot)

    @rule(index=st.integers(-2, 5), generation=st.integers(-1, 40))
    def give_back_something(self, index: int, generation: int) -> None:
        slot = SlotRef(index, generation)
        assert self.arena.give_back(slot) == (slot in self.taken)
        self.taken.discard(slot)

    @invariant()
    def counts_agree(self) -> None:
        assert self.arena.taken_count == len(self.taken)

    @invariant()
    def nobody_wrote_into_a_taken_slot(self) -> None:
        for slot in self.taken:
            view = self.arena.view(slot)
            assert view[0] == view[-1] == self.marks[slot]


ArenaModel.TestCase.settings = settings(max_examples=budget(40), stateful_step_count=30, deadline=None)
TestArenaModel = ArenaModel.TestCase
