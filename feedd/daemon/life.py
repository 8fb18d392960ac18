"""Start, serve, drain, stop: one task tree, closed in the reverse order of its opening."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import resource
import secrets
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from feedd import __version__, metrics
from feedd.clock import SystemClock
from feedd.config import render
from feedd.config.types import is_unix
from feedd.daemon.cache_admin import cache_remove, cache_state
from feedd.daemon.cache_folders import CacheFolders
from feedd.daemon.cut_short import ended_by
from feedd.daemon.failures import single
from feedd.daemon.heartbeat import beat, beat_of_fetches
from feedd.daemon.node_page import NodePage, page_access
from feedd.daemon.notify import Notifier
from feedd.daemon.object_files import ReadObjects
from feedd.daemon.process_tree import Holders
from feedd.daemon.signals import StopRequests, handled
from feedd.daemon.stage_watch import StageWatch
from feedd.daemon.standby import owner_gone
from feedd.daemon.state import State
from feedd.daemon.warm_up import WarmBounds, Warmer
from feedd.daemon.watchdog import Watchdog, WatchdogOptions
from feedd.daemon.web_view import DaemonView
from feedd.daemon.wiring import open_pipeline
from feedd.flow.doors import PortLimits
from feedd.observe.recent_log import RECENT
from feedd.observe.recorder import PrometheusRecorder
from feedd.observe.status import StatusSource, open_status
from feedd.serve.grpc_server import FeedServer
from feedd.serve.server_options import (
    BadSampleRow,
    CacheRow,
    LogLine,
    ServeHooks,
    ServeOptions,
    StatSample,
    TlsFiles,
)
from feedd.values import Lifecycle
from feedd.workers import sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from feedd.config import Config, Effective
    from feedd.observe.page_access import PageAccess
    from feedd.protocols import Clock
    from feedd.sessions.opening import Pipeline

    OnReady = Callable[[Sequence[str], str | None, int], None]

UNWIND_S = 60.0  # longest time for closing everything; then all stacks are dumped and the process ends
_YOUNG_OBJECTS = 10_000  # net allocations between two collections; Python's default is 700
HURRIED_UNWIND_S = 5.0  # the same limit after a second signal

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Life:
    """Parts of one run of the daemon that exist before any stage is open."""

    config: Config
    recorder: PrometheusRecorder
    clock: Clock
    state: State
    notifier: Notifier
    access: PageAccess
    on_ready: OnReady | None = None
    standby: bool = False
    requests: StopRequests = field(default_factory=StopRequests)
    daemon_id: str = field(default_factory=lambda: secrets.token_hex(8))


async def run(
    effective: Effective,
    *,
    ephemeral: bool = False,
    standby: bool = False,
    on_ready: OnReady | None = None,
) -> int:
    """Run the daemon until it is asked to stop; return the process's exit code.

    Args:
        effective: configuration, already checked.
        ephemeral: stop when the last process that holds the daemon ends, or when none connects.
        standby: open everything else, then wait until the daemon that owns the cache directory has ended.
        on_ready: called once with the trainers' addresses, the page's address with its token (None: there is none), and
            the bytes that the cache may take.

    Raises:
        FeeddError: the start failed; everything opened is closed again.
    """
    faulthandler.enable()
    sandbox.hide_this_process()  # its memory and environment hold credentials, which decode workers must not read
    recorder, notifier = PrometheusRecorder(), Notifier(os.environ)
    state, access = State(recorder, notifier), page_access(effective)
    life = _Life(effective.config, recorder, SystemClock(), state, notifier, access, on_ready, standby)
    _log_start(effective, life)
    try:
        with handled(life.requests):
            await _live(life, ephemeral=ephemeral)
    except BaseExceptionGroup as group:
        error = single(group)
        if error is group:
            raise
        raise error from group
    finally:
        faulthandler.cancel_dump_traceback_later()
        life.state.move(Lifecycle.STOPPED, reason=life.requests.reason or "error", **_totals(life))
    return 0


async def _live(life: _Life, *, ephemeral: bool) -> None:
    """Open the tree, wait, drain; the exit closes it."""
    requests, holders = life.requests, Holders(life.requests)
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        options = WatchdogOptions(life.config.watchdog.dump_after, life.config.watchdog.exit_after)
        watchdog = stack.enter_context(Watchdog(options))
        background = [group.create_task(beat(life.recorder, life.clock, life.notifier, watchdog))]
        if ephemeral:
            background.append(group.create_task(holders.expect_first(life.clock)))
        for task in background:
            stack.callback(task.cancel)
        server, page_url, cache_bytes = None, None, 0
        async with ended_by(requests.drain):  # a signal ends a long start early
            server, page_url, cache_bytes = await _open(life, stack, watchdog, holders if ephemeral else None)
        if server is not None and not requests.drain.is_set():
            _spare_the_collector()
            life.state.move(Lifecycle.READY, addresses=server.addresses)
            if life.on_ready is not None:
                life.on_ready(server.addresses, page_url, cache_bytes)
            await requests.drain.wait()
        grace_s = life.config.drain.grace if requests.grace_s is None else requests.grace_s
        life.state.move(Lifecycle.DRAINING, reason=requests.reason, grace_s=grace_s)
        if server is not None:
            async with ended_by(requests.now):
                await server.drain(grace_s)
        unwind_s = HURRIED_UNWIND_S if requests.now.is_set() else UNWIND_S
        faulthandler.dump_traceback_later(unwind_s, exit=True)


async def _open(
    life: _Life, stack: AsyncExitStack, watchdog: Watchdog, holders: Holders | None
) -> tuple[FeedServer, str | None, int]:
    """Open status page, stages and server, in this order, into ``stack``.

    Returns:
        The server, the page's address, and the bytes that the cache may take.
    """
    config = life.config
    view = DaemonView()
    is_lane = config.status is not None and is_unix(config.status)
    source = StatusSource(
        recorder=life.recorder,
        state=lambda: life.state.now,
        version=__version__,
        daemon_id=life.daemon_id,
        started_s=life.state.started_s,
        view=view.for_supervisor if is_lane else view.page(),
    )
    open_page = None if config.status is None else partial(open_status, config.status, source, life.access)
    page = NodePage(open_page, life.access, standby=life.standby)
    await page.open_early(stack, config.listen)
    standby = _as_standby(life) if life.standby else None
    pipeline = await stack.enter_async_context(
        open_pipeline(config, life.recorder, life.clock, config.access_rules, standby=standby)
    )
    group = await stack.enter_async_context(asyncio.TaskGroup())
    work_loop = pipeline.stages.sources.work_loop
    beating = group.create_task(beat_of_fetches(life.recorder, work_loop, life.clock, watchdog))
    stack.callback(beating.cancel)
    hooks = ServeHooks(
        samples=lambda: _stat_samples(life.recorder),
        cache_entries=lambda: _cache_rows(pipeline),
        cache_state=lambda: cache_state(config.cache, pipeline.cache),
        cache_remove=lambda pattern: cache_remove(pipeline.cache, pattern),
        warm=Warmer(
            pipeline.stages.sources, pipeline.cache, WarmBounds.of(config), config.access_rules, config.fetch.span_size
        ).warm,
        drain=lambda grace_s: life.requests.ask("admin", grace_s),
        on_holders=holders.on_change if holders else None,
        log=_log_lines,
        bad_samples=lambda: _bad_sample_rows(pipeline, life.clock),
        cache_folders=CacheFolders(pipeline.cache.entries, life.clock).rows,
        files=ReadObjects(pipeline.stages.sources, pipeline.cache, config.access_rules),
    )
    server = FeedServer(pipeline, _serve_options(life), life.recorder, life.clock, hooks)
    await stack.enter_async_context(server)
    watching = group.create_task(StageWatch(life.recorder, pipeline.stages.sources, server.sessions).watch(life.clock))
    stack.callback(watching.cancel)
    view.parts = server, pipeline
    await page.open_late(stack, life.clock, server.addresses)
    if page.bound is not None:
        _log.info("status page", address=page.bound)
    return server, page.url, pipeline.cache.limit_bytes


@asynccontextmanager
async def _as_standby(life: _Life) -> AsyncIterator[None]:
    """Wait until the former daemon has ended; everything but its directory and sockets is open."""
    life.state.move(Lifecycle.STANDBY, cache=str(life.config.cache.dir))
    async with owner_gone(life.config.cache.dir):
        _log.info("takes over from the former daemon")
        yield


def _spare_the_collector() -> None:
    """Exclude the long-lived objects from garbage collection, and collect the others less often.

    Modules and S3's service model are 130,000 objects. Walking them stops the event loop for tens of milliseconds and
    took a fifth of the loop's time in a first epoch. Batches leave hardly any reference cycles behind.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


