"""A cache with a bypass under random demands, wishes and a disk that fails and heals: bytes bounded, nothing leaks."""

from __future__ import annotations

import asyncio
import errno
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from feedd.errors import StoreUnavailable
from tests.budget import PATIENT_S
from tests.fakes.bypass import BypassRig, disk_of, memory_of
from tests.fakes.caches import SHARD_BYTES, SLOT_BYTES
from tests.fakes.disks import BadDisk
from tests.fakes.fetchers import until
from tests.fakes.next_uses import note_next_use

if TYPE_CHECKING:
    from feedd.cache.cache import Cache
    from feedd.cache.pins import Pins
    from feedd.values import ObjectRef

SHARD_COUNT = 9
MEMORY_SLOTS = 3
DISK_SLOTS = 4
shards = st.lists(st.integers(0, SHARD_COUNT - 1), min_size=1, max_size=3, unique=True)
steps = st.one_of(
    st.tuples(st.just("acquire"), shards),
    st.tuples(st.just("acquire"), shards),
    st.tuples(st.just("acquire and give up"), shards),
    st.tuples(st.just("wish"), shards),
    st.tuples(st.just("wish nothing"), st.none()),
    st.tuples(st.just("release"), st.none()),
    st.tuples(st.just("settle"), st.none()),
    st.tuples(st.just("future"), st.lists(st.tuples(st.integers(0, SHARD_COUNT - 1), st.integers(0, 9)), max_size=5)),
    st.tuples(st.just("discard"), st.integers(0, SHARD_COUNT - 1)),
    st.tuples(st.just("store fails"), st.integers(0, SHARD_COUNT - 1)),
    st.tuples(st.just("disk fails"), st.sampled_from([errno.ENOSPC, errno.EIO, errno.EROFS])),
    st.tuples(st.just("disk heals"), st.none()),
    st.tuples(st.just("time"), st.sampled_from([1.0, 20.0, 700.0])),
)


@dataclass
class _Run:
    """One example."""

    rig: BypassRig
    disk: BadDisk
    cache: Cache
    refs: list[ObjectRef]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    leases: list[asyncio.Event] = field(default_factory=list)
    ever_failed: bool = False

    async def reader(self, wanted: list[ObjectRef], until_told: asyncio.Event) -> None:
        """Acquire, compare, hold for a while, release."""
        try:
            pins: Pins = await self.cache.acquire(wanted)
        except StoreUnavailable:
            return
        with pins:
            self.rig.check(pins, wanted)
            await until_told.wait()
            self.rig.check(pins, wanted)

    def acquire(self, numbers: list[int]) -> asyncio.Task[None]:
        self.leases.append(asyncio.Event())
        wanted = [self.refs[number] for number in numbers]
        self.tasks.append(asyncio.create_task(self.reader(wanted, self.leases[-1])))
        return self.tasks[-1]

    async def step(self, name: str, value: object) -> None:
        match name, value:
            case "acquire", list(numbers):
                self.acquire(numbers)
            case "acquire and give up", list(numbers):
                task = self.acquire(numbers)
                await asyncio.sleep(0)
                task.cancel()
            case "wish", list(numbers):
                self.cache.prefetch([self.refs[number] for number in numbers], "owner")
            case "wish nothing", _:
                self.cache.prefetch([], "owner")
            case "release", _ if self.leases:
                self.leases.pop(0).set()
            case "settle", _:
                await asyncio.sleep(0.002)
            case "future", list(uses):
                note_next_use(self.cache, ((self.refs[number], float(use)) for number, use in uses))
            case "discard", int(number):
                self.ever_failed = True  # what is discarded while pinned may be in both for a while
                await self.cache.discard(self.refs[number])
            case _:
                self.fault(name, value)

    def fault(self, name: str, value: object) -> None:
        match name, value:
            case "store fails", int(number):
                self.rig.fetcher.fail(self.refs[number], StoreUnavailable("expected a body, got a reset"))
            case "disk fails", int(code):
                self.ever_failed = True
                self.disk.write_errno = code
            case "disk heals", _:
                self.disk.write_errno = 0
            case "time", float(seconds):
                self.rig.clock.now_s += seconds

    def check(self) -> None:
        """What holds at every moment."""
        for tier, slots in ((memory_of(self.cache), MEMORY_SLOTS), (disk_of(self.cache), DISK_SLOTS)):
            assert tier.stats.committed_bytes + tier.stats.reserved_bytes <= slots * SLOT_BYTES
        if not self.ever_failed:
            in_memory, on_disk = (
                {entry.url for entry in tier.entries()} for tier in (memory_of(self.cache), disk_of(self.cache))
            )
            assert not in_memory & on_disk

    async def end(self) -> None:
        """Everybody gets what he waits for once all others let go: nobody waits for one who waits for him."""
        for lease in self.leases:
            lease.set()
        async with asyncio.timeout(PATIENT_S):
            results = await asyncio.gather(*self.tasks, return_exceptions=True)
        failures = [one for one in results if one is not None and not isinstance(one, asyncio.CancelledError)]
        assert not failures
        self.cache.prefetch([], "owner")
        await until(lambda: self.cache.stats.reserved_bytes == 0)
        assert (self.cache.stats.pin_count, self.cache.stats.waiting_count) == (0, 0)


async def _play(script: list[tuple[str, object]], directory: Path, disk: BadDisk) -> None:
    rig = BypassRig(directory / "cache", bypass_bytes=MEMORY_SLOTS * SLOT_BYTES)
    rig.probe = disk.probe  # type: ignore[method-assign]  # the disk's own answer
    refs = [rig.shard(f"s{number}", SHARD_BYTES) for number in range(SHARD_COUNT)]
    async with rig.open(capacity=DISK_SLOTS) as cache:
        run = _Run(rig, disk, cache, refs)
        for name, value in script:
            await run.step(name, value)
            run.check()
        await run.end()
        run.check()


_DISCARDED = [("acquire", [0]), ("settle", None), ("discard", 0), ("acquire", [0]), ("settle", None)]
"""A reader keeps what it has pinned while another reader has the entry fetched again."""


@settings(max_examples=40, deadline=None)
@example(script=_DISCARDED)
@given(script=st.lists(steps, max_size=25))
def test_bypass(script: list[tuple[str, object]]) -> None:
    """Whatever happens in whatever order: right bytes, bounded tiers, no deadlock, all gauges zero at the end."""
    with pytest.MonkeyPatch.context() as patch, BadDisk().under(patch) as disk, tempfile.TemporaryDirectory() as folder:
        asyncio.run(_play(script, Path(folder), disk))
