"""Arm: opens a cache directory, asks for one entry, waits until all are known, closes. Prints how long each took."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.cache.cache import Cache
from feedd.cache.options import CacheOptions
from feedd.clock import SystemClock
from tests.bench.boot_scan import ref_of

if TYPE_CHECKING:
    from feedd.metrics import Metric
    from feedd.protocols import FetchWatch
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef


class _Silent:
    """Records nothing."""

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        pass

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        pass

    def move(self, metric: Metric, delta: float, **labels: str) -> None:
        pass

    def observe(self, metric: Metric, value: float, times: int = 1, /, **labels: str) -> None:
        pass


class _Fetcher:
    """Has nothing to bring: the objects are empty."""

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        raise AssertionError(f"fetched {ref.url}")


async def _boot(directory: Path, entry_count: int) -> dict[str, float]:
    started_s = time.perf_counter()
    options = CacheOptions(directory, 1 << 40, free_reserve_bytes=0)
    async with Cache(options, _Fetcher(), _Silent(), SystemClock()) as cache:
        opened_s = time.perf_counter()
        with await cache.acquire([ref_of(entry_count // 2)]):
            hit_s = time.perf_counter()
        while cache.stats.entry_count < entry_count:  # noqa: ASYNC110 - a bench looks, it is not told
            await asyncio.sleep(0.02)
        known_s, cpu_s = time.perf_counter(), time.process_time()
        await cache.close()
        closed_s = time.perf_counter()
    return {
        "entry_count": entry_count,
        "open_s": opened_s - started_s,
        "first_hit_s": hit_s - started_s,
        "known_s": known_s - started_s,
        "cpu_s": cpu_s,
        "close_s": closed_s - known_s,
    }


def main() -> None:
    """Measure."""
    settings = json.loads(sys.argv[1])
    directory = Path(settings["directory"])
    if settings["list_lost"]:
        (directory / "index").unlink(missing_ok=True)
    print(json.dumps(asyncio.run(_boot(directory, settings["entry_count"]))))


if __name__ == "__main__":
    main()
