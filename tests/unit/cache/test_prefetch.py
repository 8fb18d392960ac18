"""Prefetching: wishes served in order, a few at a time, never at the cost of a sooner use."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from feedd.cache.cache import Cache
from feedd.cache.prefetch import PrefetchLimits
from feedd.clock import SystemClock
from feedd.errors import NotFound
from feedd.metrics import CACHE_ERRORS, CACHE_HITS, CACHE_MISSES
from tests.fakes.caches import SHARD_BYTES, CacheRig
from tests.fakes.fetchers import until
from tests.fakes.next_uses import note_next_use

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def rig(tmp_path: Path) -> CacheRig:
    """A cache over objects in memory."""
    return CacheRig(tmp_path / "cache")


async def test_wishes_are_filled_in_order(rig: CacheRig) -> None:
    """One at a time, wishes arrive in the order of the list."""
    refs = rig.shards(6)
    async with rig.open(prefetch_fills=1) as cache:
        cache.prefetch(refs[::-1], "owner")
        await until(lambda: cache.stats.entry_count == 6)
    assert rig.fetcher.order == [ref.key for ref in refs[::-1]]


async def test_at_most_so_many_at_a_time_over_all_owners(rig: CacheRig) -> None:
    """The number of running prefetches is bounded for all owners together."""
    refs = rig.shards(8)
    rig.fetcher.hold(*refs)
    async with rig.open(prefetch_fills=3) as cache:
        cache.prefetch(refs[:4], "one")
        cache.prefetch(refs[4:], "two")
        await until(lambda: len(rig.fetcher.running) == 3)
        rig.fetcher.release(*refs)
        await until(lambda: cache.stats.entry_count == 8)
    assert rig.fetcher.running_peak == 3


@pytest.mark.parametrize(("size_bytes", "peak"), [(7 * SHARD_BYTES, 7), (SHARD_BYTES, 4), (100 * SHARD_BYTES, 10)])
async def test_small_shards_are_fetched_many_at_a_time(rig: CacheRig, size_bytes: int, peak: int) -> None:
    """As many as have the bytes that may be requested, but at least four, and at most as many as there are requests."""
    refs = rig.shards(16)
    rig.fetcher.hold(*refs)
    options = replace(rig.options(), prefetching=PrefetchLimits(10, size_bytes))
    async with Cache(options, rig.fetcher, rig.recorder, SystemClock()) as cache:
        cache.prefetch(refs, "owner")
        await until(lambda: len(rig.fetcher.running) >= peak)
        rig.fetcher.release(*refs)
        await until(lambda: cache.stats.entry_count == 16)
    assert rig.fetcher.running_peak == peak


@pytest.mark.parametrize(("fills", "size_bytes"), [(-1, 0), (4, -1)])
def test_impossible_limits(fills: int, size_bytes: int) -> None:
    """Limits that cannot be meant are refused where they are made."""
    with pytest.raises(ValueError, match="0 or more"):
        PrefetchLimits(fills, size_bytes)


async def test_owners_are_served_in_turn(rig: CacheRig) -> None:
    """An owner with a long list does not keep the others waiting for its end."""
    refs = rig.shards(6)
    rig.fetcher.hold(refs[0])
    async with rig.open(prefetch_fills=1) as cache:
        cache.prefetch(refs[:3], "one")
        cache.prefetch(refs[3:], "two")
        await until(lambda: rig.fetcher.running)
        rig.fetcher.release(refs[0])
        await until(lambda: cache.stats.entry_count == 6)
    assert rig.fetcher.order == [refs[index].key for index in (0, 1, 3, 2, 4, 5)]


async def test_no_fills_allowed_means_none(rig: CacheRig) -> None:
    """With prefetching switched off wishes are not served, and acquirers are."""
    (ref,) = rig.shards(1)
    async with rig.open(prefetch_fills=0) as cache:
        cache.prefetch([ref], "owner")
        with await cache.acquire([ref]) as pins:
            rig.check(pins, [ref])
    assert rig.recorder.total(CACHE_MISSES) == 1


async def test_prefetched_is_a_hit_and_joined_is_a_miss(rig: CacheRig) -> None:
    """A shard that prefetching brought in time is a hit; joining its running fill is a miss, and one fetch."""
    early, late = rig.shards(2)
    async with rig.open() as cache:
        cache.prefetch([early], "owner")
        await until(lambda: cache.stats.entry_count == 1)
        rig.fetcher.hold(late)
        cache.prefetch([late], "owner")
        await until(lambda: rig.fetcher.running)
        acquiring = asyncio.ensure_future(cache.acquire([early, late]))
        await until(lambda: cache.stats.pin_count == 2)
        cache.prefetch([], "owner")  # the acquirer keeps it going
        rig.fetcher.release(late)
        with await acquiring as pins:
            rig.check(pins, [early, late])
    assert rig.fetcher.calls.total() == 2
    assert (rig.recorder.total(CACHE_HITS), rig.recorder.total(CACHE_MISSES)) == (1, 1)


async def test_never_evicts_a_sooner_or_equal_use(rig: CacheRig) -> None:
    """A wish takes the place of a strictly later use only; the same wish is served when next uses change."""
    a, b, wish = rig.shards(3)
    async with rig.open(capacity=2) as cache:
        note_next_use(cache, [(a, 5.0), (b, 9.0), (wish, 9.0)])
        with await cache.acquire([a, b]):
            pass
        cache.prefetch([wish], "owner")
        assert cache.stats.reserved_bytes == 0
        note_next_use(cache, [(b, 9.5)])
        await until(lambda: {entry.url for entry in cache.entries()} == {a.url, wish.url})
    assert rig.fetcher.calls[wish.key] == 1


async def test_unknown_next_use_takes_free_space_only(rig: CacheRig) -> None:
    """A wish nobody said anything about evicts nothing, not even what is needed never."""
    a, b, wish = rig.shards(3)
    async with rig.open(capacity=2) as cache:
        with await cache.acquire([a]):
            pass
        cache.prefetch([b, wish], "owner")
        await until(lambda: cache.stats.entry_count == 2)
        assert cache.stats.reserved_bytes == 0
        note_next_use(cache, [(wish, 3.0)])  # needed at last: those never needed give way
        await until(lambda: wish.url in {entry.url for entry in cache.entries()})
        assert b.url in {entry.url for entry in cache.entries()}  # used later than a
        assert math.isinf(next(e.next_use for e in cache._disk.index if e.ref == b))


async def test_blocked_wish_goes_on_when_a_pin_ends(rig: CacheRig) -> None:
    """Wishes are looked at again whenever space comes free."""
    a, b, wish = rig.shards(3)
    async with rig.open(capacity=2) as cache:
        note_next_use(cache, [(wish, 1.0)])
        pins = await cache.acquire([a, b])
        cache.prefetch([wish], "owner")
        assert cache.stats.reserved_bytes == 0
        pins.release()
        await until(lambda: wish.url in {entry.url for entry in cache.entries()})


async def test_prefetching_yields_to_waiting_acquirers(rig: CacheRig) -> None:
    """Space that comes free goes to who waits for it, not to wishes."""
    a, b, c, wish = rig.shards(4)
    async with rig.open(capacity=2) as cache:
        note_next_use(cache, [(wish, 0.0), (c, 1.0)])
        rig.fetcher.hold(c)
        pins = await cache.acquire([a, b])
        waiting = asyncio.ensure_future(cache.acquire([c, a]))
        await until(lambda: cache.stats.waiting_count == 1)
        cache.prefetch([wish], "owner")
        pins.release()
        await until(lambda: rig.fetcher.running)
        assert rig.fetcher.running == {c.key}
        rig.fetcher.release(c)
        with await waiting as got:
            rig.check(got, [c, a])
        await until(lambda: cache.stats.entry_count == 2 and rig.fetcher.calls[wish.key] == 1)


async def test_free_space_is_kept_for_who_waits(rig: CacheRig) -> None:
    """Space too small for the acquirer who waits is not given to a wish meanwhile: that would prolong the wait."""
    a, b, c, d, wish = rig.shards(5)
    async with rig.open(capacity=3) as cache:
        note_next_use(cache, [(wish, 0.0)])
        pins = await cache.acquire([a, b])
        waiting = asyncio.ensure_future(cache.acquire([c, d]))
        await until(lambda: cache.stats.waiting_count == 1)
        cache.prefetch([wish], "owner")
        assert cache.stats.reserved_bytes == 0
        pins.release()
        with await waiting:
            assert not rig.fetcher.calls[wish.key] or rig.fetcher.order[-1] == wish.key
        await until(lambda: rig.fetcher.calls[wish.key] == 1 and cache.stats.reserved_bytes == 0)


async def test_emptied_list_cancels_what_nobody_else_wants(rig: CacheRig) -> None:
    """Withdrawing ends running fills of one's own, and not those others wish for or wait for."""
    mine, ours, awaited, queued = rig.shards(4)
    rig.fetcher.hold(mine, ours, awaited, queued)
    async with rig.open(prefetch_fills=3) as cache:
        cache.prefetch([mine, ours, awaited, queued], "me")
        cache.prefetch([ours], "you")
        acquiring = asyncio.ensure_future(cache.acquire([awaited]))
        await until(lambda: len(rig.fetcher.running) == 3)
        cache.prefetch([], "me")
        await until(lambda: rig.fetcher.cancelled[mine.key])
        assert rig.fetcher.running == {ours.key, awaited.key}
        rig.fetcher.release(ours, awaited)
        with await acquiring:
            pass
        await until(lambda: cache.stats.entry_count == 2)
        assert rig.fetcher.cancelled == {mine.key: 1}
        cache.prefetch([], "you")
    assert not rig.fetcher.calls[queued.key]
    assert rig.recorder.total(CACHE_ERRORS) == 0


