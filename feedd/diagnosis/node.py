"""Measures a node: asks its daemons, and reads the machine's counters if they run here."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, Protocol

from feedd import metrics
from feedd.diagnosis.machine import GpuReader, MachineReader, MachineReading
from feedd.diagnosis.window import FetchWindow, RankWindow, Window
from feedd.errors import FeeddError
from feedd.flow.pools import LOCAL_FILES
from feedd.wire import feedd_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from feedd.metrics import Metric

    Observe = Callable[[], Awaitable[pb.ObserveResponse]]

POLL_S: Final = 0.25
_REPORT_S: Final = 1.0
_STALE_S: Final = 2.0
_LONG_STEPS: Final = 5.0


@dataclass(slots=True)
class JobGroup:
    """The sessions of one job.

    Attributes:
        key: tells the job from others.
        sessions: its sessions, with the lane of each.
    """

    key: str
    sessions: list[tuple[int, pb.SessionEntry]] = field(default_factory=list)

    @property
    def ids(self) -> frozenset[str]:
        """The ids of its sessions."""
        return frozenset(one.id for _, one in self.sessions)

    def takes(self, session: pb.SessionEntry) -> bool:
        """Whether the session is another rank, or another DataLoader worker of a rank."""
        same = sum(one.rank == session.rank for _, one in self.sessions)
        return same < max(1, session.consumers)


def job_groups(sessions: Iterable[tuple[int, pb.SessionEntry]]) -> list[JobGroup]:
    """Return the jobs of a node: sessions of one owner, one name and one set of URLs, each rank once.

    Args:
        sessions: the node's sessions, with the lane of each.
    """
    found: dict[tuple[object, ...], list[JobGroup]] = {}
    for lane, one in sorted(sessions, key=lambda each: (-round(each[1].age_s), each[1].id)):
        likes = found.setdefault((one.owner, one.share, tuple(one.urls), one.world_size), [])
        job = next((each for each in likes if each.takes(one)), None)
        if job is None:
            job = JobGroup(one.id)
            likes.append(job)
        job.sessions.append((lane, one))
    return [job for likes in found.values() for job in likes]


def most_waiting(window: Window, jobs: Sequence[frozenset[str]]) -> tuple[int, Window]:
    """Return the index of the job whose trainers wait the longest, and the window with its ranks only.

    Args:
        window: a node; some ranks took batches.
        jobs: the ids of each job's sessions.
    """
    parts = [tuple(one for one in window.ranks if one.session in ids) for ids in jobs]
    number = max(range(len(parts)), key=lambda one: (sum(rank.wait_s for rank in parts[one]), len(parts[one])))
    return number, replace(window, ranks=parts[number] or window.ranks)


@dataclass(frozen=True, slots=True)
class Poll:
    """What is asked several times in a window: shares of sessions, parts in flight, listings, utilisation of a GPU."""

    fetching: float
    decoding: float
    parts: float
    lists: bool
    gpu: float | None


@dataclass(frozen=True)
class Look:
    """What was read at one moment.

    Attributes:
        at_s: when, on the monotonic clock.
        daemons: the answer of each daemon of the node, by lane; None: it did not answer.
        machine: counters of the machine, as far as they can be read.
        gpu: utilisation of the trainers' least busy GPU; None: not known.
        disk: name of the cache's disk, and its kind as far as it is known; empty: none.
        host: name of the machine; empty: not known.
    """

    at_s: float
    daemons: Sequence[pb.ObserveResponse | None]
    machine: MachineReading = field(default_factory=MachineReading)
    gpu: float | None = None
    disk: str = ""
    host: str = ""

    @cached_property
    def answers(self) -> list[pb.ObserveResponse]:
        """The answers of the daemons that did answer."""
        return [one for one in self.daemons if one is not None]

    @cached_property
    def sessions(self) -> list[pb.SessionEntry]:
        """The sessions of all daemons."""
        return [one for each in self.answers for one in each.sessions]

    @cached_property
    def poll(self) -> Poll:
        """What of this moment counts for the window that it lies in."""
        states = [one.waits_for for one in self.sessions if one.waits_for]
        fetching, decoding = (states.count(state) / max(1, len(states)) for state in ("fetching", "decoding"))
        parts, lists = self.total(metrics.FETCH_PARTS), self.total(metrics.PIPELINE_LISTING)
        return Poll(fetching, decoding, parts, lists > 0, self.gpu)

    def total(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        """Return a value summed over all daemons and over the labels that are not named."""
        name, wanted = metric.name + suffix, labels.items()
        return sum(
            sample.value
            for one in self.answers
            for sample in one.stats.samples
            if sample.name == name and wanted <= dict(sample.labels).items()
        )

    def caches(self) -> list[pb.CacheState]:
        """Return the caches of the daemons that have one."""
        return [one.stats.cache for one in self.answers if one.stats.HasField("cache")]


class NodeReader:
    """Looks at one node. Counters of the machine are read in a pool, because ``/proc`` may be slow."""

    def __init__(
        self,
        daemons: Sequence[Observe],
        *,
        local: bool,
        all_answer: bool = False,
        gpus: Callable[[], GpuReader] = GpuReader,
        machine: Callable[[Iterable[int], str], MachineReader] = MachineReader,
    ) -> None:
        """Keep what to ask.

        Args:
            daemons: look at one daemon of the node each, by lane.
            local: the daemons run on this machine, so its counters are theirs.
            all_answer: a daemon that does not answer is an error, even if others do.
            gpus: opens the reader of GPUs.
            machine: opens the reader of counters, for these daemons and the directory of their cache.
        """
        self._daemons = daemons
        self._local = local
        self._all_answer = all_answer
        self._open_gpus, self._open_machine = gpus, machine
        self._readers: tuple[MachineReader, GpuReader] | None = None

    async def look(self, *, counters: bool = True) -> Look:
        """Return what is to be seen at this moment; without ``counters``, of the machine only its GPUs.

        Raises:
            FeeddError: no daemon of the node answers.
        """
        found = await asyncio.gather(*(observe() for observe in self._daemons), return_exceptions=True)
        errors = [one for one in found if isinstance(one, BaseException)]
        for error in errors:
            if self._all_answer or not isinstance(error, FeeddError) or len(errors) == len(found):
                raise error
        look = Look(time.monotonic(), [None if isinstance(one, BaseException) else one for one in found])
        if self._local:
            look = replace(look, host=os.uname().nodename)
            with suppress(OSError):
                look = await LOCAL_FILES.run(self._with_machine, look, counters)
        return look

    def close(self) -> None:
        """Close what was opened to read the machine."""
        if self._readers is not None:
            self._readers[1].close()

    def _with_machine(self, look: Look, counters: bool) -> Look:  # noqa: FBT001 - the pool passes positions
        daemons = {one.stats.pid for one in look.answers if one.stats.pid}
        trainers = {pid for one in look.sessions for pid in one.pids}
        if self._readers is None:
            directory = next((one.directory for one in look.caches()), "/")
            self._readers = self._open_machine(daemons, directory), self._open_gpus()
        machine, gpus = self._readers
        reading = machine.read(daemons | trainers) if counters else look.machine
        disk = f"{machine.disk} {machine.disk_kind}".strip()
        return replace(look, at_s=time.monotonic(), machine=reading, gpu=gpus.busy(trainers), disk=disk)


class DaemonClient(Protocol):
    """A daemon's client: ``AdminClient``."""

    async def stats(self) -> pb.StatsResponse:
        """Return the daemon's metrics."""

    async def sessions(self) -> list[pb.SessionEntry]:
        """Return the sessions that the user may see."""


