"""The cache's counters, for its own statistics and for the recorder."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from feedd.cache.cache_report import CacheStats
from feedd.metrics import (
    CACHE_BYTES,
    CACHE_ENTRIES,
    CACHE_ERRORS,
    CACHE_EVICTIONS,
    CACHE_HITS,
    CACHE_MISSES,
    CACHE_PINS,
    CACHE_RESERVED,
)

if TYPE_CHECKING:
    from feedd.cache.policy.cache_index import CacheIndex
    from feedd.metrics import Metric
    from feedd.protocols import Recorder


class CacheMetrics:
    """Counters since opening, and the gauges of an index.

    Attributes:
        filled_bytes: object bytes fetched.
        fill_s: time of all fills, summed.
        space_wait_s: time that acquirers waited for space, summed.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.filled_bytes = 0
        self.fill_s = 0.0
        self.space_wait_s = 0.0
        self._recorder = recorder
        self._counts: Counter[str] = Counter()
        self._published: Counter[str] = Counter()

    def count(self, metric: Metric, amount: int = 1) -> None:
        """Add ``amount`` to an unlabelled counter."""
        if amount:
            self._counts[metric.name] += amount
            self._recorder.count(metric, amount)

    def error(self, reason: str, amount: int = 1) -> None:
        """Count a failed operation: vanished, torn, unreadable, broken, full, disk, prefetch or unflushed."""
        if amount:
            self._recorder.count(CACHE_ERRORS, amount, reason=reason)

    def snapshot(self, index: CacheIndex, waiting_count: int) -> CacheStats:
        """Return all counters and gauges as one snapshot."""
        return CacheStats(
            limit_bytes=index.limit_bytes,
            committed_bytes=index.committed_bytes,
            reserved_bytes=index.reserved_bytes,
            entry_count=index.committed_count,
            pin_count=index.pin_count,
            waiting_count=waiting_count,
            hits=self._counts[CACHE_HITS.name],
            misses=self._counts[CACHE_MISSES.name],
            evictions=self._counts[CACHE_EVICTIONS.name],
            filled_bytes=self.filled_bytes,
            fill_s=self.fill_s,
            space_wait_s=self.space_wait_s,
        )

    def publish(self, index: CacheIndex) -> None:
        """Update all gauges from the index."""
        self._move(CACHE_BYTES, index.committed_bytes)
        self._move(CACHE_ENTRIES, index.committed_count)
        self._move(CACHE_RESERVED, index.reserved_bytes)
        self._move(CACHE_PINS, index.pin_count)

    def retire(self) -> None:
        """Subtract this cache's share from all gauges, because the cache is closed."""
        for metric in (CACHE_BYTES, CACHE_ENTRIES, CACHE_RESERVED, CACHE_PINS):
            self._move(metric, 0)

    def _move(self, metric: Metric, value: int) -> None:
        """Change a gauge by the difference to the last published value, so that caches that share a recorder add up."""
        delta = value - self._published[metric.name]
        if delta:
            self._published[metric.name] = value
            self._recorder.move(metric, delta)
