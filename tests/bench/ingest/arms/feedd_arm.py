"""Contender: feedd's own sources, fetcher and cache, put together as the daemon does it, on the daemon's loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import uvloop

from feedd.cache.cache_options import CacheOptions
from feedd.cache.caches import DiskCache
from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.flow.loop_thread import LoopThread
from feedd.flow.range_sinks import MemorySink
from feedd.observe.recorder import PrometheusRecorder
from feedd.units import MIB
from feedd.values import ByteRange
from tests.bench.ingest.arms.job import Job, finish, timed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from feedd.protocols import Clock, ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectChecksum, ObjectRef, ReadProgress


class _TimedStore:
    """Notes how long each part took, retries and hedges included."""

    def __init__(self, inner: ObjectStore, parts_s: list[float]) -> None:
        self._inner, self._parts_s = inner, parts_s

    def __repr__(self) -> str:
        return f"_TimedStore({self._inner!r})"

    @property
    def root(self) -> str:
        return self._inner.root

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[list[ObjectRef]]:
        return self._inner.list(prefix, start_after)

    async def head(self, key: str) -> ObjectRef:
        return await self._inner.head(key)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        return await self._inner.checksum(ref)

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        begin_s = time.perf_counter()
        await self._inner.read_into(ref, span, sink, progress)
        self._parts_s.append(time.perf_counter() - begin_s)

    async def close(self) -> None:
        await self._inner.close()


class _TimedSources(Sources):
    """The daemon's sources, with a stopwatch around what the fetcher reads from."""

    def __init__(self, options: SourceOptions, recorder: Recorder, clock: Clock) -> None:
        super().__init__(options, recorder, clock, LoopThread("feedd-fetch"))
        self.parts_s: list[float] = []
        plain = self._fetcher._plain
        of = plain._store_of
        plain._store_of = lambda root: _TimedStore(of(root), self.parts_s)


def _source_options(job: Job) -> SourceOptions:
    access = S3Options(endpoint_url=job.endpoint or None, region=job.region, ca_bundle=job.ca_file or None)
    bytes_in_flight = max(256 * MIB, job.parts_in_flight * job.part_bytes)
    return SourceOptions(
        part_size_bytes=job.part_bytes,
        parts_in_flight=job.parts_in_flight,
        bytes_in_flight=bytes_in_flight,
        s3={"*": access},
        **job.own.get("source", {}),
    )


async def _run(job: Job) -> dict[str, Any]:
    clock, recorder = SystemClock(), PrometheusRecorder()
    total_bytes = sum(size_bytes for _, size_bytes in job.objects)
    options = CacheOptions(job.folder, size_bytes=2 * total_bytes, free_reserve_bytes=0)
    async with contextlib.AsyncExitStack() as stack:
        sources = _TimedSources(_source_options(job), recorder, clock)
        await stack.enter_async_context(sources)
        await sources.warm()
        prefix = f"s3://{job.bucket}/{job.own.get('prefix', '')}"
        wanted = dict(job.objects)
        refs = [ref for ref in await sources.resolve([prefix]) if ref.key in wanted]
        assert len(refs) == len(wanted), f"expected {len(wanted)} objects, got {len(refs)}"
        # as the other clients do before their time is taken: credentials, endpoint and a first connection are there
        await sources.store(refs[0].root).read_into(refs[0], ByteRange(0, 1), MemorySink(memoryview(bytearray(1))))
        sources.parts_s.clear()
        if job.recycled:
            return await _in_full_cache(job, sources, refs, stack)
        cache = await stack.enter_async_context(DiskCache(options, sources.fetcher, recorder, clock))
        with timed() as row:
            pins = await cache.acquire(refs)
        with pins:
            row["files"] = [[file.ref.key, file.path, file.data_at] for file in pins.files]
        row["parts_s"] = sources.parts_s
        return row


async def _in_full_cache(
    job: Job, sources: _TimedSources, refs: list[ObjectRef], stack: contextlib.AsyncExitStack
) -> dict[str, Any]:
    """Fill a cache that has room for half of the objects with one half; time the other half and the first again."""
    assert len(refs) > 1, "expected at least two objects, to evict one for the other"
    halves = refs[: len(refs) // 2], refs[len(refs) // 2 :]
    memory_bytes = max(sum(ref.size_bytes + MIB for ref in half) for half in halves)
    options = CacheOptions(job.folder, size_bytes=memory_bytes, free_reserve_bytes=0)
    cache = await stack.enter_async_context(DiskCache(options, sources.fetcher, PrometheusRecorder(), SystemClock()))
    (await cache.acquire(halves[0])).release()
    sources.parts_s.clear()
    with timed() as row:
        (await cache.acquire(halves[1])).release()
        pins = await cache.acquire(halves[0])
    with pins:
        row["files"] = [[file.ref.key, file.path, file.data_at] for file in pins.files]
    row |= {"parts_s": sources.parts_s, "passes": 1.5}
    return row


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        row = runner.run(_run(job))
    finish(job, row)


if __name__ == "__main__":
    main()
