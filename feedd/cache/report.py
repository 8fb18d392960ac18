"""Reports of the cache: entries, statistics, and the counters for the recorder."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    from feedd.cache.index import CacheIndex
    from feedd.metrics import Metric
    from feedd.protocols import Recorder


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One whole object on disk, for listings.

    Attributes:
        url: the object's URL, as a user would type it.
        etag: the object's version.
        size_bytes: length of the object; the file is larger by a header and block rounding.
        pins: current pins; 0 in listings made without the owner of the directory.
        conversion: the conversion that made the entry from the object; empty: the object itself.
    """

    url: str
    etag: str
    size_bytes: int
    pins: int = 0
    conversion: str = ""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A snapshot of gauges, and counts since the cache was opened.

    Attributes:
        limit_bytes: disk bytes the cache may take: the configured size, or less if the disk is smaller.
        committed_bytes: disk bytes of whole entries.
        reserved_bytes: disk bytes reserved by running fills.
        entry_count: whole entries.
        pin_count: pins held.
        waiting_count: acquirers waiting for space now.
        hits: objects found whole when acquired.
        misses: objects that had to be fetched, or whose fetch was still running.
        evictions: entries removed to make room.
        filled_bytes: object bytes fetched.
        fill_s: time of all fills, summed.
        space_wait_s: time that acquirers waited for space, summed.
    """

    limit_bytes: int
    committed_bytes: int
    reserved_bytes: int
    entry_count: int
    pin_count: int
    waiting_count: int
    hits: int
    misses: int
    evictions: int
    filled_bytes: int
    fill_s: float
    space_wait_s: float


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
