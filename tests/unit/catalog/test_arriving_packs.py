"""Batches of packs that are still being fetched."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from feedd.dataset import pack_borders as borders
from feedd.errors import BadSample, ObjectChanged
from feedd.fetch.scheduler import PARTS_PER_PLACE
from feedd.values import Cursor
from tests.budget import PATIENT_S
from tests.fakes.feeding import Taken, batches, feeding, take
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.sessions.session import Session
    from feedd.values import ObjectRef
    from tests.fakes.feeding import Feeding

COUNT, EACH, BATCH = 96, 16, 8
BODIES = {f"train/{n:03d}.jpg": f"{n:03d}".encode() * (n % 5 + 1) for n in range(COUNT)}
BYTES = (("jpg", "bytes"),)


@pytest.fixture(autouse=True)
def _small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have packs of a few objects."""
    monkeypatch.setattr(borders, "PACK_OBJECTS_LEAST", EACH)
    monkeypatch.setattr(borders, "PACK_OBJECTS_MOST", EACH)


async def _opened(rig: Feeding, **changes: object) -> Session:
    for key, body in BODIES.items():
        rig.store.put(key, body)
    return await rig.open(**({"fields": BYTES, "batch_size": BATCH, "shuffle": True, "window_shards": 16} | changes))


async def _order(folder: Path) -> list[list[bytes]]:
    """Return all batches of an epoch, from packs that are all there."""
    async with feeding(folder) as rig:
        session = await _opened(rig)
        await batches(session)
        return [batch.texts("jpg") for batch in await batches(session)]


def _keys(bodies: list[bytes]) -> set[str]:
    return {f"train/{body[:3].decode()}.jpg" for body in bodies}


def _gate(rig: Feeding, wanted: set[str]) -> asyncio.Event:
    """Have all other objects wait."""
    opened = asyncio.Event()
    rig.store.gates = {key: opened for key in BODIES if key not in wanted}
    return opened


def _lose(rig: Feeding, batch: list[bytes]) -> str:
    """Have an object of a batch vanish between being listed and being read."""
    read, lost = rig.store.read_into, min(_keys(batch))

    async def read_into(ref: ObjectRef, *where: Any) -> None:
        rig.store._objects.pop(lost, None)
        await read(ref, *where)

    rig.store.read_into = read_into  # type: ignore[method-assign, assignment]  # for one test
    return lost


async def test_a_batch_comes_before_its_packs(tmp_path: Path) -> None:
    """The first batches need their own objects, of every pack of the window, and nothing else; the rest follows."""
    order = await _order(tmp_path / "before")
    async with feeding(tmp_path) as rig:
        gate = _gate(rig, _keys(order[0] + order[1]))
        session = await _opened(rig)
        first = [await asyncio.wait_for(take(session, Cursor(0, step)), PATIENT_S) for step in (0, 1)]
        assert [batch.texts("jpg") for batch in first if isinstance(batch, Taken)] == order[:2]
        assert not rig.cache.entries()
        gate.set()
        rest = await batches(session, Cursor(0, 2))
        assert [batch.texts("jpg") for batch in rest] == order[2:]
        assert sorted(rig.store.reads) == sorted(BODIES), "each object was asked for once"


