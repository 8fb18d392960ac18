"""Several batches of pictures are made by one call while others are being made: the same batches as one by one."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.errors import BadSample
from feedd.sessions.own_batches import OwnBatches
from feedd.values import Cursor, EpochEnd, Produced
from feedd.workers.work import DecodeOptions
from tests.fakes.feeding import URL, Taken, batches, copied, feeding, prefetch_of
from tests.fakes.fetchers import until
from tests.fakes.tars import jpeg

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.sessions.feed_session import Session
    from tests.fakes.feeding import Feeding, GatedStore

FIELDS = (("jpg", "image:8x8:random"), ("cls", "int"))
COUNTS = (9, 16, 11)
SLOTS = 12


def store(into: GatedStore, *bad: int) -> None:
    """Store shards of small pictures and their numbers; the pictures of the numbers in ``bad`` are cut off."""
    for shard, count in enumerate(COUNTS):
        samples = []
        for number in range(shard * 16, shard * 16 + count):
            data = jpeg(np.random.default_rng(number).integers(0, 256, (16, 20, 3), np.uint8))
            samples.append({"jpg": data[:100] if number in bad else data, "cls": str(number).encode()})
        into.shard(shard, samples)


async def opened(rig: Feeding, **changes: object) -> Session:
    """Open a session of random crops of pictures."""
    asked: dict[str, object] = {"fields": FIELDS, "shuffle": True, "prefetch_batches": SLOTS}
    return await rig.open(**(asked | {"window_shards": 3, "batch_size": 3} | changes))


def own(session: Session) -> OwnBatches:
    """Return what makes a session's batches."""
    found = session._parts.batches
    assert isinstance(found, OwnBatches)
    return found


async def in_groups(session: Session, count: int = 4) -> list[Taken]:
    """Produce an epoch, so many steps a call."""
    found: list[Taken] = []
    while True:
        for made in await session.produce([Cursor(0, len(found) + n) for n in range(count)]):
            if isinstance(made, EpochEnd):
                return found
            found.append(copied(session, made))
            session.release(made.slot)


def same(one: Taken, other: Taken) -> bool:
    """Whether two batches have the same cursor, counts, pixels and numbers."""
    fields = [one.rows(name) == other.rows(name) for name in ("jpg", "cls")]
    return one.ready == other.ready and all(fields)


@pytest.mark.parametrize("policy", ["skip", "replace", "quarantine"])
async def test_a_group_has_the_batches_that_are_made_alone(tmp_path: Path, policy: str) -> None:
    """Rows, random crops, cursors and counts are equal, with bad samples in the middle of a group."""
    async with feeding(tmp_path) as rig:
        store(rig.store, 5, 20, 21)
        policies = {"bad_samples": policy, "bad_samples_max": 3}
        alone = await batches(await opened(rig, **policies))
        grouped = await in_groups(await opened(rig, **policies))
        assert sum(one.ready.bad_samples for one in alone) == 3
        assert len(grouped) == len(alone)
        assert all(map(same, grouped, alone))


@pytest.mark.parametrize("policy", ["skip", "replace", "quarantine"])
async def test_a_group_with_a_lost_object_has_the_batches_that_are_made_alone(tmp_path: Path, policy: str) -> None:
    """A sample whose object vanished after it was listed is bad, though another object could take its place.

    Otherwise a batch would differ with the number of batches that are made together.
    """
    async with feeding(tmp_path) as rig:
        for number in range(20):
            for kind in ("jpg", "png"):
                picture = np.random.default_rng(number).integers(0, 256, (16, 20, 3), np.uint8)
                rig.store.put(f"train/{number:03d}.{kind}", jpeg(picture))
        await rig.pipeline.catalog.listing((URL,), lambda _: False)
        del rig.store._objects["train/007.jpg"]
        recipe = '{"decode": "image", "size": [8, 8], "augment": ["random_resized_crop"], "from": ["jpg", "png"]}'
        asked = {"fields": (("picture", recipe),), "bad_samples": policy, "bad_samples_max": 1}
        alone = await batches(await opened(rig, **asked))
        session = await opened(rig, **asked)
        assert own(session)._decoder.assembler.call_sizes is not None
        grouped = await in_groups(session)
        assert sum(one.ready.bad_samples for one in alone) == 1
        assert [one.ready for one in grouped] == [one.ready for one in alone]
        assert [one.rows("picture") for one in grouped] == [one.rows("picture") for one in alone]


