"""One suite for every shard cache: what a ShardCache must do, on a disk and in memory."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from feedd.errors import CacheTooSmall, NotFound, ObjectChanged, StoreUnavailable
from feedd.metrics import CACHE_HITS, CACHE_MISSES
from tests.budget import PATIENT_S, later
from tests.fakes.caches import SLOT_BYTES, CacheRig, read, rig_on
from tests.fakes.fetchers import until
from tests.fakes.next_uses import note_next_use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.protocols import ShardCache
    from feedd.values import ObjectRef


@pytest.fixture(params=["disk", "tmpfs", "memory", "bypass", "passed", "made"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CacheRig]:
    """A cache on the file system of temporary files, one in memory, and one with a bypass."""
    with rig_on(request.param, tmp_path) as made:
        yield made


async def test_acquired_shards_are_whole_and_in_the_order_asked_for(rig: CacheRig) -> None:
    """Every ref comes back as a file with the object's bytes, in order, duplicates included."""
    a, b, c = rig.shards(3)
    async with rig.open() as cache:
        seam: ShardCache = cache
        with await seam.acquire([c, a, b, a]) as pins:
            rig.check(pins, [c, a, b, a])
            assert all(file.data_at % 4096 == 0 for file in pins.files)
    assert rig.fetcher.calls.total() == 3


async def test_second_acquire_is_a_hit(rig: CacheRig) -> None:
    """What is here is not fetched again, and counts as a hit."""
    (ref,) = rig.shards(1)
    async with rig.open() as cache:
        for _ in range(3):
            with await cache.acquire([ref]) as pins:
                rig.check(pins, [ref])
    assert rig.fetcher.calls[ref.key] == 1
    assert (rig.recorder.total(CACHE_HITS), rig.recorder.total(CACHE_MISSES)) == (2, 1)


async def test_odd_sizes_and_nothing(rig: CacheRig) -> None:
    """Empty objects, single bytes, page edges and an empty list of refs all work."""
    refs = [rig.shard(f"size-{size}", size) for size in (0, 1, 4095, 4096, 4097)]
    async with rig.open() as cache:
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
        with await cache.acquire([]) as pins:
            assert pins.files == ()


async def test_versions_are_different_entries(rig: CacheRig) -> None:
    """A new ETag or size of a key never meets the bytes of another version."""
    old, new = rig.shard("key", 5000, "v1"), rig.shard("key", 5000, "v2")
    longer = rig.shard("key", 6000, "v2")
    async with rig.open() as cache:
        for ref in (old, new, longer, old):
            with await cache.acquire([ref]) as pins:
                rig.check(pins, [ref])
        assert len(cache.entries()) == 3


async def test_hundred_acquirers_one_fetch(rig: CacheRig) -> None:
    """However many ask for an object at once, it is fetched once and all are served."""
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)
    async with rig.open() as cache, asyncio.TaskGroup() as group:
        tasks = [group.create_task(cache.acquire([ref])) for _ in range(100)]
        await until(lambda: cache.stats.pin_count == 100)
        rig.fetcher.release(ref)
        for task in tasks:
            with await task as pins:
                rig.check(pins, [ref])
    assert rig.fetcher.calls[ref.key] == 1


async def test_cancelled_leader_leaves_the_others_served(rig: CacheRig) -> None:
    """The acquirer who started the fetch may go; the others still get the object from the same fetch."""
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)
    async with rig.open() as cache, asyncio.TaskGroup() as group:
        leader = group.create_task(cache.acquire([ref]))
        await until(lambda: rig.fetcher.running)
        other = group.create_task(cache.acquire([ref]))
        await until(lambda: cache.stats.pin_count == 2)
        leader.cancel()
        await asyncio.wait([leader])
        rig.fetcher.release(ref)
        with await other as pins:
            rig.check(pins, [ref])
    assert leader.cancelled()
    assert rig.fetcher.calls[ref.key] == 1


async def test_fetch_nobody_waits_for_is_cancelled(rig: CacheRig) -> None:
    """When the last acquirer is cancelled the fetch ends, its space is free and the next acquire starts anew."""
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)
    async with rig.open(capacity=1) as cache:
        task = asyncio.ensure_future(cache.acquire([ref]))
        await until(lambda: rig.fetcher.running)
        task.cancel()
        await asyncio.wait([task])
        again = asyncio.ensure_future(cache.acquire([ref]))
        await until(lambda: rig.fetcher.calls[ref.key] == 2)
        assert rig.fetcher.cancelled[ref.key] == 1
        rig.fetcher.release(ref)
        with await again as pins:
            rig.check(pins, [ref])


