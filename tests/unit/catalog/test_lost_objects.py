"""Objects that are gone by the time they are fetched: bad samples, by policy, and back when they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadSample
from feedd.values import Cursor, Produced
from tests.fakes.feeding import ROOT, URL, Taken, batches, feeding, take

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.sessions.session import Session
    from tests.fakes.feeding import Feeding

COUNT = 20
LOST = 7
KEY = f"train/{LOST:03d}.jpg"
ALL = [str(n).encode() * 3 for n in range(COUNT)]
REST = [body for n, body in enumerate(ALL) if n != LOST]
BYTES = (("jpg", "bytes"),)


def _store(rig: Feeding) -> None:
    for number, body in enumerate(ALL):
        rig.store.put(f"train/{number:03d}.jpg", body)


async def _lose(rig: Feeding) -> None:
    """Have one object vanish, once it was listed."""
    await rig.pipeline.catalog.listing((URL,), lambda _: False)
    del rig.store._objects[KEY]


def _bodies(made: list[Taken]) -> list[bytes]:
    return [body for batch in made for body in batch.texts("jpg")]


async def _read_the_rest(rig: Feeding) -> Session:
    """Read an epoch in which one object is lost."""
    _store(rig)
    await _lose(rig)
    session = await rig.open(fields=BYTES, bad_samples_max=1)
    assert _bodies(await batches(session)) == REST
    return session


async def test_a_lost_object_is_a_bad_sample(tmp_path: Path) -> None:
    """Left out, and named where bad samples are."""
    async with feeding(tmp_path) as rig:
        _store(rig)
        await _lose(rig)
        session = await rig.open(fields=BYTES, bad_samples="quarantine", bad_samples_max=1)
        made = await batches(session)
    assert _bodies(made) == REST
    assert sum(batch.ready.bad_samples for batch in made) == 1
    (line,) = (tmp_path / "quarantine.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert (told["url"], told["ordinal"], told["field"]) == (f"{ROOT}/{KEY}", 0, "jpg")
    assert f"{ROOT}/{KEY}" in told["reason"]


async def test_a_bad_object_of_batches_made_together_is_named_as_itself(tmp_path: Path) -> None:
    """Plain numbers of several batches are copied at once; a pack is no better a name for one of its objects then."""
    async with feeding(tmp_path) as rig:
        for number in range(COUNT):
            rig.store.put(f"train/{number:03d}.jpg", bytes(3 if number == LOST else 4))
        fields = (("jpg", "tensor:uint8:4"),)
        session = await rig.open(fields=fields, bad_samples="quarantine", bad_samples_max=1, batch_size=2, runs=True)
        made = await session.produce(Cursor(), COUNT // 2)
        assert isinstance(made, Produced)
        assert made.batch_count == COUNT // 2
        session.release(made.slot)
    (line,) = (tmp_path / "quarantine.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert (told["url"], told["ordinal"], told["field"]) == (f"{ROOT}/{KEY}", 0, "jpg")


@pytest.mark.parametrize("prefetch", [2, 12])
async def test_no_other_object_takes_the_place_of_a_lost_one(tmp_path: Path, prefetch: int) -> None:
    """A number whose first source vanished is a bad sample, however many batches are copied at once."""
    async with feeding(tmp_path) as rig:
        for number in range(COUNT):
            rig.store.put(f"train/{number:03d}.jpg", bytes([number] * 4))
            rig.store.put(f"train/{number:03d}.cls", bytes([100 + number] * 4))
        await _lose(rig)
        recipe = '{"decode": "tensor", "dtype": "uint8", "shape": [4], "from": ["jpg", "cls"]}'
        changes = {"bad_samples": "quarantine", "bad_samples_max": 1, "batch_size": 3, "prefetch_batches": prefetch}
        made = await batches(await rig.open(fields=(("x", recipe),), **changes))
    assert [row for batch in made for row in batch.rows("x")] == [[n] * 4 for n in range(COUNT) if n != LOST]
    assert sum(batch.ready.bad_samples for batch in made) == 1
    (line,) = (tmp_path / "quarantine.jsonl").read_text().splitlines()
    assert f"{ROOT}/{KEY}" in json.loads(line)["reason"]


async def test_a_bad_object_is_named_as_itself(tmp_path: Path) -> None:
    """Not as the pack it came with; of several that are one sample, the one that is bad."""
    async with feeding(tmp_path) as rig:
        for number in range(COUNT):
            rig.store.put(f"train/x/{number:03d}.JPG", b"picture")
            rig.store.put(f"train/x/{number:03d}.cls", b"broken" if number == LOST else b"" if number == 3 else b"1")
        session = await rig.open(fields=(("cls", "int"),), bad_samples="quarantine", bad_samples_max=3)
        await batches(session)
        session = await rig.open(fields=(("jpg", "image"),), bad_samples="quarantine", bad_samples_max=COUNT)
        await take(session, Cursor(0, 1))
    told = [json.loads(line) for line in (tmp_path / "quarantine.jsonl").read_text().splitlines()]
    names = ["003.cls", f"{LOST:03d}.cls", *(f"{number:03d}.JPG" for number in range(4, 8))]
    assert [one["url"] for one in told] == [f"{ROOT}/train/x/{name}" for name in names]
    assert {(one["ordinal"], one["offset"]) for one in told} == {(0, 0)}


async def test_another_takes_its_place(tmp_path: Path) -> None:
    """Where the policy says so."""
    async with feeding(tmp_path) as rig:
        _store(rig)
        await _lose(rig)
        session = await rig.open(fields=BYTES, bad_samples="replace", bad_samples_max=1)
        assert _bodies(await batches(session)) == [ALL[4] if n == LOST else body for n, body in enumerate(ALL)]


@pytest.mark.parametrize("asked", [{"bad_samples": "error", "bad_samples_max": 9}, {"bad_samples": "skip"}])
async def test_it_is_an_error_where_bad_samples_are(tmp_path: Path, asked: dict[str, object]) -> None:
    """The error names the object."""
    async with feeding(tmp_path) as rig:
        _store(rig)
        await _lose(rig)
        session = await rig.open(fields=BYTES, **asked)
        with pytest.raises(BadSample, match=f"{ROOT}/{KEY}"):
            await batches(session)


async def test_what_nobody_asks_for_is_not_missed(tmp_path: Path) -> None:
    """A sample is bad where it lacks what the recipe reads."""
    async with feeding(tmp_path) as rig:
        _store(rig)
        for number in range(COUNT):
            rig.store.put(f"train/{number:03d}.txt", b"beside")
        await _lose(rig)
        session = await rig.open(fields=(("txt", "bytes"),), bad_samples="error")
        assert [text for batch in await batches(session) for text in batch.texts("txt")] == [b"beside"] * COUNT


async def test_it_is_asked_for_again_by_who_opens_later(tmp_path: Path) -> None:
    """What is back comes back; whoever reads on meanwhile has it as well."""
    async with feeding(tmp_path) as rig:
        rig.pipeline.stages.lost.renew_s = 0.0
        session = await _read_the_rest(rig)
        rig.store.put(KEY, ALL[LOST])
        later = await rig.open(fields=BYTES, bad_samples="error")
        assert _bodies(await batches(later)) == ALL
        assert _bodies(await batches(session, Cursor(2))) == ALL  # of the next epoch some may have been made before


@pytest.mark.parametrize("case", ["too soon", "another dataset", "still gone", "another version"])
async def test_what_it_has_is_kept(tmp_path: Path, case: str) -> None:
    """A pack that lacks an object is fetched once, until an open that asks for the object finds that very version."""
    async with feeding(tmp_path) as rig:
        lost = rig.pipeline.stages.lost
        lost.renew_s = 3600.0 if case == "too soon" else 0.0
        session = await _read_the_rest(rig)
        assert lost._lacking
        if case == "too soon":  # after the open that asked last
            await rig.open(fields=BYTES, bad_samples_max=1)
        rig.store.reads.clear()
        if case == "another version":
            rig.store.put(KEY, b"other")
        elif case != "still gone":
            rig.store.put(KEY, ALL[LOST])
        urls = (f"{ROOT}/other/",) if case == "another dataset" else (URL,)
        rig.store.put("other/1.jpg", b"1")
        rig.store.put("other/2.jpg", b"2")
        for _ in range(2):
            await rig.open(fields=BYTES, bad_samples_max=1, urls=urls)
        assert _bodies(await batches(session, Cursor(3))) == REST
        assert not [key for key in rig.store.reads if key.startswith("train/")]


async def test_a_daemon_that_starts_anew_knows(tmp_path: Path) -> None:
    """The pack in the cache says what it lacks: zeros are nobody's sample."""
    async with feeding(tmp_path) as rig:
        await _read_the_rest(rig)
    async with feeding(tmp_path) as rig:
        _store(rig)
        session = await rig.open(fields=BYTES, bad_samples_max=1)
        assert _bodies(await batches(session)) == REST
        assert not rig.store.reads


async def test_batches_that_are_made_together_lack_it_too(tmp_path: Path) -> None:
    """Plain numbers are copied without a look at them."""
    async with feeding(tmp_path) as rig:
        for number in range(COUNT):
            rig.store.put(f"train/{number:03d}.jpg", bytes([number] * 4))
        await _lose(rig)
        session = await rig.open(fields=(("jpg", "tensor:uint8:4"),), bad_samples_max=1, batch_size=2, runs=True)
        found: list[int] = []
        at = Cursor()
        while isinstance(made := await session.produce(at, 3), Produced):
            view, ready = session.slots.view(made.slot), [made.batch] * (1 + made.alike) + list(made.more)
            for place, one in enumerate(ready):
                data = bytes(view[place * session.info.batch_bytes :][: one.regions[0].values_bytes])
                assert len(data) == 4 * one.rows
                found += data[::4]
            at = Cursor(0, at.step + made.batch_count, made.batch.cursor.anchors)
            session.release(made.slot)
        assert found == [n for n in range(COUNT) if n != LOST]
