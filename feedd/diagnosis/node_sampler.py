"""Measures a node over some seconds: asks its daemons, and reads the machine's counters if they run here."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from feedd import metrics
from feedd.diagnosis.gpu_reader import GpuReader
from feedd.diagnosis.job_groups import job_groups, most_waiting
from feedd.diagnosis.machine_reader import MachineReader, MachineReading
from feedd.diagnosis.window import FetchWindow, RankWindow, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from feedd.metrics import Metric
    from feedd.wire import feedd_pb2 as pb

POLL_S: Final = 0.25
_REPORT_S: Final = 1.0
_STALE_S: Final = 2.0
_LONG_STEPS: Final = 5.0


class Gpus(Protocol):
    """Reads GPUs: ``GpuReader``."""

    def busy(self, pids: Collection[int]) -> float | None:
        """Return the utilisation of the least busy GPU of these processes; None: not known."""

    def close(self) -> None:
        """Close the reader."""


@dataclass(frozen=True, slots=True)
class Readers:
    """What reads this machine.

    Attributes:
        gpus: opens the reader of GPUs.
        machine: opens the reader of counters, for these daemons and the directory of their cache.
    """

    gpus: Callable[[], Gpus] = GpuReader
    machine: Callable[[Iterable[int], str], MachineReader] = MachineReader


class DaemonClient(Protocol):
    """A daemon's client: ``AdminClient``."""

    async def stats(self) -> pb.StatsResponse:
        """Return the daemon's metrics."""

    async def sessions(self) -> list[pb.SessionEntry]:
        """Return the sessions that the user may see."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything that was read at one moment."""

    at_s: float
    stats: list[pb.StatsResponse]
    sessions: list[pb.SessionEntry]
    machine: MachineReading

    def total(self, name: str, **labels: str) -> float:
        """Return a value summed over all daemons and over the labels that are not named."""
        return _total(self.stats, name, **labels)


@dataclass(frozen=True, slots=True)
class Poll:
    """What is asked several times in a window: shares of sessions, parts in flight, listings, utilisation of a GPU."""

    fetching: float
    decoding: float
    parts: float
    lists: bool
    gpu: float | None

    @classmethod
    def of(cls, sessions: Iterable[pb.SessionEntry], stats: Iterable[pb.StatsResponse], gpu: float | None) -> Poll:
        """Return what sessions and daemons tell at one moment, with the utilisation of a GPU if it is known."""
        states = [one.waits_for for one in sessions if one.waits_for]
        fetching, decoding = (states.count(state) / max(1, len(states)) for state in ("fetching", "decoding"))
        parts, lists = (_total(stats, metric.name) for metric in (metrics.FETCH_PARTS, metrics.PIPELINE_LISTING))
        return cls(fetching, decoding, parts, lists > 0, gpu)


class NodeSampler:
    """Measures the daemons of one node."""

    def __init__(
        self,
        daemons: Sequence[DaemonClient],
        *,
        job: str = "",
        local: bool = True,
        readers: Readers = Readers(),
    ) -> None:
        """Store what to ask.

        Args:
            daemons: clients of the node's daemons.
            job: the first digits of a session, the ``share=`` of a group, or a trainer's process id: only its sessions
                count; empty: all.
            local: the daemons run on this machine, so its counters are theirs.
            readers: what reads this machine.
        """
        self._daemons = daemons
        self._job = job
        self._local = local
        self._reader: MachineReader | None = None
        self._readers = readers
        self._gpus = readers.gpus() if local else None

    async def measure(self, seconds: float) -> Window:
        """Return what happened in the next ``seconds``, to the trainers of the job that waits the longest.

        Raises:
            FeeddError: a daemon does not answer.
        """
        first = await self._moment()
        polls = []
        while time.monotonic() - first.at_s < seconds - POLL_S:
            await asyncio.sleep(POLL_S)
            polls.append(await self._poll())
        await asyncio.sleep(max(0.0, first.at_s + seconds - time.monotonic()))
        last = await self._moment()
        if self._gpus is not None:
            self._gpus.close()
        window = window_between(first, last, polls, self._disk)
        jobs = [job.ids for job in job_groups((0, one) for one in last.sessions)]
        return replace(most_waiting(window, jobs)[1], job_count=len(jobs)) if window.ranks else window

    async def _poll(self) -> Poll:
        sessions = await self._sessions()
        pids = {pid for one in sessions for pid in one.pids}
        gpu = None if self._gpus is None else self._gpus.busy(pids)
        return Poll.of(sessions, await self._stats(), gpu)

    @property
    def _disk(self) -> str:
        return "" if self._reader is None else f"{self._reader.disk} {self._reader.disk_kind}".strip()

    async def _moment(self) -> Moment:
        stats, sessions = await self._stats(), await self._sessions()
        if self._local and self._reader is None:
            directory = next((one.cache.directory for one in stats if one.HasField("cache")), "/")
            self._reader = self._readers.machine([one.pid for one in stats if one.pid], directory)
        pids = {one.pid for one in stats if one.pid} | {pid for one in sessions for pid in one.pids}
        reading = MachineReading() if self._reader is None else self._reader.read(pids)
        return Moment(time.monotonic(), stats, sessions, reading)

    async def _stats(self) -> list[pb.StatsResponse]:
        return list(await asyncio.gather(*(daemon.stats() for daemon in self._daemons)))

    async def _sessions(self) -> list[pb.SessionEntry]:
        found = await asyncio.gather(*(daemon.sessions() for daemon in self._daemons))
        return [one for sessions in found for one in sessions if _is_of(one, self._job)]


