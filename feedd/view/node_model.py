"""Makes the view of a node from looks at its daemons. Pure: no clock, no I/O.

It keeps the looks of the last seconds, for rates and the verdict, and a bounded history of each rank.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from feedd import metrics
from feedd.diagnosis.diagnose import diagnose
from feedd.diagnosis.node import job_groups, most_waiting, rank_window, window_between
from feedd.units import format_count, format_size
from feedd.view.node_view import (
    BadSampleView,
    CacheFill,
    FolderView,
    JobView,
    LogView,
    NodeView,
    RankView,
    StageView,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.diagnosis.finding import Diagnosis
    from feedd.diagnosis.node import JobGroup, Look
    from feedd.diagnosis.window import RankWindow, Window
    from feedd.metrics import Metric
    from feedd.wire import feedd_pb2 as pb

WINDOW_S: Final = 10.0
"""Rates and the verdict are about so many seconds."""
LEAST_S: Final = 1.5
"""A verdict needs so many seconds."""
GAP_S: Final = 30.0
"""After so long without a look, the earlier ones are forgotten: nothing is known about the time between."""
LINES_MAX: Final = 50
BAD_SAMPLES_MAX: Final = 64


class NodeModel:
    """Takes one look after another, and returns the view after each."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """Start empty; rates are about the last ``window_s``."""
        self._window_s = window_s
        self._looks: deque[Look] = deque()
        self._jobs = JobViews()
        self._number = 0
        self._began = 0

    def add(self, look: Look) -> NodeView:
        """Return the view of the node, with what the look tells."""
        answers = look.answers
        self._remember(look)
        self._number += 1
        first, *later = self._looks
        window = window_between(first, look, [one.poll for one in later]) if look.at_s - first.at_s >= LEAST_S else None
        jobs, ranks, sessions = self._jobs.of(answers, self._looks)
        verdict, about = None, ""
        if window is not None and window.ranks:
            number, own = most_waiting(window, sessions)
            verdict, about = diagnose(own), jobs[number].name if len(jobs) > 1 else ""
        return NodeView(
            number=self._number,
            began=self._began,
            host=look.host,
            version=next((one.stats.version for one in answers), ""),
            state=_state(look),
            uptime_s=min((one.stats.uptime_s for one in answers), default=0.0),
            lane_count=len(look.daemons),
            window_s=0.0 if window is None else window.seconds,
            verdict=verdict,
            verdict_job=about,
            stages=stages_of(window, first, look, verdict),
            jobs=jobs,
            ranks=ranks,
            cache=_cache_fill(look),
            log=_log(answers),
            bad_samples=_bad_samples(look),
            bad_sample_count=round(look.total(metrics.DECODE_BAD_SAMPLES)),
        )

    def _remember(self, look: Look) -> None:
        """Keep a look and forget those before the window; forget all after a gap, or if a daemon was started again."""
        if self._looks:
            last = self._looks[-1]
            ids = {one.stats.daemon_id for one in last.answers}
            if look.at_s - last.at_s > GAP_S or {one.stats.daemon_id for one in look.answers} != ids:
                self._looks.clear()
                self._jobs.forget()
                self._began = self._number
        self._looks.append(look)
        while len(self._looks) > 2 and look.at_s - self._looks[1].at_s >= self._window_s:
            self._looks.popleft()


def _state(look: Look) -> str:
    states = ["down" if one is None else one.stats.state for one in look.daemons]
    return next((state for state in states if state != "ready"), "ready" if states else "starting")


def _cache_fill(look: Look) -> CacheFill:
    states = look.caches()
    folders: dict[str, FolderView] = {}
    for one in (folder for answer in look.answers for folder in answer.folders):
        before = folders.get(one.url, FolderView(one.url, 0, 0, 0))
        folders[one.url] = FolderView(
            one.url,
            before.entry_count + one.entries,
            before.size_bytes + one.bytes,
            before.pinned_bytes + one.pinned_bytes,
        )
    ordered = sorted(folders.values(), key=lambda one: (not one.url, -one.size_bytes, one.url))
    return CacheFill(
        sum(one.limit_bytes for one in states),
        sum(one.committed_bytes for one in states),
        sum(one.reserved_bytes for one in states),
        tuple(ordered),
    )


def _log(answers: Sequence[pb.ObserveResponse]) -> tuple[LogView, ...]:
    lines = [LogView(one.age_s, one.level, one.text, one.count) for each in answers for one in each.log]
    return tuple(sorted(lines, key=lambda one: one.age_s)[:LINES_MAX])


def _bad_samples(look: Look) -> tuple[BadSampleView, ...]:
    found = [
        BadSampleView(f"{lane}-{one.id}", one.url, one.key, one.field, one.reason, one.epoch, one.age_s, one.outcome)
        for lane, answer in enumerate(look.daemons)
        if answer is not None
        for one in answer.bad_samples
    ]
    return tuple(sorted(found, key=lambda one: one.age_s)[:BAD_SAMPLES_MAX])


POINTS_MAX: Final = 300
"""Points of a rank's history: five minutes, at one look a second."""
_SMOOTH_S: Final = 3.0
"""A point of a history is about so many seconds, because trainers tell their times once a second."""
_PROGRESS_S: Final = 60.0
_SILENT_S: Final = 10.0
_STATES: Final = {
    "fetching": "waits for data",
    "decoding": "waits for decoding",
    "space": "waits for a free slot",
}