def _serve_options(life: _Life) -> ServeOptions:
    config, limits = life.config, PortLimits.of_process()
    tls = config.tls
    return ServeOptions(
        listen=tuple(config.listen),
        tls=TlsFiles(tls.cert, tls.key, tls.client_ca) if tls.cert and tls.key else None,
        allow_insecure_tcp=config.security.allow_insecure_tcp,
        allow_anonymous_tcp=config.security.allow_anonymous_tcp,
        socket_mode=int(config.security.socket_mode, 8),
        allow_uids=tuple(config.security.allow_uids),
        admin_socket=config.admin_socket,
        sessions_max=config.limits.sessions,
        sessions_per_owner=config.limits.sessions_per_owner,
        warmups_per_owner=config.limits.warmups_per_owner,
        arena_connections_max=limits.arena,
        grpc_connections_max=limits.grpc,
        admin_connections_max=limits.admin,
        daemon_id=life.daemon_id,
        lane_count=config.lanes,
    )


def _stat_samples(recorder: PrometheusRecorder) -> Iterator[StatSample]:
    for sample in recorder.samples():
        yield StatSample(sample.name, sample.labels, sample.value)


def _cache_rows(pipeline: Pipeline) -> Iterator[CacheRow]:
    for entry in pipeline.cache.entries():
        yield CacheRow(entry.url, entry.etag, entry.size_bytes, entry.pins, entry.conversion)