async def test_packs_are_mixed_from_the_first_batch_on(tmp_path: Path) -> None:
    """Windows of packs do not grow in epoch 0: no batch waits for a pack, and neighbours in a pack are alike."""
    async with feeding(tmp_path) as rig:
        session = await _opened(rig)
        first = await take(session, Cursor())
        assert isinstance(first, Taken)
        assert len({int(body[:3]) // EACH for body in first.texts("jpg")}) > 2


async def test_what_comes_first_is_asked_for_first(tmp_path: Path) -> None:
    """Of what nothing was asked for yet, objects of earlier steps go before those of later ones, and of none."""
    order = await _order(tmp_path / "before")
    async with feeding(tmp_path) as rig:
        line = rig.pipeline.stages.sources._fetcher._plain._scheduler
        book = rig.pipeline.stages.sources.packs.inflight
        line._slots_max = 1  # eight objects: these are up to chance
        gate = _gate(rig, set())
        session = await _opened(rig)
        made = [asyncio.create_task(take(session, Cursor(0, step))) for step in (0, 1, 2)]
        await until(
            lambda: line.waiting_count >= COUNT // EACH and len(set().union(*book._waiting.values())) >= len(made)
        )
        gate.set()
        await asyncio.gather(*made)
        asked = [key for key in rig.store.reads[PARTS_PER_PLACE:] if key not in rig.store.reads[:PARTS_PER_PLACE]]
        wanted = [_keys(batch) & set(asked) for batch in order[:3]]
    for keys in wanted:
        assert set(asked[: len(keys)]) == keys
        del asked[: len(keys)]


async def test_a_window_whose_packs_are_there_in_part(tmp_path: Path) -> None:
    """Packs that are whole, some of them since before, are read as entries, the others as they come."""
    order = await _order(tmp_path / "before")
    async with feeding(tmp_path) as rig:
        session = await _opened(rig)
        listing = session._parts.view
        with await rig.cache.acquire(listing.refs[::2]):
            _gate(rig, _keys(order[0]))
            first = await asyncio.wait_for(take(session, Cursor()), PATIENT_S)
        assert isinstance(first, Taken)
        assert first.texts("jpg") == order[0]


async def test_an_object_that_is_lost(tmp_path: Path) -> None:
    """Its batch waits for the pack, which says what it lacks; a batch without it need not."""
    order = await _order(tmp_path / "before")
    async with feeding(tmp_path) as rig:
        lost = _lose(rig, order[1])
        session = await _opened(rig, bad_samples_max=1)
        made = await batches(session)
    expected = [[body for body in batch if _keys([body]) != {lost}] for batch in order]
    assert [batch.texts("jpg") for batch in made] == expected
    assert sum(batch.ready.bad_samples for batch in made) == 1


async def test_a_lost_object_is_an_error_where_bad_samples_are(tmp_path: Path) -> None:
    """Zeros in its place are nobody's sample."""
    order = await _order(tmp_path / "before")
    async with feeding(tmp_path) as rig:
        lost = _lose(rig, order[0])
        session = await _opened(rig, bad_samples="error")
        with pytest.raises(BadSample, match=lost):
            await take(session, Cursor())


async def test_a_fetch_that_fails_behind_a_batch(tmp_path: Path) -> None:
    """What was read before stays good; who needs what does not come is told, and another try may bring it."""
    order = await _order(tmp_path / "before")
    async with feeding(tmp_path) as rig:
        gate = _gate(rig, _keys(order[0]))
        session = await _opened(rig)
        first = await asyncio.wait_for(take(session, Cursor()), PATIENT_S)
        assert isinstance(first, Taken)
        for key in BODIES.keys() - _keys(order[0]):
            rig.store.put(key, b"another version")
        gate.set()
        with pytest.raises(ObjectChanged):
            await take(session, Cursor(0, 1))
        for key, body in BODIES.items():
            rig.store.put(key, body)
        rest: list[Taken] = []
        async with asyncio.timeout(PATIENT_S):
            while not rest:
                with suppress(ObjectChanged):  # this try joined a fetch that began before
                    rest = await batches(session, Cursor(0, 1))
    assert [batch.texts("jpg") for batch in (first, *rest)] == order


async def test_a_session_that_closes_wants_nothing_more(tmp_path: Path) -> None:
    """What is fetched behind a batch ends with whom it was for."""
    order = await _order(tmp_path / "before")
    async with feeding(tmp_path) as rig:
        _gate(rig, _keys(order[0]))
        session = await _opened(rig)
        assert isinstance(await asyncio.wait_for(take(session, Cursor()), PATIENT_S), Taken)
        assert rig.cache.stats.pin_count
        await rig.close(session)
        assert not rig.cache.stats.pin_count


async def test_jobs_that_share_do_not_wait_either(tmp_path: Path) -> None:
    """Their common batch comes as early."""
    order = await _order(tmp_path / "before")
    async with feeding(tmp_path) as rig:
        gate = _gate(rig, _keys(order[0]))
        sessions = [await _opened(rig, share="jobs") for _ in range(2)]
        made = await asyncio.wait_for(asyncio.gather(*(take(one, Cursor()) for one in sessions)), 20)
        assert [batch.texts("jpg") for batch in made if isinstance(batch, Taken)] == [order[0]] * 2
        gate.set()
