"""Memory above disk: who goes where, and what both together keep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from feedd.cache.joint_gauges import JointGauges
from feedd.cache.policy.placement import DiskUse, Placement
from feedd.errors import CacheTooSmall
from feedd.metrics import CACHE_BYTES, CACHE_ENTRIES, CACHE_HITS, CACHE_MISSES
from tests.fakes.caches import SLOT_BYTES, CacheRig, read
from tests.fakes.fetchers import until
from tests.fakes.next_uses import note_next_use
from tests.fakes.tally import TallyRecorder
from tests.fakes.tiers import TieredRig

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from feedd.cache.policy.placement import Tier
    from feedd.cache.tiers import TieredCache
    from feedd.values import ObjectRef


@pytest.fixture
def rig(tmp_path: Path) -> TieredRig:
    """Memory for two shards above a directory."""
    return TieredRig(tmp_path / "cache", memory_bytes=2 * SLOT_BYTES)


async def use(rig: CacheRig, cache: TieredCache, refs: Iterable[ObjectRef]) -> None:
    """Acquire one after the other, compare, release."""
    for ref in refs:
        with await cache.acquire([ref]) as pins:
            rig.check(pins, [ref])


def held(tier: Tier) -> set[str]:
    """Return the numbers of the shards in it."""
    return {entry.url[-1] for entry in tier.entries()}


@dataclass
class _Tier:
    """What ``Placement`` asks of an empty tier."""

    limit_bytes: int
    cost: float

    def knows(self, _ref: ObjectRef) -> bool:
        return False

    def price(self, _refs: object) -> float:
        return self.cost


@pytest.mark.parametrize(
    ("standby", "together", "to_disk"),
    [
        (False, True, [False, False, True, True, True]),  # memory cannot hold three at one time
        (False, False, [False] * 5),  # wishes are needed one after another: what they cost decides
        (True, True, [True] * 5),  # memory is for a failing disk only
        (True, False, [True] * 5),
    ],
)
def test_objects_needed_together_fit_their_tier(
    rig: TieredRig, *, standby: bool, together: bool, to_disk: list[bool]
) -> None:
    """Only what is needed at one time is held against a tier's size, and only if both tiers are used."""
    memory = _Tier(2 * SLOT_BYTES, cost=9.0)
    disk = _Tier(3 * SLOT_BYTES, cost=1.0)
    placement = Placement(cast("Tier", memory), cast("Tier", disk), standby=standby)
    refs = rig.shards(5)
    routes = placement.route("x", refs, DiskUse(), together=together)
    assert [ref in routes.disk for ref in refs] == to_disk
    assert [ref in routes.memory for ref in refs] == [not one for one in to_disk]


async def test_memory_fills_first_and_nothing_is_in_both(rig: TieredRig) -> None:
    """Space nobody needs is taken in memory before disk, every shard is in one tier, and both serve one acquirer."""
    refs = rig.shards(5)
    async with rig.open_tiers(capacity=3) as cache:
        note_next_use(cache, ((ref, float(place)) for place, ref in enumerate(refs)))
        await use(rig, cache, refs)
        assert (held(cache._memory), held(cache._disk)) == ({"0", "1"}, {"2", "3", "4"})
        with await cache.acquire([refs[4], refs[0], refs[2], refs[0]]) as pins:
            rig.check(pins, [refs[4], refs[0], refs[2], refs[0]])
            assert pins.files[1].path.startswith("/proc/")
        assert cache.stats.entry_count == 5
        assert rig.recorder.total(CACHE_BYTES) == cache.stats.committed_bytes == 5 * SLOT_BYTES
        assert rig.recorder.total(CACHE_ENTRIES) == cache.stats.entry_count == 5
    assert (rig.recorder.total(CACHE_MISSES), rig.recorder.total(CACHE_HITS)) == (5, 3)


