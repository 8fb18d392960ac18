"""What the Admin service answers about the daemon: its state, its sessions, its cache, its log."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from feedd import __version__
from feedd.wire import feedd_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from feedd.serve.admin_service import Daemon
    from feedd.serve.callers import Caller
    from feedd.serve.served_session import ServedSession
    from feedd.serve.server_options import CacheState, FolderRow, ServeHooks

ID_DIGITS: Final = 8
"""First digits of a session's id that others may see."""
_URLS_SHOWN: Final = 3


def stats_message(hooks: ServeHooks, daemon: Daemon, session_count: int) -> pb.StatsResponse:
    """Return the state and every metric; metrics name no objects and no users."""
    samples = [] if hooks.samples is None else list(hooks.samples())
    return pb.StatsResponse(
        state=daemon.state().value,
        version=__version__,
        daemon_id=daemon.id,
        uptime_s=daemon.clock.monotonic_s() - daemon.started_s,
        sessions=session_count,
        samples=[pb.Sample(name=s.name, labels=dict(s.labels), value=s.value) for s in samples],
        cache=None if hooks.cache_state is None else _cache_message(hooks.cache_state()),
        lanes=daemon.lane_count,
        pid=os.getpid(),
    )


async def observation(
    hooks: ServeHooks, daemon: Daemon, caller: Caller, sessions: Sequence[ServedSession]
) -> pb.ObserveResponse:
    """Return one look at the daemon: everything for an administrator, else what is the caller's own.

    Args:
        hooks: callbacks of the daemon.
        daemon: facts about it.
        caller: who looks.
        sessions: the sessions that the caller may see.
    """
    folders = [] if hooks.cache_folders is None else await hooks.cache_folders()
    bad_samples = [] if hooks.bad_samples is None else hooks.bad_samples()
    log = hooks.log() if caller.administers and hooks.log is not None else ()
    return pb.ObserveResponse(
        stats=stats_message(hooks, daemon, len(sessions)),
        sessions=[session_entry(one, daemon.clock.monotonic_s()) for one in sessions],
        log=[pb.LogEntry(age_s=one.age_s, level=one.level, text=one.text, count=one.count) for one in log],
        bad_samples=[
            pb.BadSample(
                id=one.number,
                url=one.url,
                key=one.key,
                field=one.field,
                reason=one.reason,
                epoch=one.epoch,
                age_s=one.age_s,
                outcome=one.outcome,
            )
            for one in bad_samples
            if caller.administers or one.owner == caller.owner
        ],
        folders=[
            pb.CacheFolder(url=one.url, entries=one.entry_count, bytes=one.size_bytes, pinned_bytes=one.pinned_bytes)
            for one in _shown_folders(folders, caller, sessions)
        ],
    )


def _shown_folders(
    folders: Iterable[FolderRow], caller: Caller, sessions: Iterable[ServedSession]
) -> Iterable[FolderRow]:
    if caller.administers:
        return folders
    starts = tuple(url_starts(sessions))
    return [one for one in folders if one.url and one.url.startswith(starts)]


def url_starts(sessions: Iterable[ServedSession]) -> Iterator[str]:
    """Yield the URLs that sessions read, without the names of formats. URLs with braces are left out.

    What stands before a brace may cover objects that the owner may not read.
    """
    for hosted in sessions:
        for url in hosted.spec.data.urls:
            kinds, separator, rest = url.partition("://")
            if "{" in url or not rest:
                continue
            yield kinds.rpartition("+")[2] + separator + rest


def session_entry(hosted: ServedSession, now_s: float) -> pb.SessionEntry:
    """Return who holds what in a session."""
    slots, machine = hosted.feed.slots, hosted.machine
    progress = machine.progress
    return pb.SessionEntry(
        id=hosted.id[:ID_DIGITS],
        owner=str(hosted.spec.owner),
        pids=sorted({lifeline.pid for lifeline in hosted.lifelines}),
        urls=list(hosted.spec.data.urls[:_URLS_SHOWN]),
        slots=slots.slot_count,
        leases=machine.leases.leased_count,
        arena_bytes=slots.slot_count * slots.slot_bytes,
        age_s=now_s - hosted.opened_s,
        silent_s=now_s - hosted.heard_s,
        times=hosted.times,
        times_age_s=now_s - hosted.times_at_s,
        rank=hosted.spec.order.topology.rank,
        world_size=hosted.spec.order.topology.world_size,
        share=hosted.spec.session.share,
        waits_for=hosted.waits_for,
        assigned_shards=hosted.feed.info.assigned_shard_count,
        assigned_bytes=hosted.feed.info.assigned_bytes,
        inline=hosted.sent_bytes > 0 and not hosted.had_lifeline,
        largest_shard_bytes=hosted.feed.info.largest_shard_bytes,
        object_bytes=hosted.feed.info.object_bytes,
        epoch=progress.epoch,
        step=progress.step,
        steps=hosted.feed.steps(progress.epoch),
        batch_size=hosted.spec.order.batch_size,
        ready=0 if machine.stream is None else machine.stream.ready_count,
        consumers=hosted.spec.session.consumer_count,
    )


def _cache_message(state: CacheState) -> pb.CacheState:
    return pb.CacheState(
        directory=state.directory,
        limit_bytes=state.limit_bytes,
        free_reserve_bytes=state.free_reserve_bytes,
        committed_bytes=state.committed_bytes,
        reserved_bytes=state.reserved_bytes,
        entries=state.entry_count,
        pins=state.pin_count,
    )