_RankKey = tuple[str, int]


@dataclass(slots=True)
class _History:
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))
    progress: deque[tuple[float, int, int]] = field(default_factory=deque)

    def reached(self, at_s: float, epoch: int, step: int) -> float:
        """Note a step, and return the steps per second of the last minute, in this epoch; 0: not known."""
        if self.progress and (epoch, step) < self.progress[-1][1:]:
            self.progress.clear()
        self.progress.append((at_s, epoch, step))
        while self.progress[0][1] != epoch or (len(self.progress) > 2 and at_s - self.progress[1][0] >= _PROGRESS_S):
            self.progress.popleft()
        began_s, _, began_step = self.progress[0]
        return (step - began_step) / (at_s - began_s) if at_s > began_s else 0.0


class JobViews:
    """Makes the views of jobs and ranks; keeps the history of each rank that has a session."""

    def __init__(self) -> None:
        self._histories: dict[_RankKey, _History] = {}

    def forget(self) -> None:
        """Drop all histories."""
        self._histories.clear()

    def of(
        self, answers: Sequence[pb.ObserveResponse], looks: Sequence[Look]
    ) -> tuple[tuple[JobView, ...], tuple[RankView, ...], list[frozenset[str]]]:
        """Return the jobs, their ranks, and the ids of each job's sessions; add a point to each rank's history.

        Args:
            answers: what the daemons answered at this moment.
            looks: this look and earlier ones, the newest last.
        """
        jobs = job_groups((lane, one) for lane, answer in enumerate(answers) for one in answer.sessions)
        last = looks[-1]
        since = next((one for one in reversed(looks) if last.at_s - one.at_s >= _SMOOTH_S), looks[0])
        names = _names(jobs)
        views: list[JobView] = []
        ranks: list[RankView] = []
        seen: set[_RankKey] = set()
        for number, job in enumerate(jobs):
            own, paces = [], []
            for rank, sessions in _by_rank(job):
                key = job.key, rank
                seen.add(key)
                history = self._histories.setdefault(key, _History())
                own.append(_rank_view(number, rank, sessions, since, last, history))
                epoch, step = max((one.epoch, one.step) for one in sessions)
                pace = history.reached(last.at_s, epoch, step) or own[-1].batches_per_s
                paces.append((epoch, step, pace))
            ranks += own
            views.append(_job_view(job, names[number], own, paces, answers))
        for gone in self._histories.keys() - seen:
            del self._histories[gone]
        return tuple(views), tuple(ranks), [job.ids for job in jobs]


def _by_rank(job: JobGroup) -> list[tuple[int, list[pb.SessionEntry]]]:
    ranks: dict[int, list[pb.SessionEntry]] = {}
    for _, one in job.sessions:
        ranks.setdefault(one.rank, []).append(one)
    return sorted(ranks.items())


