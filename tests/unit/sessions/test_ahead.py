"""The next epoch's first batches are decoded into free slots between epochs; nothing is held, lost or kept waiting."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from feedd.errors import BadSample
from feedd.metrics import DECODE_SAMPLES
from feedd.sessions.next_epoch_prefetch import AHEAD_RUNS
from feedd.sessions.own_batches import OwnBatches
from feedd.values import Cursor, EpochEnd, Produced
from tests.fakes.feeding import Taken, batches, feeding, prefetch_of, take
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.batching.assembler import Assembler
    from feedd.ordering.batch_plan import RunRows
    from feedd.sessions.session import Session
    from feedd.values import BatchReady

SAMPLES = 48  # in batches of 4


def _waiting(session: Session) -> list[int]:
    """Return the steps that lie ready in slots nobody took."""
    return sorted(early.step for early in prefetch_of(session)._early_slots if early.task.done())


async def _made_ahead(session: Session, count: int = AHEAD_RUNS) -> None:
    """Wait until the next epoch's first batches lie ready."""
    await until(lambda: len(_waiting(session)) == count)


async def _drained(session: Session) -> None:
    """Take all batches of the first epoch, and wait for the next one's."""
    await batches(session)
    await _made_ahead(session)


def _assembler(session: Session) -> Assembler:
    own = session._parts.batches
    assert isinstance(own, OwnBatches)
    return own._decoder.assembler


def _gated(session: Session, monkeypatch: pytest.MonkeyPatch, epoch: int) -> asyncio.Event:
    """Have batches of one epoch wait when they are written to their slots; return what lets them go on."""
    assembler, gate = _assembler(session), asyncio.Event()
    fill = assembler.fill

    async def gated(run: RunRows, *where: Any, **how: Any) -> list[tuple[BatchReady, int]]:
        if run.plan.cursor.epoch == epoch:
            await gate.wait()
        return await fill(run, *where, **how)

    monkeypatch.setattr(assembler, "fill", gated)
    return gate


async def test_two_batches_wait_when_an_epoch_has_ended(tmp_path: Path) -> None:
    """They are decoded once, come as they would have, and their slots are free when they are taken."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        alone = await rig.open(shuffle=True)
        wanted = [batch.data for batch in await batches(alone, Cursor(1))]
        await rig.close(alone)
        session = await rig.open(shuffle=True)
        before = rig.recorder.total(DECODE_SAMPLES)
        await batches(session)
        await until(lambda: rig.recorder.total(DECODE_SAMPLES) - before == SAMPLES + AHEAD_RUNS * 4)
        assert [batch.data for batch in await batches(session, Cursor(1))] == wanted
        await until(lambda: rig.recorder.total(DECODE_SAMPLES) - before == 2 * SAMPLES + AHEAD_RUNS * 4)
        assert prefetch_of(session)._epoch == 2
        assert _waiting(session) == [0, 1]


async def test_they_take_no_memory_of_their_own(tmp_path: Path) -> None:
    """What is reserved for arenas stays what the session's takes."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open()
        reserved = rig.pipeline._budget.reserved_bytes
        await _drained(session)
        assert rig.pipeline._budget.reserved_bytes == reserved
        assert len(rig.pool._arenas) == 1


async def test_behind_the_last_of_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the epoch's end is known while nothing is decoded yet of its last batch begins nothing."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open()
        for step in range(11):
            assert isinstance(await take(session, Cursor(0, step)), Taken)
        cache, gate = rig.pipeline.stages.cache, asyncio.Event()
        acquire = cache.acquire

        async def gated(refs: Any) -> Any:
            await gate.wait()
            return await acquire(refs)

        monkeypatch.setattr(cache, "acquire", gated)
        last = asyncio.ensure_future(take(session, Cursor(0, 11)))
        await asyncio.sleep(0)
        assert isinstance(await take(session, Cursor(0, 12)), EpochEnd)
        await asyncio.sleep(0.05)
        assert not prefetch_of(session)._early_slots
        gate.set()
        assert isinstance(await last, Taken)
        await _made_ahead(session)


async def test_taken_side_by_side(tmp_path: Path) -> None:
    """Both are asked for at once, as a stream does: each is in the slot that was given out for it."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open()
        await _drained(session)
        before = rig.recorder.total(DECODE_SAMPLES)
        made = await asyncio.gather(*[take(session, Cursor(1, step)) for step in range(3)])
        assert [batch.ints() for batch in made if isinstance(batch, Taken)] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [100, 101, 102, 103],
        ]
        assert rig.recorder.total(DECODE_SAMPLES) - before == 4
        assert not prefetch_of(session)._early_slots


async def test_a_trainer_that_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that are asked for while they are made, or before, are made once, and nothing is held."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open()
        before = rig.recorder.total(DECODE_SAMPLES)
        gate = _gated(session, monkeypatch, 1)
        await batches(session)
        await until(lambda: bool(prefetch_of(session)._early_slots))
        asked = [asyncio.ensure_future(take(session, Cursor(1, step))) for step in range(3)]
        await asyncio.sleep(0.02)
        assert not any(one.done() for one in asked)
        gate.set()
        assert [isinstance(one, Taken) for one in await asyncio.gather(*asked)] == [True] * 3
        assert not prefetch_of(session)._early_slots
        assert rig.recorder.total(DECODE_SAMPLES) - before == SAMPLES + 3 * 4


async def test_another_epoch_is_asked_for(tmp_path: Path) -> None:
    """A trainer that goes elsewhere gets what it asks for; what was made ahead is let go of."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open(shuffle=True)
        await batches(session)
        again = await take(session, Cursor(0, 3))
        assert isinstance(again, Taken)
        later = await take(session, Cursor(7, 0))
        assert isinstance(later, Taken)
        await until(lambda: not prefetch_of(session)._early_slots)
        assert prefetch_of(session)._arena.taken_count == 0


