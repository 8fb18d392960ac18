"""Jobs that take the same batches: one decode for all, copies that are equal, nothing held when they are gone."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, cast

import pytest

from feedd.errors import BadSample, Internal, ResourceExhausted
from feedd.metrics import DECODE_SAMPLES, PIPELINE_SHARED, SERVE_ARENA_BYTES
from feedd.sessions.job_sharing import Sharing
from feedd.sessions.shared_batches import WINDOW_BATCHES
from feedd.values import Cursor, Produced
from tests.fakes.feeding import Taken, batches, feeding, group_of, rank, take
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.sessions.job_sharing import SharedBatches
    from tests.fakes.feeding import Feeding

BATCHES = 12  # of 4 samples

lent_or_copied = pytest.mark.parametrize("lent", [False, True], ids=["copied", "lent"])


def _shared(rig: Feeding) -> dict[str, int]:
    return {
        outcome: int(rig.recorder.total(PIPELINE_SHARED, outcome=outcome)) for outcome in ("made", "taken", "again")
    }


@lent_or_copied
async def test_three_jobs_decode_once(tmp_path: Path, lent: bool) -> None:
    """Side by side, each gets what it would have got alone, and every sample is decoded once."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        alone = await rig.open(shuffle=True, seed=3, keys=True)
        wanted = [batch.data for batch in await batches(alone)]
        await rig.close(alone)
        before = rig.recorder.total(DECODE_SAMPLES)
        jobs = [await rig.open(shuffle=True, seed=3, keys=True, share="job-group", shared_arena=lent) for _ in range(3)]
        assert rig.pipeline._sharing.group_count == 1
        taken = await asyncio.gather(*[batches(job) for job in jobs])
        assert all([batch.data for batch in each] == wanted for each in taken)
        assert rig.recorder.total(DECODE_SAMPLES) - before == 48
        assert _shared(rig) == {"made": BATCHES, "taken": 2 * BATCHES, "again": 0}
        for job in jobs:
            await rig.close(job)
        assert rig.pipeline._sharing.group_count == 0


@lent_or_copied
async def test_a_job_that_falls_behind_decodes_once_more(tmp_path: Path, lent: bool) -> None:
    """What had to make room is made again for the slow one, and counted; the fast one never waits for it."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        fast, slow = [await rig.open(share="a", shared_arena=lent) for _ in range(2)]
        first = await batches(fast)
        assert len(first) == BATCHES > WINDOW_BATCHES
        second = await batches(slow)
        assert [batch.data for batch in second] == [batch.data for batch in first]
        found = _shared(rig)
        assert found["made"] == BATCHES
        assert found["again"] >= BATCHES - WINDOW_BATCHES
        assert found["again"] + found["taken"] == BATCHES


async def test_only_equal_jobs_share(tmp_path: Path) -> None:
    """Another name, seed, batch size or rank is another group."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        for change in ({}, {"share": "b"}, {"seed": 1}, {"batch_size": 2}, {"topology": rank(0, 2)}, {"keys": True}):
            await rig.open(**{"share": "a", "shuffle": True, **change})
        assert rig.pipeline._sharing.group_count == 6
        await rig.open(share="a", shuffle=True)
        assert rig.pipeline._sharing.group_count == 6


@lent_or_copied
async def test_a_job_that_ends_keeps_nothing(tmp_path: Path, lent: bool) -> None:
    """When a job leaves, nothing is kept for it; one that comes later finds the group as it is."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        one, two = [await rig.open(share="a", shared_arena=lent) for _ in range(2)]
        group = group_of(one)
        await take(one, Cursor())
        assert len(group._shared_batches) == group._arena.taken_count == 1
        await rig.close(two)
        assert len(group._shared_batches) == group._arena.taken_count == 0
        late = await rig.open(share="a", shared_arena=lent)
        assert group_of(late) is group
        assert isinstance(await take(late, Cursor(0, 3)), Taken)
        assert isinstance(await take(one, Cursor(0, 3)), Taken)
        assert group._arena.taken_count == 0


@lent_or_copied
async def test_an_error_reaches_all_and_leaves_nothing(tmp_path: Path, lent: bool) -> None:
    """A sample that cannot be decoded is every job's error; the group's memory is free again."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(4, 4)
        rig.store.shard(0, [{"cls": b"1"}, {"cls": b"no number"}, {"cls": b"3"}, {"cls": b"4"}])
        jobs = [await rig.open(share="a", shared_arena=lent) for _ in range(2)]
        results = await asyncio.gather(*[take(job, Cursor()) for job in jobs], return_exceptions=True)
        assert all(isinstance(result, BadSample) for result in results)
        group = group_of(jobs[0])
        assert group._arena.taken_count == 0


