"""The shard cache on local disk, and the one in memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

import structlog

from feedd.cache.check_schedule import CheckRule
from feedd.cache.memory_storage import MemoryStorage
from feedd.cache.ondisk.directory import DirectoryStorage
from feedd.cache.shard_cache import CoreOptions, PlacedCache
from feedd.flow.memory import available_bytes
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.cache.cache_options import CacheOptions
    from feedd.protocols import Clock, Recorder, ShardFetcher

_log = structlog.get_logger(__name__)


class DiskCache(PlacedCache):
    """Whole shards as files of one directory, which this object owns while it is open.

    ``async with DiskCache(options, fetcher, recorder, clock) as cache``.
    """

    def __init__(self, options: CacheOptions, fetcher: ShardFetcher, recorder: Recorder, clock: Clock) -> None:
        again_s = options.verified_for_s if options.verify == "use" else math.inf
        rule = CheckRule(blocks=options.verify != "off", again_s=again_s)
        core = CoreOptions(options.fill_deadline_s, options.prefetching, rule)
        super().__init__(DirectoryStorage(options), core, fetcher, recorder, clock)
        self._name = f"{options.directory}, {format_size(options.size_bytes)}"
        self._size_bytes = options.size_bytes

    def __repr__(self) -> str:
        return f"DiskCache({self._name})"

    async def __aenter__(self) -> Self:
        """Lock the directory and index the entries in it.

        Raises:
            CacheUnavailable: another process owns the directory, it cannot be written, or the disk has no room for
                a cache.
        """
        await super().__aenter__()
        if self.limit_bytes < self._size_bytes:
            _log.warning(
                "cache is limited by the disk, not by its configured size",
                cache=self._name,
                limit=format_size(self.limit_bytes),
            )
        return self


class MemoryCache(PlacedCache):
    """Whole shards in anonymous memory; nothing is left behind, however the process ends.

    ``async with MemoryCache(size_bytes, fetcher, recorder, clock) as cache``.
    """

    def __init__(
        self,
        size_bytes: int,
        fetcher: ShardFetcher,
        recorder: Recorder,
        clock: Clock,
        available: Callable[[], int | None] = available_bytes,
    ) -> None:
        """Take at most ``size_bytes``, and never more than ``available`` reports as left.

        Raises:
            ValueError: the size is not above 0.
        """
        if size_bytes <= 0:
            raise ValueError(f"expected size_bytes above 0, got {size_bytes}")
        super().__init__(MemoryStorage(size_bytes, available), CoreOptions(), fetcher, recorder, clock)
        self._name = format_size(size_bytes)

    def __repr__(self) -> str:
        return f"MemoryCache({self._name})"