async def _stats_and_sessions(daemon: DaemonClient, job: str) -> pb.ObserveResponse:
    """Return metrics and sessions of a daemon; its cache and log, which take longer, are not asked for."""
    stats, sessions = await asyncio.gather(daemon.stats(), daemon.sessions())
    return pb.ObserveResponse(stats=stats, sessions=[one for one in sessions if _is_of(one, job)])


def _is_of(session: pb.SessionEntry, job: str) -> bool:
    return not job or session.share == job or session.id.startswith(job) or job in map(str, session.pids)


async def measure(
    daemons: Sequence[DaemonClient],
    seconds: float,
    *,
    job: str = "",
    local: bool = True,
    gpus: Callable[[], GpuReader] = GpuReader,
    machine: Callable[[Iterable[int], str], MachineReader] = MachineReader,
) -> Window:
    """Return what happens in the next ``seconds``, to the trainers of the job that waits the longest.

    Args:
        daemons: clients of the node's daemons.
        seconds: how long to measure.
        job: the first digits of a session, the ``share=`` of a group, or a trainer's process id: only its sessions
            count; empty: all.
        local: the daemons run on this machine, so its counters are theirs.
        gpus: as of ``NodeReader``.
        machine: as of ``NodeReader``.

    Raises:
        FeeddError: a daemon does not answer.
    """
    asks = [partial(_stats_and_sessions, one, job) for one in daemons]
    reader = NodeReader(asks, local=local, all_answer=True, gpus=gpus, machine=machine)
    try:
        first = await reader.look()
        polls = []
        while time.monotonic() - first.at_s < seconds - POLL_S:
            await asyncio.sleep(POLL_S)
            polls.append((await reader.look(counters=False)).poll)
        await asyncio.sleep(max(0.0, first.at_s + seconds - time.monotonic()))
        last = await reader.look()
    finally:
        reader.close()
    window = window_between(first, last, polls)
    jobs = [one.ids for one in job_groups((0, session) for session in last.sessions)]
    return replace(most_waiting(window, jobs)[1], job_count=len(jobs)) if window.ranks else window


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def window_between(first: Look, last: Look, polls: Sequence[Poll]) -> Window:
    """Return what happened between two moments.

    Args:
        first: the earlier look.
        last: the later look.
        polls: what was asked between them.
    """
    seconds = last.at_s - first.at_s
    gpus = [one.gpu for one in polls if one.gpu is not None]
    before, after = first.machine, last.machine
    workers = (first.total(metrics.DECODE_WORKERS) + last.total(metrics.DECODE_WORKERS)) / 2
    busy_s = last.total(metrics.DECODE_BUSY) - first.total(metrics.DECODE_BUSY)
    daemons = [one.stats.pid for one in last.answers if one.stats.pid]
    loops = [busy for pid in daemons if (busy := _main_busy(before, after, pid, seconds)) is not None]
    return Window(
        seconds=seconds,
        ranks=tuple(rank for one in last.sessions if (rank := rank_window(one, first, last)) is not None),
        fetch=_fetch(first, last, _mean([one.parts for one in polls])),
        fetching=_mean([one.fetching for one in polls]),
        decoding=_mean([one.decoding for one in polls]),
        workers=workers,
        worker_busy=min(1.0, max(0.0, busy_s) / (workers * seconds)) if workers else 0.0,
        core_busy=_cores(before, after),
        cpu_pressure=_share(before.cpu_pressure_s, after.cpu_pressure_s, seconds),
        disk_busy=_share(before.disk_busy_s, after.disk_busy_s, seconds),
        disk=last.disk,
        loop_busy=max(loops, default=None),
        gpu_busy=_mean(gpus) if gpus else None,
        link_sent=_link_sent(before, after, seconds),
        listing=_mean([float(one.lists) for one in polls]),
    )