@lent_or_copied
async def test_a_job_cancelled_in_the_middle_harms_nobody(tmp_path: Path, lent: bool) -> None:
    """The others get their batch although the one that asked first went away."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 2)
        gate = rig.store.gates["train/01.tar"] = asyncio.Event()
        jobs = [await rig.open(share="a", shared_arena=lent) for _ in range(2)]
        waiting = [asyncio.create_task(take(job, Cursor(0, 2))) for job in jobs]
        await until(lambda: "train/01.tar" in rig.store.reads)
        waiting[0].cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        made = await waiting[1]
        assert isinstance(made, Taken)
        assert made.ints() == [100, 101, 102, 103]


async def test_a_lent_batch_stays_until_it_is_given_back(tmp_path: Path) -> None:
    """What a job holds lies where it lay, whatever the others make, and is lent to others meanwhile."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        slow, fast = [await rig.open(share="a", shared_arena=True) for _ in range(2)]
        assert slow.info.shared_slot_count == fast.info.shared_slot_count > slow.slots.slot_count
        held = await slow.produce(Cursor())
        assert isinstance(held, Produced)
        before = bytes(slow.slots.view(held.slot)[: held.batch.size_bytes])
        for _ in range(3):
            assert len(await batches(fast)) == BATCHES
        assert bytes(slow.slots.view(held.slot)[: held.batch.size_bytes]) == before
        slow.release(held.slot)
        with pytest.raises(Internal, match="has no batch"):
            slow.slots.view(held.slot)


async def test_one_too_many_takes_copies(tmp_path: Path) -> None:
    """A job for whose leases there is no room has an arena of its own, and the same batches."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        jobs = [await rig.open(share="a", shared_arena=True, prefetch_batches=16) for _ in range(5)]
        assert [job.info.shared_slot_count > 0 for job in jobs] == [True] * 4 + [False]
        taken = await asyncio.gather(*[batches(job) for job in jobs])
        assert all([batch.data for batch in each] == [batch.data for batch in taken[0]] for each in taken)
        assert _shared(rig)["made"] == BATCHES
        await rig.close(jobs[0])
        assert (await rig.open(share="a", shared_arena=True, prefetch_batches=16)).info.shared_slot_count > 0


async def test_jobs_that_open_at_once_make_one_memory(tmp_path: Path) -> None:
    """A group's memory is allocated by one of them, where there is room for one: the others wait for it."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        alone = await rig.open(share="a", shared_arena=True)
        rig.pipeline._budget._limit_bytes = rig.pipeline._budget.reserved_bytes
        await rig.close(alone)
        jobs = await asyncio.gather(*[rig.open(share="a", shared_arena=True) for _ in range(4)])
        assert rig.pipeline._sharing.group_count == 1
        assert all(group_of(job) is group_of(jobs[0]) for job in jobs)


@pytest.mark.parametrize("share", [{}, {"share": "a", "shared_arena": True}], ids=["alone", "lent"])
async def test_memory_counts_until_clients_let_go(tmp_path: Path, share: dict[str, Any]) -> None:
    """The arena of a closed session, and that of a group, is in the budget as long as one of its clients maps it."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        budget = rig.pipeline._budget
        one, other = [await rig.open(**share) for _ in range(2)]
        with one.client_mapping() as fd:
            size_bytes = os.fstat(fd).st_size
            for session in (one, other):
                await rig.close(session)
            assert budget.reserved_bytes == rig.recorder.total(SERVE_ARENA_BYTES) == size_bytes
            budget._limit_bytes = size_bytes
            with pytest.raises(ResourceExhausted):
                await rig.open(**share)
        assert budget.reserved_bytes == rig.recorder.total(SERVE_ARENA_BYTES) == 0
        await rig.open(**share)
        assert budget.reserved_bytes == rig.recorder.total(SERVE_ARENA_BYTES) == size_bytes


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "failed"])
async def test_who_cannot_make_a_group_leaves_it_to_the_next(cancelled: bool) -> None:
    """The first of two that open at once goes away, or finds no memory: the second makes the group."""
    sharing, begun, go_on = Sharing(), asyncio.Event(), asyncio.Event()
    group = _Group()

    async def first() -> SharedBatches:
        begun.set()
        await go_on.wait()
        raise ResourceExhausted("expected memory, got none")

    async def second() -> SharedBatches:
        return cast("SharedBatches", group)

    one = asyncio.create_task(sharing.join("a", "one", first))
    await begun.wait()
    other = asyncio.create_task(sharing.join("a", "other", second))
    await asyncio.sleep(0)
    assert not other.done()
    if cancelled:
        one.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError if cancelled else ResourceExhausted):
        await one
    await other
    assert group.members == ["other"]
    assert sharing.group_count == 1
    await sharing.leave("a", "other")
    assert (sharing.group_count, group.closed, len(sharing._making)) == (0, True, 0)


class _Group:
    """The books of a group, and nothing else."""

    def __init__(self) -> None:
        self.members: list[object] = []
        self.closed = False

    @property
    def member_count(self) -> int:
        return len(self.members)

    def join(self, member: object) -> None:
        self.members.append(member)

    def leave(self, member: object) -> None:
        self.members.remove(member)

    async def close(self) -> None:
        self.closed = True