@pytest.mark.parametrize("furthest", [0, 4])
async def test_both_evict_as_one_cache(rig: TieredRig, furthest: int) -> None:
    """A new shard takes the place of the one needed last of all, whichever tier that is in."""
    refs = rig.shards(6)
    async with rig.open_tiers(capacity=3) as cache:
        note_next_use(cache, ((ref, 99.0 if place == furthest else float(place)) for place, ref in enumerate(refs)))
        await use(rig, cache, refs)
        assert held(cache._memory) | held(cache._disk) == {*"012345"} - {str(furthest)}
        assert ("5" in held(cache._memory)) == (furthest == 0)


async def test_wishes_go_where_they_would_be_acquired(rig: TieredRig) -> None:
    """What was wished for is found where it is, and a wish that stands is not fetched into the other tier too."""
    refs = rig.shards(5)
    async with rig.open_tiers(capacity=4, prefetch_fills=1) as cache:
        note_next_use(cache, ((ref, float(place)) for place, ref in enumerate(refs)))
        rig.fetcher.hold(refs[2])
        cache.prefetch(refs, "owner")
        await until(lambda: rig.fetcher.running)
        acquiring = asyncio.ensure_future(cache.acquire(refs))
        cache.prefetch(refs[3:], "owner")  # does not cancel what is awaited
        rig.fetcher.release(refs[2])
        with await acquiring as pins:
            rig.check(pins, refs)
        cache.prefetch([], "owner")
    assert set(rig.fetcher.calls.values()) == {1}


async def test_moving_on_does_not_cancel_the_tier_without_wishes(rig: TieredRig) -> None:
    """When the next wishes are all for one tier, fills under way in the other one go on."""
    first, second = rig.shards(2)
    large = rig.shard("large9", 3 * SLOT_BYTES)  # too large for memory
    rig.fetcher.hold(first)
    async with rig.open_tiers() as cache:
        cache.prefetch([first], "owner")
        await until(lambda: rig.fetcher.running)
        cache.prefetch([large], "owner")
        await until(lambda: "9" in held(cache._disk))
        rig.fetcher.release(first)
        await until(lambda: "0" in held(cache._memory))
        await use(rig, cache, [second])
        cache.prefetch([], "owner")
    assert not rig.fetcher.cancelled


async def test_both_tiers_fill_at_the_same_time(rig: TieredRig) -> None:
    """An acquirer of shards of both tiers does not wait for the one before the other begins."""
    small = rig.shard("small", 100)
    large = rig.shard("large", 3 * SLOT_BYTES)
    rig.fetcher.hold(small, large)
    async with rig.open_tiers() as cache:
        acquiring = asyncio.ensure_future(cache.acquire([small, large]))
        await until(lambda: len(rig.fetcher.running) == 2)
        rig.fetcher.release(small, large)
        with await acquiring as pins:
            rig.check(pins, [small, large])


async def test_together_they_hold_what_neither_could(rig: TieredRig) -> None:
    """Shards needed at one time are spread over both tiers; what does not fit into both is refused with numbers."""
    refs = rig.shards(6)
    async with rig.open_tiers(capacity=3) as cache:
        with await cache.acquire(refs[:5]) as pins:
            rig.check(pins, refs[:5])
        with pytest.raises(CacheTooSmall, match=r"shards .* do not fit"):
            await cache.acquire(refs)


async def test_disk_entries_survive_a_restart_and_memory_does_not(rig: TieredRig) -> None:
    """After a restart what lay on disk is a hit, from there."""
    refs = rig.shards(3)
    async with rig.open_tiers() as cache:
        await use(rig, cache, refs)
    async with rig.open_tiers() as cache:
        assert held(cache._disk) == {"2"}
        with await cache.acquire([refs[2]]) as pins:
            assert read(pins.files[0]) == rig.fetcher.data(refs[2])
        assert not held(cache._memory)


def test_gauges_of_several_caches_add_up() -> None:
    """A gauge shows the sum of what each cache last said, per set of labels."""
    recorder = TallyRecorder()
    gauges = JointGauges(recorder)
    one, other = gauges.part(), gauges.part()
    one.gauge(CACHE_BYTES, 5)
    other.gauge(CACHE_BYTES, 7)
    one.gauge(CACHE_BYTES, 2)
    assert recorder.total(CACHE_BYTES) == 9
