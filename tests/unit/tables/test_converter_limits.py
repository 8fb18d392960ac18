"""How many conversions may run, and how much of their results may be in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from feedd.metrics import PIPELINE_MAKING
from feedd.tables import cache as conversion_wishes
from feedd.tables.converter import Converter
from feedd.tables.facts import ConversionLog
from feedd.tables.objects import CHARGE_BYTES_MAX
from tests.fakes.caches import SHARD_BYTES
from tests.fakes.fetchers import until
from tests.fakes.forms import FORM, MadeRig, make, same_form
from tests.fakes.next_uses import note_next_use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.tables.task import ConvertedShard, MakeTask, MissingRanges


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MadeRig]:
    """A cache of shards that were never converted."""
    with same_form():
        yield MadeRig(tmp_path / "cache", conversion=FORM, made_before=False, facts=ConversionLog(tmp_path / "made"))


@pytest.mark.parametrize(("limits", "fresh"), [({"SMALL_BYTES": 0}, 4), ({"_SMALL_MAX": 8}, 8), ({}, 17)])
async def test_more_wishes_than_room_hold_little_memory(
    rig: MadeRig, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], fresh: int
) -> None:
    """Wishes that find no room are made no further than a few, or than 32 small ones; they are let go with the wish."""
    for name, value in limits.items():
        monkeypatch.setattr(conversion_wishes, name, value)
    refs = rig.shards(20)
    async with rig.open_made(3) as cache:
        note_next_use(cache, [(ref, float(number)) for number, ref in enumerate(refs)])
        cache.prefetch(refs, "me")
        await until(lambda: len(cache.entries()) == 3 and not cache._wishes._running)
        assert len(cache._converter.fresh) == rig.recorder.total(PIPELINE_MAKING) / SHARD_BYTES == fresh
        for ref in refs:
            with await cache.acquire([ref]) as pins:
                rig.check(pins, [ref])
        cache.prefetch([], "me")
        assert not cache._converter.fresh


@pytest.mark.parametrize(("size_bytes", "peak"), [(SHARD_BYTES, 12), (CHARGE_BYTES_MAX // 4, 4)])
async def test_small_objects_are_fetched_many_at_a_time(rig: MadeRig, size_bytes: int, peak: int) -> None:
    """They mostly wait for the store; a worker has one of them at a time."""
    refs = [rig.shard(f"{number}", size_bytes) for number in range(12)]
    rig.fetcher.hold(*refs)
    in_workers: list[str] = []

    async def make_one(task: MakeTask) -> ConvertedShard | MissingRanges:
        in_workers.append(task.url)
        assert len(in_workers) == 1
        await asyncio.sleep(0)
        try:
            return await make(task)
        finally:
            in_workers.remove(task.url)

    converter = Converter(rig.fetcher, make_one, ConversionLog(), rig.recorder, limit_bytes=1 << 30, makings=1)
    brought = [asyncio.ensure_future(converter.bring(ref, lambda: 0.0)) for ref in refs]
    await until(lambda: len(rig.fetcher.running) == peak)
    rig.fetcher.release(*refs)
    await asyncio.gather(*brought)
    assert rig.fetcher.running_peak == peak
    converter.fresh.keep_only(lambda _: False)