async def test_slots_are_wanted_for_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slot can be had at once, also those written to ahead: then they are written to by one only."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open(prefetch_batches=2)
        gate = _gated(session, monkeypatch, 1)
        await batches(session)
        await until(lambda: bool(prefetch_of(session)._early_slots))  # being made, for as long as the gate is closed
        made = [await session.produce(Cursor(0, step)) for step in (4, 5)]
        assert [one.batch.cursor.step for one in made if isinstance(one, Produced)] == [4, 5]
        assert not prefetch_of(session)._early_slots
        for one in made:
            assert isinstance(one, Produced)
            session.release(one.slot)
        gate.set()
        assert [batch.ints() for batch in await batches(session, Cursor(0, 10))] == [
            [500, 501, 502, 503],
            [504, 505, 506, 507],
        ]
        await _made_ahead(session)


async def test_a_stream_that_ends_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was asked for while it was made, by a stream that went, is still there for the next stream."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open()
        gate = _gated(session, monkeypatch, 1)
        await batches(session)
        await until(lambda: bool(prefetch_of(session)._early_slots))
        waiting = asyncio.ensure_future(take(session, Cursor(1, 0)))
        await until(lambda: not prefetch_of(session)._early_slots)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        before = rig.recorder.total(DECODE_SAMPLES)
        gate.set()
        first = await take(session, Cursor(1, 0))
        assert isinstance(first, Taken)
        assert first.ints() == [0, 1, 2, 3]
        await _made_ahead(session, 1)
        assert rig.recorder.total(DECODE_SAMPLES) - before == 2 * 4


async def test_a_sample_that_is_bad_in_the_next_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails ahead is nobody's error: the batch is made when it is asked for, in the slot then given."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open()
        assembler, failed = _assembler(session), asyncio.Event()
        fill = assembler.fill

        async def failing(run: RunRows, *where: Any, **how: Any) -> list[tuple[BatchReady, int]]:
            if run.plan.cursor.epoch == 1 and not failed.is_set():
                failed.set()
                raise BadSample("expected a number, got none", stage="decode")
            return await fill(run, *where, **how)

        monkeypatch.setattr(assembler, "fill", failing)
        await batches(session)
        await failed.wait()
        await until(lambda: not prefetch_of(session)._early_slots)
        assert prefetch_of(session)._arena.taken_count == 0
        first = await take(session, Cursor(1, 0))
        assert isinstance(first, Taken)
        assert first.ints() == [0, 1, 2, 3]


async def test_bad_samples_of_an_epoch_nobody_asked_for_are_not_named(tmp_path: Path) -> None:
    """A batch that would be made ahead and has one is made when it is asked for: then it is named, and counted."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"cls": b"broken" if number == 1 else str(number).encode()} for number in range(8)])
        session = await rig.open(bad_samples="quarantine", bad_samples_max=1)
        for epoch in range(3):
            made = await batches(session, Cursor(epoch))
            assert [batch.ints() for batch in made] == [[0, 2, 3], [4, 5, 6, 7]]
            await until(lambda: not prefetch_of(session)._early_slots)
            lines = (tmp_path / "quarantine.jsonl").read_text().splitlines()
            assert [json.loads(line)["epoch"] for line in lines] == list(range(epoch + 1))


async def test_the_next_epoch_leaves_the_budget_of_this_one(tmp_path: Path) -> None:
    """What was met in an epoch is held against its last batches though batches of the next are made by then."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"cls": str(number).encode()} for number in range(4)])
        rig.store.shard(1, [{"cls": b"broken" if number in {1, 5} else str(number).encode()} for number in range(8)])
        session = await rig.open(bad_samples="skip", bad_samples_max=1)
        for step in range(2):
            assert isinstance(await take(session, Cursor(0, step)), Taken)
        prefetch_of(session).begin(1)
        await until(lambda: bool(_waiting(session)))
        with pytest.raises(BadSample, match="'01005'"):
            await take(session, Cursor(0, 2))


async def test_closed_while_it_is_made(tmp_path: Path) -> None:
    """A session that closes at the end of its epoch leaves no memory and no task, however far the next one was."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        for turns in (0, 1, 3, 10):
            session = await rig.open()
            await batches(session)
            for _ in range(turns):
                await asyncio.sleep(0)
            await rig.close(session)
            assert rig.pipeline._budget.reserved_bytes == 0
            assert not rig.pool._arenas


async def test_workers_have_their_own_first_batches(tmp_path: Path) -> None:
    """A DataLoader worker's session decodes the steps that are its own."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open(consumer_count=2, consumer_index=1)
        await batches(session, Cursor(0, 1), stride=2)
        await until(lambda: _waiting(session) == [1, 3])