def _names(jobs: Sequence[JobGroup]) -> list[str]:
    """Return a short name for each job: its group, or the end of its first URL; numbered where two are alike."""
    names: list[str] = []
    for job in jobs:
        one = job.sessions[0][1]
        url = one.urls[0] if one.urls else ""
        base = one.share or "/".join(url.rstrip("/").rsplit("/", 2)[-2:]) or "job"
        name, count = base, 1
        while name in names:
            count += 1
            name = f"{base} #{count}"
        names.append(name)
    return names


def _rank_view(
    job: int, rank: int, sessions: Sequence[pb.SessionEntry], since: Look, last: Look, history: _History
) -> RankView:
    wait = rate = 0.0
    if since is not last:
        windows = [found for one in sessions if (found := rank_window(one, since, last)) is not None]
        wait, rate = _wait(windows), _rate(windows)
        history.waits.append(wait)
        history.rates.append(rate)
    return RankView(
        job=job,
        rank=rank,
        state=_rank_state(sessions),
        batches_per_s=rate,
        wait=wait,
        ready=sum(one.ready for one in sessions),
        leased=sum(one.leases for one in sessions),
        slots=sum(one.slots for one in sessions),
        device=next((one.times.device for one in sessions if one.times.device), ""),
        waits=tuple(history.waits),
        rates=tuple(history.rates),
    )


def _wait(windows: Iterable[RankWindow]) -> float:
    wall_s = wait_s = 0.0
    for one in windows:
        wall_s, wait_s = wall_s + one.wall_s, wait_s + one.wait_s
    return min(1.0, wait_s / wall_s) if wall_s else 0.0


def _rate(windows: Iterable[RankWindow]) -> float:
    """Return batches per second: of several DataLoader workers together."""
    return sum(one.steps / one.wall_s for one in windows if one.wall_s)


def _rank_state(sessions: Sequence[pb.SessionEntry]) -> str:
    waiting = [one.waits_for for one in sessions if one.waits_for and one.leases <= 1 and not one.ready]
    if waiting:
        return _STATES.get(waiting[0], f"waits for {waiting[0]}")
    return "is silent" if all(one.silent_s > _SILENT_S for one in sessions) else "computes"


def _job_view(
    job: JobGroup,
    name: str,
    ranks: Sequence[RankView],
    paces: Sequence[tuple[int, int, float]],
    answers: Sequence[pb.ObserveResponse],
) -> JobView:
    first = job.sessions[0][1]
    epoch, step, _ = min(paces)
    steps = next((one.steps for _, one in job.sessions if one.epoch == epoch and one.HasField("steps")), None)
    pace = min((pace for at, _, pace in paces if at == epoch), default=0.0)
    eta_s = (steps - step) / pace if steps and pace and step < steps else None
    rate = sum(one.batches_per_s for one in ranks)
    return JobView(
        name=name,
        owner=first.owner,
        urls=tuple(first.urls),
        rank_count=len(ranks),
        world_size=first.world_size,
        epoch=epoch,
        step=min(step, steps) if steps else step,
        steps=steps,
        eta_s=eta_s,
        batches_per_s=rate,
        samples_per_s=rate * first.batch_size,
        wait=sum(one.wait for one in ranks) / len(ranks),
        cached=_cached(job, answers),
    )


def _cached(job: JobGroup, answers: Sequence[pb.ObserveResponse]) -> float | None:
    """Return the share of the job's data on this node that is in the cache, as far as folders tell."""
    needed: dict[int, int] = {}
    for lane, one in job.sessions:
        needed[lane] = max(needed.get(lane, 0), one.assigned_bytes)
    starts = tuple(url for url in job.sessions[0][1].urls if "{" not in url)
    folders = [folder for answer in answers for folder in answer.folders]
    if not starts or not sum(needed.values()) or (folders and not folders[-1].url):
        return None
    cached = sum(folder.bytes for folder in folders if folder.url.startswith(starts))
    return min(1.0, cached / sum(needed.values()))


_WHOLE: Final = 10.0
"""Rates from here on have no fraction."""
_MANY: Final = 10_000.0
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def stages_of(window: Window | None, first: Look, last: Look, verdict: Diagnosis | None) -> tuple[StageView, ...]:
    """Return the stages of the path.

    Args:
        window: what was measured; None: too little yet, and only levels are known.
        first: the beginning of the window.
        last: its end.
        verdict: the bottleneck.
    """
    limiting = "" if verdict is None else verdict.about.stage
    parts = [_store(window), _cache(window, last), _decode(window, first, last), _hand_off(window, first, last)]
    found = [*parts, _trainer(window), _gpu(window, last)]
    return tuple(replace(one, limits=one.name == limiting) for one in found)


