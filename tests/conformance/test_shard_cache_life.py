"""What a ShardCache must do about releases, damage, closing and starting again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from feedd.errors import Draining, NotFound
from feedd.metrics import CACHE_PINS, CACHE_RESERVED
from tests.fakes.caches import rig_on
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.caches import CacheRig


@pytest.fixture(params=["disk", "tmpfs", "memory", "bypass", "passed", "made"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CacheRig]:
    """A cache on the file system of temporary files, one in memory, and one with a bypass."""
    with rig_on(request.param, tmp_path) as made:
        yield made


async def test_releasing_twice_is_harmless(rig: CacheRig) -> None:
    """Only the first release counts, so that nobody else's pin is taken away."""
    (ref,) = rig.shards(1)
    async with rig.open() as cache:
        first = await cache.acquire([ref])
        second = await cache.acquire([ref])
        first.release()
        first.release()
        assert [entry.pins for entry in cache.entries()] == [1]
        second.release()


@pytest.mark.parametrize("verb", ["discard", "renew"])
async def test_discard_fetches_again_and_keeps_pins_valid(rig: CacheRig, verb: str) -> None:
    """A dropped entry goes when no pin holds it, at the latest with its next use, without blocking its holder."""
    (ref,) = rig.shards(1)
    async with rig.open(capacity=1) as cache:
        with await cache.acquire([ref]) as pins:
            await getattr(cache, verb)(ref)
            rig.check(pins, [ref])
            with await cache.acquire([ref]) as again:  # in place: there is no space for a second copy
                rig.check(again, [ref])
        assert rig.fetcher.calls[ref.key] == 2
        with await cache.acquire([ref]) as pins:
            assert rig.fetcher.calls[ref.key] == 2
            await getattr(cache, verb)(ref)
        assert cache.entries() == []
        with await cache.acquire([ref]) as pins:
            rig.check(pins, [ref])
        await getattr(cache, verb)(ref)
        await getattr(cache, verb)(ref)
        assert cache.entries() == []


async def test_failed_refetch_of_a_damaged_entry_removes_it(rig: CacheRig) -> None:
    """A damaged entry whose refetch fails is gone, its old holder's release still counts, its file is not served."""
    (ref,) = rig.shards(1)
    async with rig.open(capacity=1) as cache:
        with await cache.acquire([ref]):
            await cache.discard(ref)
            rig.fetcher.fail(ref, NotFound("expected an object, got none"))
            with pytest.raises(NotFound):
                await cache.acquire([ref])
            assert cache.entries() == []
        with await cache.acquire([ref]) as pins:
            rig.check(pins, [ref])
    assert rig.fetcher.calls[ref.key] == 3


async def test_damaged_entry_does_not_survive_a_restart(rig: CacheRig) -> None:
    """An entry found damaged, still pinned when the cache closes, is fetched again after the next start."""
    (ref,) = rig.shards(1)
    async with rig.open() as cache:
        pins = await cache.acquire([ref])
        await cache.discard(ref)
        await cache.close()
        pins.release()
    async with rig.open() as cache:
        assert cache.entries() == []


async def test_cancelled_close_still_lets_go(rig: CacheRig) -> None:
    """Whoever is cancelled while closing leaves no lock, thread or fill behind."""
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)
    opened = asyncio.Event()

    async def life() -> None:
        async with rig.open() as cache:
            cache.prefetch([ref], "owner")
            await until(lambda: rig.fetcher.running)
            opened.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(life())
    await opened.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # now it is in the middle of closing
    await asyncio.wait([task])
    assert task.cancelled()
    async with rig.open():
        pass


async def test_close_sends_everybody_away(rig: CacheRig) -> None:
    """Closing ends fetches and waits with an error a successor can cure; a second close, a late release do nothing."""
    a, b, c = rig.shards(3)
    rig.fetcher.hold(b)
    async with rig.open(capacity=2) as cache:
        held = await cache.acquire([a])
        fetching = asyncio.ensure_future(cache.acquire([b]))
        await until(lambda: rig.fetcher.running)
        waiting = asyncio.ensure_future(cache.acquire([c]))
        await until(lambda: cache.stats.waiting_count == 1)
        cache.prefetch([c], "owner")
        await cache.close()
        await cache.close()
        for task in (fetching, waiting):
            with pytest.raises(Draining):
                await task
        with pytest.raises(Draining):
            await cache.acquire([a])
        cache.prefetch([c], "owner")
        held.release()
        assert rig.recorder.total(CACHE_RESERVED) == rig.recorder.total(CACHE_PINS) == 0


async def test_error_of_the_body_is_not_wrapped(rig: CacheRig) -> None:
    """An exception inside ``async with`` comes out as it is, with fills cancelled."""
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)

    async def body() -> None:
        async with rig.open() as cache:
            cache.prefetch([ref], "owner")
            await until(lambda: rig.fetcher.running)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()
    assert rig.fetcher.cancelled[ref.key] == 1
    assert not rig.temp_files()


async def test_entries_survive_a_restart_where_they_can(rig: CacheRig) -> None:
    """What was whole at close is a hit after the next start, in the same bytes; memory starts empty."""
    refs = rig.shards(5)
    async with rig.open() as cache:
        with await cache.acquire(refs):
            pass
        before = sorted(cache.entries(), key=repr)
    async with rig.open() as cache:
        assert sorted(cache.entries(), key=repr) == ([] if rig.in_memory else before)
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
    assert rig.fetcher.calls.total() == (10 if rig.in_memory else 5)
