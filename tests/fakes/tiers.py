"""Tiered caches in a rig: memory above a directory, with a disk that can be told to fail."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from feedd.cache.caches import DiskCache, MemoryCache
from feedd.cache.disk_watch import DiskWatch
from feedd.cache.joint_gauges import JointGauges
from feedd.cache.ondisk.probe import try_directory
from feedd.cache.policy.health import HealthOptions
from feedd.cache.tiers import TieredCache
from feedd.metrics import CACHE_BYTES, CACHE_DISK_STATE, CACHE_ENTRIES, CACHE_PINS, CACHE_RESERVED
from tests.fakes.caches import PAGE, SLOT_BYTES, CacheRig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from feedd.cache.cache_options import CacheOptions

QUICK = HealthOptions(slow_op_s=20.0, clean_ops=3, probe_interval_s=0.002, down_probe_interval_s=0.002)


@dataclass
class TieredRig(CacheRig):
    """Opens tiered caches.

    Attributes:
        memory_bytes: size of the upper tier.
        standby: whether it is for when the disk fails only.
        health: how patient the watch is.
        probe_error: what probes raise; None: they try the directory.
    """

    memory_bytes: int = 2 * PAGE
    standby: bool = False
    health: HealthOptions = field(default_factory=lambda: QUICK)
    probe_error: OSError | None = None

    def probe(self) -> None:
        """Stand in for trying the disk out."""
        if self.probe_error is not None:
            raise self.probe_error
        try_directory(self.directory)

    def tiers(self, options: CacheOptions) -> TieredCache:
        """Make a cache; not open yet."""
        gauges = JointGauges(self.recorder)
        watch = DiskWatch(self.probe, self.health, self.recorder, self.clock)
        memory = MemoryCache(self.memory_bytes, self.fetcher, gauges.part(), self.clock)
        disk = DiskCache(options, self.fetcher, watch.listen(gauges.part()), self.clock)
        return TieredCache(memory, disk, watch, self.recorder, standby=self.standby)

    @contextlib.asynccontextmanager
    async def open_tiers(self, capacity: float = 100, prefetch_fills: int = 4) -> AsyncIterator[TieredCache]:
        """Open; after it nothing is held and all gauges are zero."""
        async with self.tiers(self.options(capacity, prefetch_fills)) as cache:
            yield cache
        for gauge in (CACHE_PINS, CACHE_RESERVED, CACHE_BYTES, CACHE_ENTRIES, CACHE_DISK_STATE):
            assert self.recorder.total(gauge) == 0, gauge.name
        assert (cache.stats.pin_count, cache.stats.waiting_count, cache.stats.reserved_bytes) == (0, 0, 0)
        assert not self.temp_files()
        assert not cache._placement._sent
        assert not cache._pinned_in_memory

    @contextlib.asynccontextmanager
    async def open(
        self, capacity: float = 100, prefetch_fills: int = 4, deadline_s: float = 60.0
    ) -> AsyncIterator[DiskCache]:
        """Open one as the conformance suite does."""
        async with self.tiers(self.options(capacity, prefetch_fills, deadline_s)) as cache:
            yield cast("DiskCache", cache)  # all that the suite uses of one, this one has too
        assert self.recorder.total(CACHE_PINS) == self.recorder.total(CACHE_RESERVED) == 0
        assert not self.temp_files()
        assert self.disk_bytes() <= int(capacity * SLOT_BYTES)


def suite_rig(directory: Path, *, standby: bool) -> TieredRig:
    """Return a rig whose tiers look like one cache of the disk's size: that is what the conformance suite counts with.

    Memory holds what fits into a page, or is on standby; the suite's many discards are no sign of a sick disk.
    """
    patient = HealthOptions(errors_max=1_000_000)
    return TieredRig(directory, memory_bytes=(1 << 20) if standby else 2 * PAGE, standby=standby, health=patient)