def _share(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else min(1.0, max(0.0, after - before) / seconds)


def _cores(before: MachineReading, after: MachineReading) -> tuple[float, ...]:
    shares = []
    for core, (busy_s, total_s) in sorted(after.cores.items()):
        past_busy_s, past_total_s = before.cores.get(core, (0.0, 0.0))
        passed_s = total_s - past_total_s
        shares.append(min(1.0, max(0.0, (busy_s - past_busy_s) / passed_s)) if passed_s > 0 else 0.0)
    return tuple(shares)


def _link_sent(before: MachineReading, after: MachineReading, seconds: float) -> float | None:
    shares = [
        (sent_bytes - before.links[name][0]) / (bytes_per_s * seconds)
        for name, (sent_bytes, bytes_per_s) in after.links.items()
        if name in before.links
    ]
    return max(shares, default=None)


def _main_busy(before: MachineReading, after: MachineReading, pid: int, seconds: float) -> float | None:
    past, present = before.processes.get(pid), after.processes.get(pid)
    if past is None or present is None:
        return None
    return _share(past.main_thread_s, present.main_thread_s, seconds)


def _fetch(first: Look, last: Look, parts: float) -> FetchWindow:
    def grown(metric: Metric, suffix: str = "", **labels: str) -> float:
        return max(0.0, last.total(metric, suffix, **labels) - first.total(metric, suffix, **labels))

    requests = grown(metrics.SOURCE_SECONDS, "_count", op="read")
    firsts = grown(metrics.SOURCE_FIRST_BYTE, "_count")
    trips = grown(metrics.SOURCE_ROUND_TRIP, "_count")
    return FetchWindow(
        requests=round(requests),
        read_bytes=round(grown(metrics.SOURCE_BYTES)),
        request_s=grown(metrics.SOURCE_SECONDS, "_sum", op="read") / requests if requests else 0.0,
        first_byte_s=grown(metrics.SOURCE_FIRST_BYTE, "_sum") / firsts if firsts else None,
        throttled=round(grown(metrics.SOURCE_RETRIES, reason="throttled")),
        round_trip_s=grown(metrics.SOURCE_ROUND_TRIP, "_sum") / trips if trips else None,
        parts=parts,
        parts_max=round(last.total(metrics.FETCH_PARTS_MAX)),
        hits=round(grown(metrics.CACHE_HITS)),
        misses=round(grown(metrics.CACHE_MISSES)),
        evictions=round(grown(metrics.CACHE_EVICTIONS)),
        cache_limit_bytes=sum(one.limit_bytes for one in last.caches()),
        assigned_bytes=sum(one.assigned_bytes for one in last.sessions),
        assigned_shards=sum(one.assigned_shards for one in last.sessions),
        object_bytes=min((one.object_bytes for one in last.sessions if one.object_bytes), default=0),
        peer_bytes=round(grown(metrics.PEER_READ_BYTES)),
        peer_fetches=round(grown(metrics.PEER_FETCHES)),
        peer_failures=round(grown(metrics.PEER_FETCHES, outcome="failed")),
        peers_paused=round(last.total(metrics.PEER_PAUSED)),
        largest_bytes=max((one.largest_shard_bytes for one in last.sessions), default=0),
    )


def rank_window(after: pb.SessionEntry, first: Look, last: Look) -> RankWindow | None:
    """Return a session's trainer over the window; None if it has not told its times yet."""
    if not after.HasField("times"):
        return None
    before = next((one for one in first.sessions if one.id == after.id and one.HasField("times")), None)
    now, past = after.times, None if before is None else before.times
    if past is not None and past.wall_s > now.wall_s:
        past = None  # another process reads through the session
    seconds = last.at_s - first.at_s
    wall_s = now.wall_s - (0.0 if past is None else past.wall_s)
    wait_s = now.wait_s - (0.0 if past is None else past.wait_s)
    pause_s = now.pause_s - (0.0 if past is None else past.pause_s)
    usual_s = now.wall_s / now.steps if now.steps else 0.0
    # A trainer tells its times when it takes batches, once a second at most.
    if after.times_age_s > (max(_STALE_S, _LONG_STEPS * usual_s) if wall_s else max(_REPORT_S, 2 * usual_s)):
        silent_s = min(seconds, after.times_age_s)
        # While a trainer pauses, the daemon fills its slots. Slots that a starving one gave back may not be back yet.
        starves = after.waits_for in {"fetching", "decoding"} and after.leases <= max(1, after.slots // 2)
        wall_s, wait_s = wall_s + silent_s, wait_s + (silent_s if starves else 0.0)
        pause_s += 0.0 if starves else silent_s
    pid = after.pids[0] if len(after.pids) == 1 else 0
    started, ended = first.machine.processes.get(pid), last.machine.processes.get(pid)
    written = None if started is None or ended is None else ended.since(started)
    return RankWindow(
        session=after.id,
        rank=after.rank,
        steps=now.steps - (0 if past is None else past.steps),
        wall_s=max(0.0, wall_s),
        wait_s=max(0.0, wait_s),
        pause_s=max(0.0, pause_s),
        device=now.device,
        unpinned=now.unpinned,
        inline=after.inline,
        host_busy=_main_busy(first.machine, last.machine, pid, seconds),
        written_bytes=None if written is None else written.written_bytes,
        write_calls=None if written is None else written.write_calls,
        copy_s=max(0.0, now.copy_s - (0.0 if past is None else past.copy_s)),
    )
