"""Caches in a rig that put objects into memory while their disk cannot be used."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from feedd.cache.cache import RETRY_S, Cache
from feedd.cache.health import HealthOptions
from feedd.cache.watch import DiskWatch, try_directory
from feedd.metrics import CACHE_DISK_STATE
from tests.fakes.caches import CacheRig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from feedd.cache.cache import Tier
    from feedd.cache.options import CacheOptions

QUICK = HealthOptions(slow_op_s=20.0, clean_ops=3, probe_interval_s=0.002, down_probe_interval_s=0.002)
PATIENT = HealthOptions(errors_max=1_000_000)
"""For the conformance suite: its many discards are no sign of a sick disk."""


@dataclass
class BypassRig(CacheRig):
    """Opens caches with a bypass.

    Attributes:
        health: how patient the watch is.
        probe_error: what probes raise; None: they try the directory.
        retry_s: time between tries to open the directory.
    """

    bypass_bytes: int = 1 << 20
    health: HealthOptions = field(default_factory=lambda: QUICK)
    probe_error: OSError | None = None
    retry_s: float = RETRY_S

    def probe(self) -> None:
        """Stand in for a probe of the disk."""
        if self.probe_error is not None:
            raise self.probe_error
        try_directory(self.directory)

    def made(self, options: CacheOptions) -> Cache:
        """Make a cache; not open yet."""
        watch = DiskWatch(self.probe, self.health, self.recorder, self.clock)
        return Cache(options, self.fetcher, self.recorder, self.clock, watch=watch, retry_s=self.retry_s)

    @contextlib.asynccontextmanager
    async def open(
        self, capacity: float = 100, prefetch_fills: int = 4, deadline_s: float = 60.0
    ) -> AsyncIterator[Cache]:
        """Open a cache; after it nothing is held and all gauges are zero."""
        async with super().open(capacity, prefetch_fills, deadline_s) as cache:
            yield cache
        assert self.recorder.total(CACHE_DISK_STATE) == 0
        assert (cache.stats.pin_count, cache.stats.waiting_count, cache.stats.reserved_bytes) == (0, 0, 0)


def disk_of(cache: Cache) -> Tier:
    """Return the tier of the entries on disk."""
    return cache._disk


def memory_of(cache: Cache) -> Tier:
    """Return the tier of the entries in memory."""
    assert cache._bypass is not None
    return cache._bypass.memory


def watch_of(cache: Cache) -> DiskWatch:
    """Return the watch of the disk."""
    assert cache._bypass is not None
    return cache._bypass.watch
