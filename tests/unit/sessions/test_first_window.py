"""The first batch of a run waits for one shard, if the client chose no size of shuffle windows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from feedd.errors import BadSample
from feedd.ordering.rank_reader import Reader
from feedd.sessions import prefetch_driver
from feedd.values import Cursor
from tests.budget import PATIENT_S
from tests.fakes.feeding import Feeding, Taken, batches, feeding, take
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

_SHARDS, _SAMPLES = 12, 8


@pytest.mark.parametrize("window", [{"window_shards": 4}, {"window_shards": 0, "window_bytes": 1 << 20}])
async def test_chosen_windows_are_full(tmp_path: Path, window: dict[str, int]) -> None:
    """A client that chose a size gets it from the first window on."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[_SAMPLES] * _SHARDS)
        session = await rig.open(shuffle=True, **window)
        reader = session._parts.reader
        assert isinstance(reader, Reader)
        assert reader.epoch_map(Cursor(0)).edges[1] > 1
        await rig.close(session)


async def test_the_first_batches_need_one_shard(tmp_path: Path) -> None:
    """All batches of one shard arrive while every other shard is held back; then the epoch is whole."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[_SAMPLES] * _SHARDS)
        asked: dict[str, Any] = {"shuffle": True, "window_shards": 0}
        before = await rig.open(**asked)
        first = before._parts.reader.orders(Cursor(0))[0][0]
        await rig.close(before)
    async with feeding(tmp_path / "cold") as rig:
        rig.store.numbers(*[_SAMPLES] * _SHARDS)
        opened = asyncio.Event()
        rig.store.gates = {f"train/{shard:02d}.tar": opened for shard in range(_SHARDS) if shard != first}
        session = await rig.open(**asked)
        made = [await asyncio.wait_for(take(session, Cursor(0, step)), PATIENT_S) for step in range(_SAMPLES // 4)]
        found = [number for batch in made if isinstance(batch, Taken) for number in batch.ints()]
        assert sorted(found) == [first * 100 + ordinal for ordinal in range(_SAMPLES)]
        opened.set()
        rest = await batches(session)
        everything = [shard * 100 + ordinal for shard in range(_SHARDS) for ordinal in range(_SAMPLES)]
        assert sorted(number for batch in rest for number in batch.ints()) == everything


def _fetched(rig: Feeding) -> set[int]:
    return {int(key[-6:-4]) for key in rig.store.reads}


async def test_later_shards_are_fetched_after_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing competes with the first batch for cores: its window is fetched first, the others once it is made."""
    monkeypatch.setattr(prefetch_driver, "_DEFERRED_S", 600.0)
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[_SAMPLES] * _SHARDS)
        session = await rig.open(window_shards=0)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert _fetched(rig) == {0}
        assert isinstance(await take(session, Cursor()), Taken)
        await until(lambda: _fetched(rig) == set(range(_SHARDS)))


async def test_later_shards_do_not_wait_for_a_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that opens long before it asks finds later shards in the cache, too."""
    monkeypatch.setattr(prefetch_driver, "_DEFERRED_S", 0.05)
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[_SAMPLES] * _SHARDS)
        await rig.open(window_shards=0)
        await until(lambda: _fetched(rig) == set(range(_SHARDS)))


async def test_a_first_batch_that_fails_holds_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later shards are fetched after a failure as well, because the trainer may go on."""
    monkeypatch.setattr(prefetch_driver, "_DEFERRED_S", 600.0)
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[_SAMPLES] * _SHARDS)
        rig.store.shard(0, [{"cls": b"none"}] * _SAMPLES)
        session = await rig.open(window_shards=0)
        with pytest.raises(BadSample):
            await take(session, Cursor())
        await until(lambda: _fetched(rig) == set(range(_SHARDS)))
