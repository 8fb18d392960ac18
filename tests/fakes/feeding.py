"""A whole pipeline over objects in memory: real cache, real sources around one in-memory bucket, real workers.

In ``make check`` the worker is a thread of the test's process.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.batching.quarantine import Quarantine
from feedd.cache.cache import Cache
from feedd.cache.options import CacheOptions
from feedd.catalog.pack_reads import PackReads
from feedd.catalog.sources import Sources
from feedd.catalog.stages import PipelineOptions, Stages
from feedd.clock import SystemClock
from feedd.fetch.fetch_options import SourceOptions
from feedd.sessions.group_members import GroupMember
from feedd.sessions.opening import Pipeline
from feedd.sessions.own_batches import OwnBatches
from feedd.tables.cache import ConvertingCache
from feedd.tables.converter import Converter
from feedd.tables.facts import ConversionLog
from feedd.values import BatchReady, Cursor, EpochEnd, FieldKind, Topology
from feedd.workers.pool import DecodePool
from feedd.workers.work import DecodeOptions
from tests.fakes.fetchers import until
from tests.fakes.memory_store import MemoryStore
from tests.fakes.specs import open_spec
from tests.fakes.tally import TallyRecorder
from tests.fakes.tars import tar_bytes
from tests.fakes.thread_worker import cheap_workers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from feedd.range_sink import RangeSink
    from feedd.sessions.job_sharing import SharedBatches
    from feedd.sessions.next_epoch_prefetch import NextEpochPrefetch
    from feedd.sessions.session import Session
    from feedd.values import ByteRange, ObjectChecksum, ObjectRef, Produced, ReadProgress, TensorSpec

ROOT = "s3://memory"
URL = f"{ROOT}/train/"


class GatedStore(MemoryStore):
    """A store that counts reads and their bytes, and lets those of some keys wait."""

    def __init__(self) -> None:
        super().__init__(ROOT)
        self.reads: list[str] = []
        self.read_bytes = 0
        self.gates: dict[str, asyncio.Event] = {}

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Nothing is kept."""
        return None

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        self.reads.append(ref.key)
        self.read_bytes += span.size_bytes
        await asyncio.sleep(0)
        if ref.key in self.gates:
            await self.gates[ref.key].wait()
        await super().read_into(ref, span, sink)

    def shard(self, number: int, samples: Sequence[Mapping[str, bytes]]) -> ObjectRef:
        """Store a shard whose samples are named by shard and ordinal."""
        named = [(f"{number:02d}{ordinal:03d}", fields) for ordinal, fields in enumerate(samples)]
        return self.put(f"train/{number:02d}.tar", tar_bytes(named))

    def numbers(self, *counts: int) -> None:
        """Store shards whose samples hold ``shard * 100 + ordinal`` as ``cls``."""
        for shard, count in enumerate(counts):
            self.shard(shard, [{"cls": str(shard * 100 + n).encode()} for n in range(count)])


@dataclass
class Feeding:
    """The open stages."""

    store: GatedStore
    pipeline: Pipeline
    cache: Cache
    pool: DecodePool
    recorder: TallyRecorder
    sessions: list[Session] = field(default_factory=list)
    refused_count: int = 0

    async def open(self, **changes: object) -> Session:
        """Open a session of batches of 4 ``cls``, unless told otherwise; closed at the end."""
        asked: dict[str, object] = {"urls": (URL,), "fields": (("cls", "int"),), "batch_size": 4, "window_shards": 2}
        spec = open_spec(**(asked | changes))  # type: ignore[arg-type]  # the caller's to get right
        try:
            session = await self.pipeline.open(spec)
        except BaseException:
            self.refused_count += 1
            raise
        self.sessions.append(session)
        return session

    async def close(self, session: Session) -> None:
        """Close it now."""
        self.sessions.remove(session)
        await session.close()