@pytest.mark.parametrize("capacity", [1, 2])
async def test_newcomer_while_an_abandoned_fetch_is_dying(rig: CacheRig, capacity: int) -> None:
    """A slowly ending fetch keeps its space until it has ended and does not disturb the fetch that follows it."""
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)
    ended = rig.fetcher.linger(ref)
    async with rig.open(capacity=capacity) as cache:
        task = asyncio.ensure_future(cache.acquire([ref]))
        await until(lambda: rig.fetcher.running)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: rig.fetcher.cancelled[ref.key])
        rig.fetcher.release(ref)
        again = asyncio.ensure_future(cache.acquire([ref]))
        if capacity == 1:
            await until(lambda: cache.stats.waiting_count == 1)
            assert cache.stats.reserved_bytes == SLOT_BYTES
            ended.set()
        with await again as pins:
            rig.check(pins, [ref])
            assert cache.stats.reserved_bytes == (capacity - 1) * SLOT_BYTES
            ended.set()
            await until(lambda: cache.stats.reserved_bytes == 0)
            rig.check(pins, [ref])
        assert len(cache.entries()) == 1


async def test_cancelled_before_the_first_step(rig: CacheRig) -> None:
    """An acquirer cancelled before its fetch took a single step leaves nothing reserved."""
    (ref,) = rig.shards(1)
    async with rig.open(capacity=1) as cache:
        task = asyncio.ensure_future(cache.acquire([ref]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: cache.stats.reserved_bytes == 0)
        assert (cache.stats.pin_count, cache.entries()) == (0, [])


@pytest.mark.parametrize("error_class", [NotFound, ObjectChanged, StoreUnavailable, RuntimeError])
async def test_failure_reaches_all_who_wait_and_nobody_later(rig: CacheRig, error_class: type[Exception]) -> None:
    """A failed fetch fails those who joined it, with the object's name where ours; the next acquire tries again."""
    good, bad = rig.shards(2)
    rig.fetcher.hold(bad)
    rig.fetcher.fail(bad, error_class("expected luck, got none"))
    async with rig.open() as cache:
        tasks = [asyncio.ensure_future(cache.acquire(refs)) for refs in ([bad], [good, bad], [bad, good])]
        await until(lambda: cache.stats.pin_count == 5)
        rig.fetcher.release(bad)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [error_class] * 3
        assert all(getattr(error, "object", bad.url) == bad.url for error in errors)
        with await cache.acquire([bad, good]) as pins:
            rig.check(pins, [bad, good])
    assert rig.fetcher.calls[bad.key] == 2


async def test_too_large_says_what_to_do(rig: CacheRig) -> None:
    """What an empty cache could not hold is refused at once, with numbers and the way out."""
    refs = rig.shards(4)
    async with rig.open(capacity=3) as cache:
        with pytest.raises(CacheTooSmall, match=r"4 shards of .* do not fit .*raise (--cache-size|cache\.bypass)"):
            await cache.acquire(refs)
        with await cache.acquire([*refs[:3], *refs[:3]]) as pins:  # duplicates take no space
            rig.check(pins, [*refs[:3], *refs[:3]])
            with pytest.raises(CacheTooSmall):
                await cache.acquire(refs)  # said at once, not after waiting for the pins
    assert rig.fetcher.calls.total() == 3


async def test_full_now_waits_holding_no_pins(rig: CacheRig) -> None:
    """An acquirer without space waits, holds nothing, and is served when pins end."""
    a, b, c, d = rig.shards(4)
    async with rig.open(capacity=3) as cache:
        first = await cache.acquire([a, b])
        waiting = asyncio.ensure_future(cache.acquire([b, c, d]))
        await until(lambda: cache.stats.waiting_count == 1)
        assert cache.stats.pin_count == 2
        assert cache.stats.reserved_bytes == 0
        first.release()
        with await waiting as pins:
            rig.check(pins, [b, c, d])
    assert rig.fetcher.calls[b.key] == 1  # it was claimed before the eviction chose


async def test_cancelled_while_waiting_for_space_lets_the_next_one_in(rig: CacheRig) -> None:
    """A waiter that is cancelled gives its turn to those behind it, who may fit."""
    a, b, c, d = rig.shards(4)
    async with rig.open(capacity=3) as cache:
        with await cache.acquire([a, b]):
            big = asyncio.ensure_future(cache.acquire([c, d]))
            await until(lambda: cache.stats.waiting_count == 1)
            small = asyncio.ensure_future(cache.acquire([c]))
            await until(lambda: cache.stats.waiting_count == 2)
            big.cancel()
            with await small as pins:
                rig.check(pins, [c])


async def test_waiters_are_served_in_order(rig: CacheRig) -> None:
    """Who waits for space is not overtaken by a smaller demand that would fit; who needs no space does not wait."""
    a, b, c, d = rig.shards(4)
    async with rig.open(capacity=3) as cache:
        held = await cache.acquire([a, b])
        big = asyncio.ensure_future(cache.acquire([c, d]))
        await until(lambda: cache.stats.waiting_count == 1)
        small = asyncio.ensure_future(cache.acquire([c]))
        await until(lambda: cache.stats.waiting_count == 2)
        with await cache.acquire([b, a]) as pins:
            rig.check(pins, [b, a])
        assert not rig.fetcher.calls[c.key]
        held.release()
        with await big, await small:
            assert rig.fetcher.calls[c.key] == 1


async def test_grant_and_cancellation_at_the_same_moment(rig: CacheRig) -> None:
    """An acquirer cancelled in the very step in which space was granted gives the grant back."""
    a, b, c = rig.shards(3)
    rig.fetcher.hold(c)
    async with rig.open(capacity=2) as cache:
        held = await cache.acquire([a, b])
        waiting = asyncio.ensure_future(cache.acquire([c]))
        await until(lambda: cache.stats.waiting_count == 1)
        held.release()  # grants synchronously
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert cache.stats.pin_count == 0
        await until(lambda: cache.stats.reserved_bytes == 0)


async def test_two_acquirers_in_tight_space_both_finish(rig: CacheRig) -> None:
    """Two who each need two thirds of the cache take turns for ever instead of starving each other."""
    refs = rig.shards(4)

    async def turns(mine: list[ObjectRef]) -> None:
        for _ in range(20):
            with await cache.acquire(mine) as pins:
                rig.check(pins, mine)

    async with rig.open(capacity=3) as cache, asyncio.timeout(PATIENT_S):
        await asyncio.gather(turns(refs[:2]), turns(refs[2:]), turns([refs[1], refs[2]]))


async def test_dataset_of_eight_times_the_cache_streams_through(rig: CacheRig) -> None:
    """A cache far smaller than the data serves all of it in bounded space, each shard fetched once."""
    refs = rig.shards(32)
    async with rig.open(capacity=4) as cache:
        note_next_use(cache, ((ref, index) for index, ref in enumerate(refs)))
        for index, ref in enumerate(refs):
            if index + 1 < len(refs):  # an empty list would cancel the fetch the last acquire needs
                cache.prefetch(refs[index + 1 : index + 3], "reader")
            with await cache.acquire([ref]) as pins:
                rig.check(pins, [ref])
                assert rig.disk_bytes() <= 4 * SLOT_BYTES
            note_next_use(cache, [(ref, float("inf"))])
    assert set(rig.fetcher.calls.values()) == {1}


async def test_pinned_shards_stay_under_pressure(rig: CacheRig) -> None:
    """Whatever else passes through a full cache, the files of a held pin remain as they are."""
    kept, *others = rig.shards(10)
    async with rig.open(capacity=2) as cache:
        with await cache.acquire([kept]) as pins:
            for ref in others:
                with await cache.acquire([ref]):
                    assert read(pins.files[0]) == rig.fetcher.data(kept)


@pytest.mark.parametrize("seed", [0, 1, later(2), later(3)])
async def test_crowd_of_acquirers_with_cancellations_and_faults(rig: CacheRig, seed: int) -> None:
    """Many acquirers, prefetches, discards, faults and cancellations at once end with right bytes and nothing held."""
    rng = random.Random(seed)
    refs = rig.shards(12)
    for ref in rng.sample(refs, 4):
        rig.fetcher.fail(ref, StoreUnavailable("expected a body, got a reset"))

    async def reader() -> None:
        for _ in range(15):
            wanted = rng.sample(refs, rng.randint(1, 3))
            note_next_use(cache, ((ref, rng.random() * 100) for ref in rng.sample(refs, 3)))
            cache.prefetch(rng.sample(refs, rng.randint(0, 3)), f"owner-{rng.randint(0, 2)}")
            try:
                async with asyncio.timeout(rng.choice([0.0005, 0.005, 60])):
                    with await cache.acquire(wanted) as pins:
                        rig.check(pins, wanted)
                        await asyncio.sleep(0)
                        assert cache.stats.committed_bytes + cache.stats.reserved_bytes <= 5 * SLOT_BYTES
            except (TimeoutError, StoreUnavailable):
                pass
            if rng.random() < 0.1:
                await cache.discard(rng.choice(refs))

    async with rig.open(capacity=5) as cache, asyncio.timeout(PATIENT_S):
        await asyncio.gather(*(reader() for _ in range(8)))
        for owner in range(3):
            cache.prefetch([], f"owner-{owner}")
        await until(lambda: cache.stats.reserved_bytes == 0)
        assert cache.stats.pin_count == cache.stats.waiting_count == 0
