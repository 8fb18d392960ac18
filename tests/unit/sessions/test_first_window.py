"""The first batch of a run waits for one shard, if the client chose no size of shuffle windows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from feedd.ordering.rank_reader import Reader
from feedd.values import Cursor
from tests.fakes.feeding import Taken, batches, feeding, take

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
        made = [await asyncio.wait_for(take(session, Cursor(0, step)), 20) for step in range(_SAMPLES // 4)]
        found = [number for batch in made if isinstance(batch, Taken) for number in batch.ints()]
        assert sorted(found) == [first * 100 + ordinal for ordinal in range(_SAMPLES)]
        opened.set()
        rest = await batches(session)
        everything = [shard * 100 + ordinal for shard in range(_SHARDS) for ordinal in range(_SAMPLES)]
        assert sorted(number for batch in rest for number in batch.ints()) == everything