def _store(window: Window | None) -> StageView:
    if window is None:
        return StageView("store")
    fetch = window.fetch
    detail = "" if fetch.first_byte_s is None else f"first byte {fetch.first_byte_s * 1e3:,.0f} ms"
    if fetch.peer_bytes or fetch.peers_paused:
        detail = f"{fetch.peer_share:.0%} from peers" + (f", {fetch.peers_paused} away" if fetch.peers_paused else "")
    rate = _bytes_per_s((fetch.read_bytes + fetch.peer_bytes) / window.seconds)
    return StageView("store", *rate, window.fetching, f"waited {window.fetching:.0%}", detail)


def _cache(window: Window | None, last: Look) -> StageView:
    states = last.caches()
    limit = sum(one.limit_bytes for one in states)
    if not limit:
        return StageView("cache")
    used = sum(one.committed_bytes for one in states)
    fetch = None if window is None else window.fetch
    rate = ("", "")
    if fetch is not None and fetch.hits + fetch.misses:
        rate = (f"{fetch.hit_share:.0%}", "hits")
    return StageView("cache", *rate, used / limit, f"full {used / limit:.0%}", f"{format_size(used)} here")


def _decode(window: Window | None, first: Look, last: Look) -> StageView:
    workers = round(last.total(metrics.DECODE_WORKERS))
    detail = format_count(workers, "worker")
    if window is None:
        return StageView("decode", detail=detail)
    rate = _per_s(_grown(metrics.DECODE_SAMPLES, first, last) / window.seconds, "samples/s")
    return StageView("decode", *rate, window.worker_busy, f"busy {window.worker_busy:.0%}", detail)


def _hand_off(window: Window | None, first: Look, last: Look) -> StageView:
    slots = sum(one.slots for one in last.sessions)
    ready = sum(one.ready for one in last.sessions)
    level = ready / slots if slots else None
    text = "" if level is None else f"ready {level:.0%}"
    if window is None:
        return StageView("hand-off", level=level, level_text=text)
    moved = _grown(metrics.SERVE_BATCH_BYTES, first, last) / window.seconds
    rate = _per_s(_grown(metrics.SERVE_BATCHES, first, last) / window.seconds, "batches/s")
    return StageView("hand-off", *rate, level, text, " ".join(_bytes_per_s(moved)) if moved else "")


def _trainer(window: Window | None) -> StageView:
    if window is None or not window.ranks:
        return StageView("trainer")
    count = len(window.ranks)
    rate, detail = _per_s(window.batches_per_s, "steps/s"), format_count(count, "rank")
    return StageView("trainer", *rate, window.wait, f"waits {window.wait:.0%}", detail)


def _gpu(window: Window | None, last: Look) -> StageView:
    devices: Sequence[str] = sorted({one.times.device for one in last.sessions if one.times.device})
    name = (devices[0], "") if len(devices) == 1 else (str(len(devices)), "devices") if devices else ("", "")
    if window is None or window.gpu_busy is None:
        return StageView("GPU", *name, level_text="not seen")
    return StageView("GPU", *name, window.gpu_busy, f"busy {window.gpu_busy:.0%}")


def _grown(metric: Metric, first: Look, last: Look) -> float:
    return max(0.0, last.total(metric) - first.total(metric))


def _per_s(rate: float, unit: str) -> tuple[str, str]:
    if not rate:
        return "idle", ""
    if rate >= _MANY:
        return f"{rate / 1000:,.1f}k", unit
    return f"{rate:,.0f}" if rate >= _WHOLE else f"{rate:.1f}", unit


def _bytes_per_s(rate: float) -> tuple[str, str]:
    """Return a rate of bytes with three digits, and its unit."""
    if not rate:
        return "idle", ""
    power = min(len(_UNITS) - 1, int(math.log(max(rate, 1.0), 1024)))
    number = rate / 1024**power
    return f"{number:.0f}" if number >= _WHOLE else f"{number:.1f}", f"{_UNITS[power]}/s"