async def test_changed_list_drops_the_unstarted_and_keeps_the_running(rig: CacheRig) -> None:
    """A new list replaces the wishes not yet started; what is already running is finished."""
    running, dropped, new = rig.shards(3)
    rig.fetcher.hold(running)
    async with rig.open(prefetch_fills=1) as cache:
        cache.prefetch([running, dropped], "owner")
        await until(lambda: rig.fetcher.running)
        cache.prefetch([new], "owner")
        rig.fetcher.release(running)
        await until(lambda: cache.stats.entry_count == 2)
    assert rig.fetcher.order == [running.key, new.key]
    assert not rig.fetcher.cancelled


async def test_acquired_fill_that_is_wished_for_outlives_its_acquirer(rig: CacheRig) -> None:
    """A fill that an acquirer started and a wish names goes on when the acquirer is cancelled."""
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)
    async with rig.open() as cache:
        acquiring = asyncio.ensure_future(cache.acquire([ref]))
        await until(lambda: rig.fetcher.running)
        cache.prefetch([ref], "owner")
        acquiring.cancel()
        await asyncio.wait([acquiring])
        rig.fetcher.release(ref)
        await until(lambda: cache.stats.entry_count == 1)
    assert rig.fetcher.calls[ref.key] == 1


async def test_failure_is_counted_and_left_to_the_acquirer(rig: CacheRig) -> None:
    """A failed prefetch is dropped, the next wish goes on, and the acquirer meets the error itself."""
    bad, good = rig.shards(2)
    rig.fetcher.fail(bad, NotFound("gone"), NotFound("still gone"))
    async with rig.open() as cache:
        cache.prefetch([bad, good], "owner")
        await until(lambda: cache.stats.entry_count == 1 and cache.stats.reserved_bytes == 0)
        assert rig.recorder.total(CACHE_ERRORS, reason="prefetch") == 1
        with pytest.raises(NotFound, match="still gone"):
            await cache.acquire([bad])
    assert rig.fetcher.calls[bad.key] == 2


async def test_wish_larger_than_the_cache_is_passed_over(rig: CacheRig) -> None:
    """What can never fit is counted and does not hold up the wishes behind it."""
    huge, good = rig.shard("huge", 1 << 20), rig.shard("good")
    async with rig.open(capacity=2) as cache:
        cache.prefetch([huge, good], "owner")
        await until(lambda: cache.stats.entry_count == 1)
        assert rig.recorder.total(CACHE_ERRORS, reason="prefetch") == 1
    assert rig.fetcher.order == ["good"]
