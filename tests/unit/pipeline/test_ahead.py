"""The next epoch's first batches are decoded while this one drains; whatever comes of that, nothing is held or lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from feedd.metrics import DECODE_SAMPLES
from feedd.pipeline.ahead import AHEAD_BATCHES
from feedd.values import Cursor
from tests.fakes.feeding import Taken, batches, feeding, take
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.pipeline.ahead import Ahead
    from feedd.pipeline.session import Session

SAMPLES = 48  # in batches of 4


def _ahead(session: Session) -> Ahead:
    found = session._parts.ahead
    assert found is not None
    return found


async def test_two_batches_wait_when_an_epoch_has_ended(tmp_path: Path) -> None:
    """They are decoded once, come as they would have, and their memory is free when they are taken."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        alone = await rig.open(shuffle=True)
        wanted = [batch.data for batch in await batches(alone, Cursor(1))]
        await rig.close(alone)
        session = await rig.open(shuffle=True)
        before = rig.recorder.total(DECODE_SAMPLES)
        await batches(session)
        await until(lambda: rig.recorder.total(DECODE_SAMPLES) - before == SAMPLES + AHEAD_BATCHES * 4)
        assert [batch.data for batch in await batches(session, Cursor(1))] == wanted
        await until(lambda: rig.recorder.total(DECODE_SAMPLES) - before == 2 * SAMPLES + AHEAD_BATCHES * 4)
        assert _ahead(session)._epoch == 2


async def test_taken_side_by_side(tmp_path: Path) -> None:
    """Both are asked for at once, as a stream does; the memory goes when both have been copied, not before."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open()
        await batches(session)
        await until(lambda: _ahead(session)._batches is not None)
        slots = [session.slots.take() for _ in range(3)]
        made = await asyncio.gather(
            *[session.produce(Cursor(1, step), slot) for step, slot in enumerate(slots) if slot is not None]
        )
        assert [batch.cursor.step for batch in made if hasattr(batch, "cursor")] == [0, 1, 2]
        assert _ahead(session)._batches is None
        for slot in slots:
            assert slot is not None
            session.slots.give_back(slot)


async def test_a_trainer_that_is_faster(tmp_path: Path) -> None:
    """Batches that are asked for before there is memory to make them ahead are made once, and nothing is held."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[8] * 6)
        session = await rig.open()
        before = rig.recorder.total(DECODE_SAMPLES)
        await batches(session)
        for step in range(3):
            assert isinstance(await take(session, Cursor(1, step)), Taken)
        await until(lambda: _ahead(session)._batches is None and _ahead(session)._task is None)
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
        assert _ahead(session)._batches is None


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
        await until(lambda: _ahead(session)._left == {1, 3})
