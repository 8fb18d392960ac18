"""Arm: whole objects into a cache, as a daemon does it that is told nothing but how many parts may be in flight."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from feedd.cache.cache import Cache
from feedd.cache.options import CacheOptions
from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.config import load
from feedd.daemon.wiring import source_options
from feedd.flow.range_sinks import MemorySink
from feedd.observe.recorder import PrometheusRecorder
from feedd.values import ByteRange
from tests.bench.arms.consume import read_settings

if TYPE_CHECKING:
    from tests.bench.harness import Row


async def _run(settings: dict[str, Any]) -> Row:
    clock, recorder = SystemClock(), PrometheusRecorder()
    config = load({"fetch.parts_in_flight": (settings["parts_in_flight"], "bench")}, {}).config
    options = source_options(config)
    async with Sources(options, recorder, clock) as sources:
        await sources.warm()
        refs = await sources.resolve([settings["url"]])
        total_bytes = sum(ref.size_bytes for ref in refs)
        root = refs[0].root
        await sources.store(root).read_into(refs[0], ByteRange(0, 1), MemorySink(memoryview(bytearray(1))))
        cache_options = CacheOptions(Path(settings["cache_dir"]), size_bytes=2 * total_bytes, free_reserve_bytes=0)
        async with Cache(cache_options, sources.fetcher, recorder, clock) as cache:
            begin_s, cpu_s, loop_s = time.perf_counter(), time.process_time(), time.thread_time()
            with await cache.acquire(refs):
                wall_s = time.perf_counter() - begin_s
                cpu_s, loop_s = time.process_time() - cpu_s, time.thread_time() - loop_s
        part_bytes = sources.buckets.state(root).sizes.aim_bytes
    return {
        "bytes_per_s": total_bytes / wall_s,
        "cpu_s_per_gb": cpu_s / total_bytes * 1e9,
        "loop_s_per_gb": loop_s / total_bytes * 1e9,
        "part_bytes": part_bytes,
        "bytes_in_flight": options.bytes_in_flight,
        "transfer_threads": options.transfer_threads,
    }


def main() -> None:
    """Run."""
    json.dump(uvloop.run(_run(read_settings())), sys.stdout)


if __name__ == "__main__":
    main()
