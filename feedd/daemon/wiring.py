"""Builds the stages from the configuration, opened bottom-up and closed top-down."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

import structlog

from feedd.access import AccessRules
from feedd.batching.quarantine import Quarantine
from feedd.cache.cache import Cache
from feedd.cache.options import CacheOptions
from feedd.cache.os_errors import may_pass
from feedd.cache.prefetch import PrefetchLimits
from feedd.catalog.learned_counts import Learned
from feedd.catalog.pack_reads import PackReads
from feedd.catalog.sources import Sources
from feedd.catalog.stages import PipelineOptions, Stages
from feedd.config.machine_defaults import default_workers, memory_bytes
from feedd.errors import CacheUnavailable
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.flow.loop_thread import LoopThread
from feedd.flow.pools import CACHE_DISK, CPU
from feedd.formats import format_registry
from feedd.ordering.epoch_access import readahead_bytes
from feedd.recipe import plugins
from feedd.recipe.tokenizers import offered
from feedd.sessions.opening import Pipeline
from feedd.tables.cache import ConvertingCache
from feedd.tables.converter import Converter
from feedd.tables.facts import ConversionLog
from feedd.workers.pool import DecodePool
from feedd.workers.work import DecodeOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from feedd.config import Config
    from feedd.fetch.packs import InflightPacks
    from feedd.flow.trace_log import TraceLog
    from feedd.peers.peer_cache import PeerCache
    from feedd.peers.peer_options import PeerOptions
    from feedd.protocols import Clock, Recorder, SpanFetcher
    from feedd.tables.converter import Make


_log = structlog.get_logger(__name__)
_READY_SHARE = 8  # one part in this many of memory, for predecoded shards being made at one time
_MAKINGS_MAX = 16  # each keeps an object and the shard made of it in memory


def source_options(config: Config, access_rules: AccessRules | None = None) -> SourceOptions:
    """Translate the ``fetch`` and ``s3`` sections; ``access_rules``: what a daemon's clients may read; None: all."""
    fetch = config.fetch
    return SourceOptions(
        part_size_bytes=0 if fetch.part_size == "auto" else fetch.part_size,
        parts_in_flight=fetch.parts_in_flight,
        pinned=not config.autotune,
        bytes_in_flight=fetch.bytes_in_flight,
        transfer_threads=fetch.transfer_threads,
        attempts_max=fetch.attempts,
        retry_deadline_s=fetch.retry_deadline,
        connect_timeout_s=fetch.connect_timeout,
        read_timeout_s=fetch.read_timeout,
        verify=fetch.verify,
        hedge_share=fetch.hedge_share,
        traced=config.trace.sample > 0,
        file_folders=None if access_rules is None else access_rules.folders,
        s3={bucket: S3Options(**section.model_dump(mode="json")) for bucket, section in config.s3.items()},
    )


def peer_options(config: Config, listen: str) -> PeerOptions:
    """Translate the ``peers`` section, which has an address to listen at."""
    from feedd.peers.peer_options import PeerOptions, PeerTls  # noqa: PLC0415 - only with a peer cache

    peers, tls = config.peers, config.tls
    files = PeerTls(tls.cert, tls.key, peers.ca) if peers.ca and tls.cert and tls.key else None
    return PeerOptions(
        listen=listen,
        members=tuple(peers.members),
        members_file=peers.members_file,
        address=peers.address or "",
        timeout_s=peers.timeout,
        tls=files,
        transfer_threads=config.fetch.transfer_threads,
        lane_count=config.lanes,
    )


def cache_options(config: Config) -> CacheOptions:
    """Translate the ``cache`` section."""
    return CacheOptions(
        directory=config.cache.dir,
        size_bytes=config.cache.size,
        free_reserve_bytes=config.cache.free_reserve,
        prefetching=PrefetchLimits(config.fetch.parts_in_flight, config.fetch.bytes_in_flight),
        quotas=config.cache.quotas,
        verify=config.cache.verify,
        allow_network_fs=config.cache.allow_network_fs,
        bypass_bytes=config.cache.bypass,
    )


def node_converter(
    config: Config,
    fetcher: SpanFetcher,
    make: Make,
    recorder: Recorder,
    traces: TraceLog | None = None,
    inflight: InflightPacks | None = None,
) -> Converter:
    """Return the converter: it uses all workers but one, and makes no shard larger than half of the cache."""
    if traces is not None:
        from feedd.fetch.tracing_store import TracingFetcher  # noqa: PLC0415 - only while tracing is on

        fetcher = TracingFetcher(fetcher, traces)
    facts, limit_bytes = ConversionLog(config.cache.dir / "made"), config.cache.size // 2
    return Converter(fetcher, make, facts, recorder, inflight, limit_bytes=limit_bytes, makings=_makings(config))


def ready_bytes(config: Config) -> int:
    """Return the maximum size of a shard of predecoded images; 0: the operator disabled them."""
    if config.cache.decoded == "off":
        return 0
    return memory_bytes() // (_READY_SHARE * _makings(config))


def _makings(config: Config) -> int:
    return min(max(1, workers_max(config) - 1), _MAKINGS_MAX)


def decode_options(config: Config) -> DecodeOptions:
    """Translate the ``decode`` section."""
    decode = config.decode
    auto = decode.workers == "auto" and config.autotune
    return DecodeOptions(
        workers=default_workers(decode.workers_max) if auto else workers_max(config),
        workers_max=decode.workers_max if auto else 0,
        cpus=decode.cpus,
        nice=decode.nice,
        task_deadline_s=decode.task_deadline,
        recycle_growth_bytes=decode.recycle_growth,
        memory_bytes=decode.memory,
        index_bytes=decode.index_size,
        readable=readable_by_workers(config) if decode.sandbox else None,
        environment=tuple(decode.environment),
    )


