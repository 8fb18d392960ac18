"""Jobs and ranks from the sessions of a node, with a bounded history of each rank. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from feedd.diagnosis.job_groups import job_groups
from feedd.diagnosis.node_sampler import rank_window
from feedd.view.node_view import JobView, RankView

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.diagnosis.job_groups import JobGroup
    from feedd.diagnosis.node_sampler import Moment
    from feedd.diagnosis.window import RankWindow
    from feedd.wire import feedd_pb2 as pb

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
        self, answers: Sequence[pb.ObserveResponse], moments: Sequence[Moment]
    ) -> tuple[tuple[JobView, ...], tuple[RankView, ...], list[frozenset[str]]]:
        """Return the jobs, their ranks, and the ids of each job's sessions; add a point to each rank's history.

        Args:
            answers: what the daemons answered at this moment.
            moments: this moment and earlier ones, the newest last.
        """
        jobs = job_groups((lane, one) for lane, answer in enumerate(answers) for one in answer.sessions)
        last = moments[-1]
        since = next((one for one in reversed(moments) if last.at_s - one.at_s >= _SMOOTH_S), moments[0])
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
    job: int, rank: int, sessions: Sequence[pb.SessionEntry], since: Moment, last: Moment, history: _History
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
        state=_state(sessions),
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


def _state(sessions: Sequence[pb.SessionEntry]) -> str:
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
