"""What a group of jobs keeps, against plain sets: a batch that somebody reads is never written over, nobody waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feedd.flow.arena import Arena
from feedd.sessions.shared_batches import WINDOW_BATCHES, Keeping, SharedBatch
from feedd.values import BatchReady, Cursor, SlotRef
from tests.budget import budget

SLOTS = 6
STEPS = st.integers(0, 13)
CHOICE = st.integers(0, 1 << 20)


@dataclass(eq=False)
class _Job:
    """A job that is lent batches, or takes copies: what it holds, and what it waits for the making of."""

    leases: int = 0
    held: list[SharedBatch] = field(default_factory=list)
    copying: list[SharedBatch] = field(default_factory=list)
    making: list[int] = field(default_factory=list)

    @property
    def busy_count(self) -> int:
        return len(self.held) + len(self.copying) + len(self.making)


class KeepingModel(RuleBasedStateMachine):
    """Jobs join, want steps in any order, give back in any order, and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(SLOTS, 4096)
        self.keeping = Keeping(self.arena)
        self.jobs: list[_Job] = []
        self.making: dict[int, SlotRef] = {}  # by step
        self.wrote: dict[int, int] = {}  # by slot: the step whose batch lies there

    @rule(leases=st.integers(0, 4))
    def join(self, leases: int) -> None:
        """A job comes; for one with leases there may be no room, and it takes copies."""
        job = _Job(leases)
        self.keeping.join(job)
        promised = sum(other.leases for other in self.jobs)
        if leases:
            admitted = self.keeping.admit(job, leases)
            assert admitted == (promised + leases < SLOTS)
            job.leases = leases if admitted else 0
        self.jobs.append(job)

    @precondition(lambda self: self.jobs)
    @rule(which=CHOICE, steps=st.lists(STEPS, min_size=1, max_size=4), at_once=st.booleans())
    def want(self, which: int, steps: list[int], *, at_once: bool) -> None:
        """A job asks for steps: each is found, being made, or begun."""
        for step in steps:
            self.want_one(which, step)
            if at_once and step in self.making:
                self.made(list(self.making).index(step))

    def want_one(self, which: int, step: int) -> None:
        """A job asks for one step."""
        job = self.jobs[which % len(self.jobs)]
        if job.busy_count >= (job.leases or 2) or step in job.making:
            return
        kept = self.keeping.find((0, step), job if job.leases else None)
        if kept is not None:
            self.take(job, kept)
            return
        if step not in self.making:
            slot = self.keeping.free_slot()
            if slot is None:  # only for one that takes copies, or for what is being made for a job that went
                orphans = set(self.making).difference(*(other.making for other in self.jobs))
                assert orphans or any(not other.leases and other.busy_count for other in self.jobs)
                return
            assert slot.index not in {kept.slot.index for other in self.jobs for kept in other.held if kept.slot}
            self.making[step] = slot
            self.wrote[slot.index] = step
        job.making.append(step)

    def take(self, job: _Job, kept: SharedBatch) -> None:
        """What follows a find at once."""
        if job.leases:
            assert kept not in job.held, "a place was lent twice"
            self.keeping.hold(kept, job)
            job.held.append(kept)
        else:
            kept.reader_count += 1
            job.copying.append(kept)

    @precondition(lambda self: self.making)
    @rule(which=CHOICE)
    def made(self, which: int) -> None:
        """A batch is made: those that wait for it take it, if it is still there when their turn comes."""
        step = list(self.making)[which % len(self.making)]
        slot = self.making.pop(step)
        self.keeping.add((0, step), BatchReady(Cursor(0, step), 1, (), 1), slot)
        for job in self.jobs:
            if step in job.making:
                job.making.remove(step)
                kept = self.keeping.find((0, step), job if job.leases else None)
                if kept is not None:
                    self.take(job, kept)

    @rule(which=CHOICE, at=CHOICE)
    def give_back(self, which: int, at: int) -> None:
        """A job is done with a batch, or with copying one."""
        jobs = [job for job in self.jobs if job.held or job.copying]
        if jobs:
            job = jobs[which % len(jobs)]
            if job.held:
                self.keeping.let_go(job.held.pop(at % len(job.held)), job)
            else:
                self.keeping.copied(job.copying.pop(at % len(job.copying)), job)

    @precondition(lambda self: self.jobs)
    @rule(which=CHOICE)
    def leave(self, which: int) -> None:
        """A job goes; its leases have ended before."""
        job = self.jobs.pop(which % len(self.jobs))
        for kept in job.held:
            self.keeping.let_go(kept, job)
        for kept in job.copying:
            self.keeping.copied(kept, job)
        self.keeping.leave(job)

    @invariant()
    def what_is_read_stays(self) -> None:
        """Every batch that somebody reads lies where it was written, in a slot of its own."""
        read = {id(kept): kept for job in self.jobs for kept in (*job.held, *job.copying)}
        slots = [kept.slot for kept in read.values() if kept.slot is not None]
        for kept in read.values():
            assert kept.slot is not None
            assert self.wrote[kept.slot.index] == kept.ready.cursor.step
            self.arena.view(kept.slot)
        taken = [slot.index for slot in (*slots, *self.making.values())]
        assert len(set(taken)) == len(taken)

    @invariant()
    def nothing_is_lost(self) -> None:
        """Slots are free but for what is read, made or kept; no more than the window is kept for those behind."""
        read = {id(kept) for job in self.jobs for kept in (*job.held, *job.copying)}
        kept = {id(kept) for kept in self.keeping._shared_batches.values()}
        assert self.arena.taken_count == len(read | kept) + len(self.making)
        assert len(kept - read) <= WINDOW_BATCHES + len(self.making) + 1
        if not self.jobs and not kept:
            assert self.arena.taken_count == len(self.making)

    def teardown(self) -> None:
        """The arena's memory goes."""
        self.arena.close()


KeepingModel.TestCase.settings = settings(max_examples=budget(60), stateful_step_count=40, deadline=None)
TestKeeping = pytest.mark.timeout(120)(KeepingModel.TestCase)