@dataclass
class Taken:
    """A batch as a trainer has it."""

    ready: BatchReady
    data: bytes
    specs: tuple[TensorSpec, ...]

    def ints(self, name: str = "cls") -> list[int]:
        """Return a DENSE int64 field."""
        at = next(n for n, spec in enumerate(self.specs) if spec.name == name)
        region = self.ready.regions[at]
        values: list[int] = np.frombuffer(self.data, np.int64, region.values_bytes // 8, region.values_at).tolist()
        return values

    def texts(self, name: str) -> list[bytes]:
        """Return a field of bytes or text."""
        at = next(n for n, spec in enumerate(self.specs) if spec.name == name)
        region = self.ready.regions[at]
        offsets = np.frombuffer(self.data, np.int64, self.ready.rows + 1, region.offsets_at).tolist()
        values = self.data[region.values_at : region.values_at + region.values_bytes]
        return [values[a:b] for a, b in itertools.pairwise(offsets)]

    def rows(self, name: str) -> list[Any]:
        """Return a DENSE or PADDED field as nested lists, one per row."""
        at = next(n for n, spec in enumerate(self.specs) if spec.name == name)
        spec, region = self.specs[at], self.ready.regions[at]
        dims = region.dims if spec.kind is FieldKind.PADDED else spec.shape
        shape = (self.ready.rows, *dims)
        values = np.frombuffer(self.data, spec.dtype, math.prod(shape), region.values_at)
        found: list[Any] = values.reshape(shape).tolist()
        return found


async def take(session: Session, at: Cursor) -> Taken | EpochEnd:
    """Produce one batch, copy it, free its slot."""
    made = await session.produce(at)
    if isinstance(made, EpochEnd):
        return made
    taken = copied(session, made)
    session.release(made.slot)
    return taken


def copied(session: Session, made: Produced) -> Taken:
    """Copy a batch that was produced."""
    batch = made.batch
    data = session.slots.view(made.slot) if batch.oversize is None else batch.oversize
    return Taken(batch, bytes(data[: batch.size_bytes]), session.info.specs)


def prefetch_of(session: Session) -> NextEpochPrefetch:
    """Return what decodes a session's next epoch in advance."""
    own = session._parts.batches
    assert isinstance(own, OwnBatches)
    return own.prefetch


def group_of(session: Session) -> SharedBatches:
    """Return the group that a session takes its batches from."""
    member = session._parts.batches
    assert isinstance(member, GroupMember)
    return member.group


async def batches(session: Session, at: Cursor | None = None, stride: int = 1) -> list[Taken]:
    """Produce to the end of the epoch as a stream does: the anchor travels with the cursor."""
    taken: list[Taken] = []
    at = at or Cursor()
    while isinstance(made := await take(session, at), Taken):
        taken.append(made)
        here = made.ready.cursor
        at = Cursor(here.epoch, here.step + stride, here.anchors)
    return taken


def rank(rank_number: int, world_size: int) -> Topology:
    """Return the place of one rank of a single node."""
    return Topology(world_size, rank_number, world_size, rank_number)


@asynccontextmanager
async def feeding(
    directory: Path,
    *,
    cache_bytes: int = 64 << 20,
    bypass_bytes: int = 0,
    quarantine_bytes: int = 1 << 20,
    options: PipelineOptions | None = None,
    decode: DecodeOptions | None = None,
) -> AsyncIterator[Feeding]:
    """Open everything; at the end all sessions are closed and nothing is pinned, reserved or under way.

    No read is hedged: tests hold reads back and count them, and what is held back for long is slow.
    """
    recorder, clock, store = TallyRecorder(), SystemClock(), GatedStore()
    cache_options = CacheOptions(directory / "cache", cache_bytes, free_reserve_bytes=0, bypass_bytes=bypass_bytes)
    async with AsyncExitStack() as stack:
        if decode is None:
            stack.enter_context(cheap_workers())
        pool = await stack.enter_async_context(DecodePool(decode or DecodeOptions(), recorder))
        sources = await stack.enter_async_context(Sources(SourceOptions(hedge_share=0), recorder, clock))
        sources.buckets.use(store)  # the one seam: everything above the bucket is the real thing
        facts, inflight = ConversionLog(), sources.packs.inflight
        converter = Converter(sources.fetcher, pool.make, facts, recorder, inflight, limit_bytes=cache_bytes)
        cache = await stack.enter_async_context(Cache(cache_options, converter, recorder, clock))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        quarantine = Quarantine(directory / "quarantine.jsonl", quarantine_bytes, recorder)
        made = await stack.enter_async_context(ConvertingCache(cache, converter))
        stages = Stages(sources, made, pool, recorder, clock, PackReads(sources, made, group))
        pipeline = Pipeline(stages, options or PipelineOptions(), group, quarantine=quarantine)
        stack.push_async_callback(pipeline.close)
        rig = Feeding(store, pipeline, cache, pool, recorder)
        try:
            yield rig
        finally:
            for session in rig.sessions:
                await session.close()
        if rig.refused_count:  # index reads that a refused open began end by themselves
            await until(lambda: not cache.stats.pin_count)
        assert (cache.stats.pin_count, cache.stats.waiting_count) == (0, 0)
        assert not pool._arenas
        assert not pipeline._reader_groups._groups
        assert not pipeline._reader_groups.timeline.stream_count
        # a thread that handed out a batch of its own memory may hold it a moment longer
        await until(lambda: not pipeline._budget.reserved_bytes)
        assert (pipeline.windows.plan_count, pipeline.windows.cached_bytes) == (0, 0)
