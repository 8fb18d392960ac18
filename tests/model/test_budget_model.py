"""The byte budget against a model: any order of asking, giving back and giving up."""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feedd.flow.budget import ByteBudget
from tests.budget import budget

LIMIT_BYTES = 10


class Holder:
    """One request: waits, holds until told, gives back."""

    def __init__(self, budget: ByteBudget, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.holds = False
        self.release = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run(budget))

    async def _run(self, budget: ByteBudget) -> None:
        async with budget.reserve(self.size_bytes):
            self.holds = True
            try:
                await self.release.wait()
            finally:
                self.holds = False


class BudgetModel(RuleBasedStateMachine):
    """The model is a queue: the longest prefix that fits holds, the rest waits."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.budget = ByteBudget(LIMIT_BYTES)
        self.holding: list[Holder] = []
        self.queue: list[Holder] = []
        self.gone: list[Holder] = []

    async def _make(self, size_bytes: int) -> Holder:
        holder = Holder(self.budget, size_bytes)
        await asyncio.sleep(0)
        return holder

    def settle(self) -> None:
        """Let the loop run dry, then move in the model what must have been granted."""

        async def turns() -> None:
            for _ in range(2 * (len(self.holding) + len(self.queue)) + 8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())
        while self.queue:
            held = sum(holder.size_bytes for holder in self.holding)
            if held and held + self.queue[0].size_bytes > LIMIT_BYTES:
                break
            self.holding.append(self.queue.pop(0))

    @rule(size_bytes=st.integers(0, 2 * LIMIT_BYTES))
    def ask(self, size_bytes: int) -> None:
        self.queue.append(self.loop.run_until_complete(self._make(size_bytes)))
        self.settle()

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        holder = self.holding.pop(data.draw(st.integers(0, len(self.holding) - 1)))
        holder.release.set()
        self.settle()

    @precondition(lambda self: self.holding or self.queue)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        line = self.holding + self.queue
        holder = line[data.draw(st.integers(0, len(line) - 1))]
        (self.holding if holder in self.holding else self.queue).remove(holder)
        holder.task.cancel()
        self.gone.append(holder)
        self.settle()

    @precondition(lambda self: self.holding and self.queue)
    @rule()
    def give_back_and_cancel_the_next_in_one_turn(self) -> None:
        self.holding.pop(0).release.set()
        self.gone.append(self.queue.pop(0))
        self.gone[-1].task.cancel()
        self.settle()

    @invariant()
    def agrees(self) -> None:
        assert all(holder.holds for holder in self.holding)
        assert not any(holder.holds for holder in self.queue)
        assert all(holder.task.cancelled() for holder in self.gone)
        assert self.budget.reserved_bytes == sum(holder.size_bytes for holder in self.holding)
        assert self.budget.waiting_count == len(self.queue)
        assert self.budget.reserved_bytes <= LIMIT_BYTES or len([h for h in self.holding if h.size_bytes]) == 1

    def teardown(self) -> None:
        while self.holding or self.queue:
            self.holding.pop(0).release.set()  # something is always held while anything waits
            self.settle()
        assert (self.budget.reserved_bytes, self.budget.waiting_count) == (0, 0)
        self.loop.close()


TestBudgetModel = BudgetModel.TestCase
TestBudgetModel.settings = settings(max_examples=budget(60), stateful_step_count=30, deadline=None)
