"""Contender: feedd's own sources, fetcher and cache, put together as the daemon does it, on the daemon's loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import uvloop

from feedd.cache.cache import Cache
from feedd.cache.options import CacheOptions
from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.dataset.pack_layout import is_pack
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.flow.loop_thread import LoopThread
from feedd.flow.range_sinks import MemorySink
from feedd.observe.recorder import PrometheusRecorder
from feedd.units import MIB
from feedd.values import ByteRange
from tests.bench.ingest.arms.job import Job, finish, timed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from feedd.cache.pins import Pins
    from feedd.catalog.url_listing import Resolved
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
        found = await sources.resolve_all([prefix])
        refs, first = _wanted(job, found)
        # as the other clients do before their time is taken: credentials, endpoint and a first connection are there
        await sources.store(first.root).read_into(first, ByteRange(0, 1), MemorySink(memoryview(bytearray(1))))
        sources.parts_s.clear()
        if job.recycled:
            return await _in_full_cache(job, sources, found, stack)
        cache = await stack.enter_async_context(Cache(options, sources.fetcher, recorder, clock))
        with timed() as row:
            pins = await cache.acquire(refs)
        with pins:
            row["files"] = _files(pins, found)
        row["parts_s"] = sources.parts_s
        return row


def _wanted(job: Job, found: Resolved) -> tuple[list[ObjectRef], ObjectRef]:
    """Return what to acquire, packs for small objects, and the first object."""
    wanted = dict(job.objects)
    refs = [ref for ref in found.refs if is_pack(ref) or ref.key in wanted]
    count = len(refs) + sum(len(packs.members.sizes) - len(packs) for packs in found.packs)
    assert count == len(wanted), f"expected {len(wanted)} objects, got {count}"
    return refs, found.packs[0].members.ref(0) if is_pack(refs[0]) else refs[0]


def _files(pins: Pins, found: Resolved) -> list[list[Any]]:
    """Return key, file and offset of each object, and its size if it lies in a pack."""
    rows: list[list[Any]] = []
    for file in pins.files:
        if not is_pack(file.ref):
            rows.append([file.ref.key, file.path, file.data_at])
            continue
        packs, number = next((packs, number) for packs in found.packs if (number := packs.find(file.ref)) is not None)
        at = file.data_at + packs.table(number).size_bytes
        for member in map(packs.members.ref, packs.span(number)):
            rows.append([member.key, file.path, at, member.size_bytes])
            at += member.size_bytes
    return rows


async def _in_full_cache(
    job: Job, sources: _TimedSources, found: Resolved, stack: contextlib.AsyncExitStack
) -> dict[str, Any]:
    """Fill a cache that has room for half of the objects with one half; time the other half and the first again."""
    refs, _ = _wanted(job, found)
    assert len(refs) > 1, "expected at least two objects, to evict one for the other"
    halves = refs[: len(refs) // 2], refs[len(refs) // 2 :]
    memory_bytes = max(sum(ref.size_bytes + MIB for ref in half) for half in halves)
    options = CacheOptions(job.folder, size_bytes=memory_bytes, free_reserve_bytes=0)
    cache = await stack.enter_async_context(Cache(options, sources.fetcher, PrometheusRecorder(), SystemClock()))
    (await cache.acquire(halves[0])).release()
    sources.parts_s.clear()
    with timed() as row:
        (await cache.acquire(halves[1])).release()
        pins = await cache.acquire(halves[0])
    with pins:
        row["files"] = _files(pins, found)
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