def readable_by_workers(config: Config) -> tuple[str, ...]:
    """Return what decode workers read besides their Python installation: tokenizers, and the operator's folders.

    Workers get descriptors of the shards that they decode, so they need no access to the cache directory.
    """
    tokenizers = () if config.decode.tokenizers is None else (config.decode.tokenizers,)
    return tuple(map(str, (*tokenizers, *config.decode.readable)))


def workers_max(config: Config) -> int:
    """Return the upper limit of decode workers."""
    return config.decode.workers_max if config.decode.workers == "auto" else config.decode.workers


@asynccontextmanager
async def _hinted(cache: Cache) -> AsyncIterator[None]:
    """Open a cache; if its disk may recover, the error names the option to start without the disk."""
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(cache)
        except CacheUnavailable as error:
            if may_pass(error):
                error.hint += "; with cache.bypass above 0 the daemon starts on memory and tries the directory again"
            raise
        yield


@asynccontextmanager
async def _tracing(share: float) -> AsyncIterator[TraceLog | None]:
    """Open the exporter of traces; None: tracing is off, and nothing of it is imported.

    Raises:
        BadConfig: the packages of the extra ``otel`` are not installed.
    """
    if not share:
        yield None
        return
    from feedd.flow.trace_log import TraceLog  # noqa: PLC0415 - only while tracing is on
    from feedd.observe.otel_spans import open_spans  # noqa: PLC0415 - an extra

    spans = await CPU.run(open_spans)
    try:
        yield TraceLog(share, spans)
    finally:
        await CPU.run(spans.close)


@asynccontextmanager
async def _peers(config: Config, sources: Sources, recorder: Recorder, clock: Clock) -> AsyncIterator[PeerCache | None]:
    """Open the peer cache; None: it is off, and nothing of it is imported.

    Raises:
        BadConfig: its address cannot be listened on, or a TLS file cannot be used.
    """
    if config.peers.listen is None:
        yield None
        return
    from feedd.peers.peer_cache import PeerCache  # noqa: PLC0415 - only with a peer cache

    async with PeerCache(peer_options(config, config.peers.listen), sources, recorder, clock) as peers:
        yield peers


def _load_plugins() -> None:
    """Import all formats, and find what the operator installed, because no request should read files for that."""
    format_registry.specs()
    for group in (plugins.CODECS, plugins.TRANSFORMS, plugins.STORES):
        plugins.names(group)


@asynccontextmanager
async def open_pipeline(
    config: Config,
    recorder: Recorder,
    clock: Clock,
    access_rules: AccessRules | None = None,
    *,
    standby: AbstractAsyncContextManager[None] | None = None,
) -> AsyncIterator[Pipeline]:
    """Open workers, cache and sources, and the pipeline over them; leave nothing behind.

    Args:
        config: effective configuration.
        recorder: takes the measurements.
        clock: the clock.
        access_rules: what each owner may read; None: everything, for a command.
        standby: waits until the cache's directory is free, and keeps it free until the cache is open. It is entered
            when everything that does not need the directory is open. None: the directory must be free.

    Raises:
        CacheUnavailable: the cache directory cannot be used, or another daemon uses it.
        ResourceExhausted: decode workers cannot be started.
    """
    rules = access_rules or AccessRules()
    options = PipelineOptions(
        window_shards=config.shuffle.window_shards,
        arena_bytes=config.arena.size,
        slots_max=config.arena.slots_max,
        ready_bytes=ready_bytes(config),
        readahead_bytes=readahead_bytes(config.fetch.bytes_in_flight, config.cache.size),
        access_rules=rules,
        channel_root=config.sagemaker.root,
        span_bytes=config.fetch.span_size,
        arena_per_owner_bytes=config.limits.arena_per_owner or (config.arena.size // 4 * 3 if config.shared else 0),
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(offered(config.decode.tokenizers))
        with contextlib.suppress(OSError):  # the cache reports it; workers that start before it must see the directory
            config.cache.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        await CPU.run(_load_plugins)
        pool = await stack.enter_async_context(DecodePool(decode_options(config), recorder))
        fetching = LoopThread("feedd-fetch")
        sources = await stack.enter_async_context(Sources(source_options(config, rules), recorder, clock, fetching))
        traces = await stack.enter_async_context(_tracing(config.trace.sample))
        if standby is not None:
            pool.warm()
            await sources.warm()
        async with standby or nullcontext():
            peers = await stack.enter_async_context(_peers(config, sources, recorder, clock))
            fetcher: SpanFetcher = sources.fetcher if peers is None else peers.fetcher
            converter = node_converter(config, fetcher, pool.make, recorder, traces, sources.packs.inflight)
            converter.expect = lambda name: pool.prepare(converters=(name,))
            inner = Cache(cache_options(config), converter, recorder, clock)
            await stack.enter_async_context(_hinted(inner))
        if peers is not None:
            await stack.enter_async_context(peers.serving(inner, rules))
        cache = await stack.enter_async_context(ConvertingCache(inner, converter))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        learned = Learned(config.cache.dir / "counts")
        await CACHE_DISK.run(learned.load)
        quarantine = Quarantine(config.cache.dir / config.quarantine.path, config.quarantine.size, recorder)
        stages = Stages(sources, cache, pool, recorder, clock, PackReads(sources, cache, group), traces=traces)
        pipeline = Pipeline(stages, options, group, learned, quarantine)
        stack.push_async_callback(pipeline.close)
        if standby is None:
            warming = group.create_task(sources.warm())
            stack.callback(warming.cancel)
        yield pipeline