def _is_of(session: pb.SessionEntry, job: str) -> bool:
    return not job or session.share == job or session.id.startswith(job) or job in map(str, session.pids)


def _total(stats: Iterable[pb.StatsResponse], name: str, **labels: str) -> float:
    wanted = labels.items()
    return sum(
        sample.value
        for one in stats
        for sample in one.samples
        if sample.name == name and wanted <= dict(sample.labels).items()
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def window_between(first: Moment, last: Moment, polls: Sequence[Poll], disk: str) -> Window:
    """Return what happened between two moments.

    Args:
        first: the earlier moment.
        last: the later moment.
        polls: what was asked meanwhile.
        disk: name of the cache's disk; empty: none.
    """
    seconds = last.at_s - first.at_s
    gpus = [one.gpu for one in polls if one.gpu is not None]
    before, after = first.machine, last.machine
    workers = (first.total(metrics.DECODE_WORKERS.name) + last.total(metrics.DECODE_WORKERS.name)) / 2
    busy_s = last.total(metrics.DECODE_BUSY.name) - first.total(metrics.DECODE_BUSY.name)
    daemons = [one.pid for one in last.stats if one.pid]
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
        disk=disk,
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


def _fetch(first: Moment, last: Moment, parts: float) -> FetchWindow:
    def grown(metric: Metric, suffix: str = "", **labels: str) -> float:
        name = metric.name + suffix
        return max(0.0, last.total(name, **labels) - first.total(name, **labels))

    requests = grown(metrics.SOURCE_SECONDS, "_count", op="read")
    firsts = grown(metrics.SOURCE_FIRST_BYTE, "_count")
    trips = grown(metrics.SOURCE_ROUND_TRIP, "_count")
    caches = [one.cache for one in last.stats if one.HasField("cache")]
    return FetchWindow(
        requests=round(requests),
        read_bytes=round(grown(metrics.SOURCE_BYTES)),
        request_s=grown(metrics.SOURCE_SECONDS, "_sum", op="read") / requests if requests else 0.0,
        first_byte_s=grown(metrics.SOURCE_FIRST_BYTE, "_sum") / firsts if firsts else None,
        throttled=round(grown(metrics.SOURCE_RETRIES, reason="throttled")),
        round_trip_s=grown(metrics.SOURCE_ROUND_TRIP, "_sum") / trips if trips else None,
        parts=parts,
        parts_max=round(last.total(metrics.FETCH_PARTS_MAX.name)),
        hits=round(grown(metrics.CACHE_HITS)),
        misses=round(grown(metrics.CACHE_MISSES)),
        evictions=round(grown(metrics.CACHE_EVICTIONS)),
        cache_limit_bytes=sum(one.limit_bytes for one in caches),
        assigned_bytes=sum(one.assigned_bytes for one in last.sessions),
        assigned_shards=sum(one.assigned_shards for one in last.sessions),
        object_bytes=min((one.object_bytes for one in last.sessions if one.object_bytes), default=0),
        peer_bytes=round(grown(metrics.PEER_READ_BYTES)),
        peer_fetches=round(grown(metrics.PEER_FETCHES)),
        peer_failures=round(grown(metrics.PEER_FETCHES, outcome="failed")),
        peers_paused=round(last.total(metrics.PEER_PAUSED.name)),
        largest_bytes=max((one.largest_shard_bytes for one in last.sessions), default=0),
    )


def rank_window(after: pb.SessionEntry, first: Moment, last: Moment) -> RankWindow | None:
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
