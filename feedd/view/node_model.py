"""Makes the view of a node from looks at its daemons. Pure: no clock, no I/O.

It keeps the looks of the last seconds, for rates and the verdict, and a bounded history of each rank.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from feedd import metrics
from feedd.diagnosis.job_groups import most_waiting
from feedd.diagnosis.machine_reader import MachineReading
from feedd.diagnosis.node_sampler import Moment, Poll, window_between
from feedd.view.job_views import JobViews
from feedd.view.node_view import BadSampleView, CacheFill, FolderView, LogView, NodeView
from feedd.view.path_stages import stages_of, verdict_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.diagnosis.window import Window
    from feedd.view.node_view import JobView, VerdictView
    from feedd.wire import feedd_pb2 as pb

WINDOW_S: Final = 10.0
"""Rates and the verdict are about so many seconds."""
LEAST_S: Final = 1.5
"""A verdict needs so many seconds."""
GAP_S: Final = 30.0
"""After so long without a look, the earlier ones are forgotten: nothing is known about the time between."""
LINES_MAX: Final = 50
BAD_SAMPLES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Look:
    """What was read at one moment.

    Attributes:
        at_s: when, on the monotonic clock.
        daemons: the answer of each daemon of the node, by lane; None: it did not answer.
        machine: counters of the machine, as far as they can be read.
        gpu: utilisation of the trainers' least busy GPU; None: not known.
        disk: name of the cache's disk; empty: none.
        host: name of the machine; empty: not known.
    """

    at_s: float
    daemons: Sequence[pb.ObserveResponse | None]
    machine: MachineReading = field(default_factory=MachineReading)
    gpu: float | None = None
    disk: str = ""
    host: str = ""

    @property
    def answers(self) -> list[pb.ObserveResponse]:
        """The answers of the daemons that did answer."""
        return [one for one in self.daemons if one is not None]


class NodeModel:
    """Takes one look after another, and returns the view after each."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """Start empty; rates are about the last ``window_s``."""
        self._window_s = window_s
        self._moments: deque[tuple[Moment, Poll]] = deque()
        self._jobs = JobViews()
        self._number = 0
        self._began = 0

    def add(self, look: Look) -> NodeView:
        """Return the view of the node, with what the look tells."""
        answers = look.answers
        moment = Moment(
            look.at_s, [one.stats for one in answers], [one for each in answers for one in each.sessions], look.machine
        )
        self._remember(moment, look)
        self._number += 1
        first = self._moments[0][0]
        window = None
        if moment.at_s - first.at_s >= LEAST_S:
            window = window_between(first, moment, [poll for _, poll in list(self._moments)[1:]], look.disk)
        jobs, ranks, sessions = self._jobs.of(answers, [moment for moment, _ in self._moments])
        verdict = _verdict(window, jobs, sessions)
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
            stages=stages_of(window, first, moment, verdict),
            jobs=jobs,
            ranks=ranks,
            cache=_cache(answers),
            log=_log(answers),
            bad_samples=_bad_samples(look),
            bad_sample_count=round(moment.total(metrics.DECODE_BAD_SAMPLES.name)),
        )

    def _remember(self, moment: Moment, look: Look) -> None:
        """Keep a moment, and forget those before the window; all, if a daemon was started anew or nobody looked."""
        if self._moments:
            last = self._moments[-1][0]
            ids = {one.daemon_id for one in last.stats}
            if moment.at_s - last.at_s > GAP_S or {one.daemon_id for one in moment.stats} != ids:
                self._moments.clear()
                self._jobs.forget()
                self._began = self._number
        self._moments.append((moment, Poll.of(moment.sessions, moment.stats, look.gpu)))
        while len(self._moments) > 2 and moment.at_s - self._moments[1][0].at_s >= self._window_s:
            self._moments.popleft()


def _verdict(window: Window | None, jobs: Sequence[JobView], sessions: Sequence[frozenset[str]]) -> VerdictView | None:
    """Return the bottleneck of the job whose trainers wait the longest; None: no trainer takes batches."""
    if window is None or not window.ranks:
        return None
    number, own = most_waiting(window, sessions)
    found = verdict_of(own)
    return replace(found, job=jobs[number].name if len(jobs) > 1 else "")


def _state(look: Look) -> str:
    states = ["down" if one is None else one.stats.state for one in look.daemons]
    return next((state for state in states if state != "ready"), "ready" if states else "starting")


def _cache(answers: Sequence[pb.ObserveResponse]) -> CacheFill:
    states = [one.stats.cache for one in answers if one.stats.HasField("cache")]
    folders: dict[str, FolderView] = {}
    for one in (folder for answer in answers for folder in answer.folders):
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