def _log_lines() -> Iterator[LogLine]:
    for line in RECENT.lines():
        yield LogLine(line.text, line.level, time.monotonic() - line.at_s, line.count)


def _bad_sample_rows(pipeline: Pipeline, clock: Clock) -> Iterator[BadSampleRow]:
    for one in pipeline.bad_samples.all():
        why, age_s = one.failure, clock.monotonic_s() - one.at_s
        about = (one.number, one.owner, why.url, why.key, why.field, why.reason)
        yield BadSampleRow(*about, one.epoch, age_s, one.outcome)


def _log_start(effective: Effective, life: _Life) -> None:
    """Log the first line: the whole effective configuration, and the origin of each value that is not a default."""
    life_facts = {"version": __version__, "daemon_id": life.daemon_id, "pid": os.getpid()}
    origins = {name: origin for name, origin in effective.origins.items() if origin != "default"}
    files = _raise_file_limit()
    _log.info("starting", **life_facts, config=render(effective.config), origins=origins, open_files_max=files)


def _raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _totals(life: _Life) -> dict[str, object]:
    total = life.recorder.total
    return {
        "uptime_s": round(life.state.uptime_s(), 1),
        "fetched_bytes": int(total(metrics.SOURCE_BYTES)),
        "samples": int(total(metrics.DECODE_SAMPLES)),
        "batches": int(total(metrics.SERVE_BATCHES)),
        "batch_bytes": int(total(metrics.SERVE_BATCH_BYTES)),
        "cache_hits": int(total(metrics.CACHE_HITS)),
        "cache_misses": int(total(metrics.CACHE_MISSES)),
        "bad_samples": int(total(metrics.DECODE_BAD_SAMPLES)),
    }
