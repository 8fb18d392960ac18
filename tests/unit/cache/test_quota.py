"""Quotas on disk: they hold from the first fill on, and after a restart with other ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from feedd.cache.cache import Cache
from feedd.errors import CacheTooSmall
from tests.budget import PATIENT_S
from tests.fakes.caches import SLOT_BYTES, CacheRig
from tests.fakes.fetchers import ROOT, until

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = f"{ROOT}/train/"


def cache_of(rig: CacheRig, slots: int) -> Cache:
    """Return a cache in which the dataset may take so many shards."""
    options = replace(rig.options(), quotas={TRAIN: slots * SLOT_BYTES})
    return Cache(options, rig.fetcher, rig.recorder, rig.clock)


def held(cache: Cache) -> set[str]:
    """Return the names of what is in it."""
    return {entry.url.removeprefix(f"{ROOT}/") for entry in cache.entries()}


async def test_quota_holds_and_survives_a_restart(tmp_path: Path) -> None:
    """A dataset replaces its own shards only; a smaller quota after a restart removes its oldest, and no others."""
    rig = CacheRig(tmp_path / "cache")
    train = [rig.shard(f"train/{n}") for n in range(5)]
    other = [rig.shard(f"other/{n}") for n in range(3)]
    async with cache_of(rig, 3) as cache:
        for ref in (*other, *train):
            with await cache.acquire([ref]) as pins:
                rig.check(pins, [ref])
        assert held(cache) == {"other/0", "other/1", "other/2", "train/2", "train/3", "train/4"}
    async with cache_of(rig, 3) as cache:
        assert held(cache) == {"other/0", "other/1", "other/2", "train/2", "train/3", "train/4"}
    async with cache_of(rig, 1) as cache:
        assert len(held(cache) & {"train/2", "train/3", "train/4"}) <= 1
        assert held(cache) >= {"other/0", "other/1", "other/2"}
        assert cache.stats.committed_bytes <= 4 * SLOT_BYTES
        with await cache.acquire([train[0]]) as pins:
            rig.check(pins, [train[0]])
        assert held(cache) == {"other/0", "other/1", "other/2", "train/0"}


async def test_larger_than_the_quota_names_it(tmp_path: Path) -> None:
    """What a quota can never hold is refused at once with the option to raise; what may fit later waits."""
    rig = CacheRig(tmp_path / "cache")
    a, b, c = [rig.shard(f"train/{n}") for n in range(3)]
    async with cache_of(rig, 2) as cache:
        with pytest.raises(CacheTooSmall, match=f'quota of {TRAIN}.*raise cache.quotas."{TRAIN}"'):
            await cache.acquire([a, b, c])
        with await cache.acquire([a, b]):
            waiting = asyncio.ensure_future(cache.acquire([c]))
            await until(lambda: cache.stats.waiting_count == 1)
        with await waiting as pins:
            rig.check(pins, [c])


async def test_one_dataset_at_its_quota_does_not_hold_up_others(tmp_path: Path) -> None:
    """Who waits for space inside a quota is overtaken by those who need none of it."""
    rig = CacheRig(tmp_path / "cache")
    a, b = [rig.shard(f"train/{n}") for n in range(2)]
    other = rig.shard("other")
    async with cache_of(rig, 1) as cache:
        with await cache.acquire([a]):
            waiting = asyncio.ensure_future(cache.acquire([b]))
            await until(lambda: cache.stats.waiting_count == 1)
            async with asyncio.timeout(PATIENT_S):
                with await cache.acquire([other]) as pins:
                    rig.check(pins, [other])
            assert not waiting.done()
        with await waiting as pins:
            rig.check(pins, [b])