async def test_a_failed_group_holds_no_slot(tmp_path: Path) -> None:
    """The error names the sample. The batches before the bad one can then be made alone."""
    async with feeding(tmp_path) as rig:
        store(rig.store, 5)
        session = await opened(rig, shuffle=False)
        with pytest.raises(BadSample, match="'00005', field 'jpg'"):
            await session.produce([Cursor(0, step) for step in range(4)])
        assert own(session).slots.taken_count == 0
        (made,) = await session.produce([Cursor(0, 0)])
        assert isinstance(made, Produced)
        assert copied(session, made).ints() == [0, 1, 2]
        session.release(made.slot)


async def test_a_cancelled_group_holds_no_slot(tmp_path: Path) -> None:
    """All slots of a group are free after the call that makes the group was cancelled."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        session = await opened(rig)
        task = asyncio.create_task(session.produce([Cursor(0, step) for step in range(4)]))
        await until(lambda: own(session).slots.taken_count == 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert own(session).slots.taken_count == 0
        assert own(session)._making_count == 0


@pytest.mark.slow
async def test_a_killed_worker_changes_no_batch_of_a_group(tmp_path: Path) -> None:
    """The rows of the group are decoded again, each into its place."""
    async with feeding(tmp_path, decode=DecodeOptions()) as rig:
        store(rig.store)
        alone = await batches(await opened(rig))
        session = await opened(rig)
        task = asyncio.create_task(in_groups(session))
        await until(lambda: own(session).slots.taken_count == 4)
        os.kill(rig.pool.worker_pids[0], signal.SIGKILL)
        assert all(map(same, await task, alone))


async def test_groups_grow_with_the_batches_that_are_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch waits for more batches than are being made already, and a first batch for none."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        session = await opened(rig)
        assembler = own(session)._decoder.assembler
        assert assembler.batches_per_call == SLOTS // 3
        assert (session.info.batches_per_call, session.info.batches_per_call_least) == (1, 1)
        await batches(session)
        pool = rig.pool
        for busy_rows, making, together in ((1000, 0, 1), (1000, 2, 2), (1000, 9, 4), (7, 9, 2), (0, 9, 1)):
            monkeypatch.setattr(pool, "rows_within", lambda *_, rows=busy_rows: rows)
            own(session)._making_count = making
            assert (session.info.batches_per_call, session.info.batches_per_call_least) == (together, together)
            session._fetching.add(pool)
            assert session.info.batches_per_call == 1, "a batch would wait for shards of others"
            session._fetching.clear()
        own(session)._making_count = 0


async def test_rows_are_counted_only_while_no_worker_is_idle(tmp_path: Path) -> None:
    """Idle workers make a requested batch at once."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        session = await opened(rig)
        await batches(session)
        number = own(session)._decoder.assembler._options.arena_id
        assert rig.pool.rows_within(3600.0, number) == 0
        rig.pool._dispatch._schedule._busy_count += 2
        assert rig.pool.rows_within(3600.0, number) > 1000
        assert rig.pool.rows_within(3600.0, number + 1) == 0
        rig.pool._dispatch._schedule._busy_count -= 2


@pytest.mark.parametrize(
    "changes",
    [
        {"fields": (("jpg", "image"),)},
        {"keys": True},
        {"filters": ('{"field":"cls","min":0}',)},
        {"prefetch_batches": 5},
        {"share": "group"},
    ],
)
async def test_other_batches_are_made_alone(tmp_path: Path, changes: dict[str, object]) -> None:
    """Batches whose layout varies, or whose slots are few, are in no group."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        session = await opened(rig, **changes)
        assert session._parts.batches.batches_per_call == 1


async def test_the_next_epoch_is_made_in_advance_one_by_one(tmp_path: Path) -> None:
    """The first batch of an epoch does not wait for others."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        session = await opened(rig)
        await batches(session)
        ahead = prefetch_of(session)
        await until(lambda: len(ahead._early_slots) == 2 and all(early.task.done() for early in ahead._early_slots))
        assert len({early.task for early in ahead._early_slots}) == 2
