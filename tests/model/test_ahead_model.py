"""Whatever a stream asks for and gives back: no slot has two owners or two writers, and none is ever missing."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadSample
from feedd.flow.arena import Arena
from feedd.ordering.batch_plan import BatchPlan
from feedd.sessions.filling import Filling
from feedd.sessions.next_epoch_prefetch import AheadParts, NextEpochPrefetch
from feedd.values import BatchReady, Cursor
from tests.budget import budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.ordering.batch_plan import BatchPlanGroup
    from feedd.values import SlotRef

SLOTS = 3


class _Rig:
    """An arena, what decodes into it when told to, and a stream that takes and gives back."""

    def __init__(self, tasks: asyncio.TaskGroup, at_once: int) -> None:
        self.arena = Arena(SLOTS, mmap.PAGESIZE)
        self.taken: dict[SlotRef, Cursor] = {}
        self.asked: dict[asyncio.Task[BatchReady | None], SlotRef] = {}
        self.writing: dict[int, asyncio.Future[bool]] = {}
        self.owned: set[int] = set()  # by the stream alone: nobody else may write to them
        nothing: Any = SimpleNamespace(
            refs=[None],
            rows=self.rows,
            draw=self.draw,
            indexes=self.indexes,
            fill=self.fill,
            fill_together=self.fill_together,
            acquire=self.acquire,
            release=lambda: None,
        )
        steps = tuple(range(max(2, at_once)))
        filling = Filling(nothing, nothing, nothing, nothing)
        parts = AheadParts(self.arena, filling, lambda: nothing, steps, at_once, tasks)
        self.ahead = NextEpochPrefetch(parts)

    async def rows(self, _listing: object, _reader: object, at: Cursor) -> Any:
        return SimpleNamespace(cursor=at, shards=np.empty(0, np.int64))

    async def draw(self, _listing: object, _reader: object, at: Cursor) -> BatchPlan:
        row = np.zeros(1, np.int64)
        return BatchPlan(at, row, row, lambda: row.astype(np.uint64), at.step // 2, at.step // 2)  # two make a window

    async def indexes(self, _listing: object, _shards: object) -> list[object]:
        return []

    async def acquire(self, _refs: object) -> Any:
        class Pins:
            files = ()

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *exc: object) -> None: ...

            def release(self) -> None: ...

        return Pins()

    async def fill(
        self, rows: Any, _indexes: object, _files: object, slot: SlotRef, *, early: bool = False
    ) -> BatchReady:
        assert early, "nobody has asked for what is made ahead"
        assert slot.index not in self.writing, "two write to a slot"
        assert slot.index not in self.owned, "a slot of the stream is written to"
        done = self.writing[slot.index] = asyncio.get_running_loop().create_future()
        try:
            good = await done
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # as workers take a moment to stop
            raise
        finally:
            del self.writing[slot.index]
        if not good:
            raise BadSample("expected a sample, got none", stage="decode")
        return BatchReady(rows.cursor, 1, (), slot.index)

    async def fill_together(
        self,
        several: BatchPlanGroup,
        slots: Sequence[SlotRef],
        _indexes: object,
        _files: object,
        *,
        early: bool = False,
    ) -> list[BatchReady]:
        filling = [
            asyncio.ensure_future(self.fill(drawn, (), (), slot, early=early))
            for drawn, slot in zip(several.batches, slots, strict=True)
        ]
        try:
            return [await one for one in filling]
        finally:
            for one in filling:
                one.cancel()
            while any(not one.done() for one in filling):  # until then they write, cancelled again or not
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait(filling)

    def take(self, at: Cursor) -> None:
        slot = self.ahead.take(at)
        if slot is None:
            assert len(self.taken) == SLOTS, "a slot is free and was not given out"
            return
        assert slot.index not in {other.index for other in self.taken}, "a slot was given out twice"
        assert self.arena.view(slot).nbytes == mmap.PAGESIZE
        self.taken[slot] = at

    def ask(self, slot: SlotRef) -> None:
        if slot.index not in self.owned and slot not in self.asked.values():
            self.asked[asyncio.ensure_future(self.ahead.batch(slot))] = slot

    def see(self) -> None:
        for task in [task for task in self.asked if task.done()]:
            slot = self.asked.pop(task)
            assert slot.index not in self.writing, "it was called the stream's while it is written to"
            self.owned.add(slot.index)
            made = task.result()
            assert made is None or (made.cursor, made.size_bytes) == (self.taken[slot], slot.index), "another batch"

    async def give_back(self, slot: SlotRef) -> None:
        for task in [task for task, asked in self.asked.items() if asked == slot]:
            task.cancel()
            await asyncio.wait([task])
            del self.asked[task]
        self.owned.discard(slot.index)
        del self.taken[slot]
        assert self.ahead.give_back(slot)
        assert not self.ahead.give_back(slot), "given back twice"


_steps = st.one_of(
    st.tuples(st.just("begin"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("take"), st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.sampled_from(["ask", "give back"]), st.integers(0, SLOTS), st.just(0)),
    st.tuples(st.just("write"), st.integers(0, SLOTS), st.booleans()),
    st.tuples(st.just("turn"), st.integers(1, 6), st.just(0)),
)


@settings(max_examples=budget(300))
@given(st.lists(_steps, max_size=40), st.integers(1, SLOTS))
def test_slots_have_one_owner(steps: list[tuple[str, int, int]], at_once: int) -> None:
    """A stream that takes, asks and gives back in any order never meets a slot in use, and gets its own batches."""
    asyncio.run(_run(steps, at_once))


async def _run(steps: list[tuple[str, int, int]], at_once: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = _Rig(tasks, at_once)
        for what, first, second in steps:
            slots = list(rig.taken)
            if what == "begin":
                rig.ahead.begin(first)
            elif what == "take":
                rig.take(Cursor(first, second))
            elif what == "write" and first in rig.writing and not rig.writing[first].done():
                rig.writing[first].set_result(bool(second))
            elif what == "ask" and first < len(slots):
                rig.ask(slots[first])
            elif what == "give back" and first < len(slots):
                await rig.give_back(slots[first])
            elif what == "turn":
                for _ in range(first):
                    await asyncio.sleep(0)
                    rig.see()
        for slot in list(rig.taken):
            await rig.give_back(slot)
        await rig.ahead.close()
        assert not rig.writing
        assert rig.arena.taken_count == 0
        rig.arena.close()
