"""What is shown of a node at one moment. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedd.diagnosis.finding import Diagnosis


def short_time(duration_s: float) -> str:
    """Return a duration in the unit that a reader wants: "now", "12 s", "4 min", "2 h 5 min", "3 d"."""
    seconds = round(duration_s)
    if seconds < 1:
        return "now"
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"


def ago(age_s: float) -> str:
    """Return how long ago something was, such as "now" or "4 min ago"."""
    return "now" if age_s < 1 else f"{short_time(age_s)} ago"


@dataclass(frozen=True, slots=True)
class StageView:
    """One stage of the path from the store to the GPU.

    Attributes:
        name: "store", "cache", "decode", "hand-off", "trainer" or "GPU".
        rate: how much passes it, as a number; empty: not known.
        unit: unit of the rate.
        level: the measured share, from 0 to 1; None: not known.
        level_text: what the share tells, in at most ten characters if possible.
        detail: one more figure; empty: none.
        limits: this stage is the bottleneck.
    """

    name: str
    rate: str = ""
    unit: str = ""
    level: float | None = None
    level_text: str = ""
    detail: str = ""
    limits: bool = False


@dataclass(frozen=True, slots=True)
class JobView:
    """Sessions that read the same data as one job.

    Attributes:
        name: a short name, unlike those of the other jobs.
        owner: whose job it is.
        urls: the first URLs that it reads.
        rank_count: its ranks on this node.
        world_size: its ranks on all nodes.
        epoch: the epoch of the rank that is the furthest behind.
        step: the step of that rank.
        steps: the steps of that epoch; None: not known yet.
        eta_s: seconds to the end of the epoch; None: not known.
        batches_per_s: of all its ranks here.
        samples_per_s: of all its ranks here.
        wait: share of time that its ranks wait for a batch.
        cached: share of its data on this node that is in the cache; None: not known.
    """

    name: str
    owner: str
    urls: tuple[str, ...]
    rank_count: int
    world_size: int
    epoch: int
    step: int
    steps: int | None
    eta_s: float | None
    batches_per_s: float
    samples_per_s: float
    wait: float
    cached: float | None

    @property
    def progress(self) -> float | None:
        """Share of the epoch that is done; None: not known."""
        return min(1.0, self.step / self.steps) if self.steps else None


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank of a job on this node.

    Attributes:
        job: number of its job, as in ``NodeView.jobs``.
        rank: its rank.
        state: what it does: "computes", "waits for data", "waits for decoding", "waits for a free slot", "is silent".
        batches_per_s: batches that it takes.
        wait: share of time that it waits for a batch.
        ready: slots with a batch that waits for it.
        leased: slots that it has.
        slots: all slots.
        device: where it takes the batches; empty: not known.
        waits: the wait over the last minutes, the newest last.
        rates: batches per second over the last minutes, the newest last.
    """

    job: int
    rank: int
    state: str
    batches_per_s: float
    wait: float
    ready: int
    leased: int
    slots: int
    device: str
    waits: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class FolderView:
    """A part of the cache: objects below one URL.

    Attributes:
        url: empty: all others.
        pinned_bytes: bytes of entries that are in use.
    """

    url: str
    entry_count: int
    size_bytes: int
    pinned_bytes: int


@dataclass(frozen=True, slots=True)
class CacheFill:
    """The cache of the node.

    Attributes:
        limit_bytes: its size; 0: there is none.
        used_bytes: bytes of whole entries.
        arriving_bytes: bytes of entries that are being fetched.
        folders: what it holds, the largest first.
    """

    limit_bytes: int = 0
    used_bytes: int = 0
    arriving_bytes: int = 0
    folders: tuple[FolderView, ...] = ()


@dataclass(frozen=True, slots=True)
class LogView:
    """A recent warning or error of a daemon."""

    age_s: float
    level: str
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class BadSampleView:
    """A sample that could not be decoded.

    Attributes:
        id: names the sample for its picture: lane and number.
        outcome: "dropped", "replaced" or "error".
    """

    id: str
    url: str
    key: str
    field: str
    reason: str
    epoch: int
    age_s: float
    outcome: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """All that is shown of a node.

    Attributes:
        number: counts from 1; the histories of ranks have one point for each.
        began: the view after which histories began.
        host: name of the machine; empty: not known.
        state: "ready", or the state of the first lane that is in another.
        lane_count: daemons of the node.
        window_s: seconds over which rates and the verdict are measured; 0: not enough yet.
        verdict: the bottleneck; None: nothing to judge.
        verdict_job: name of the job that it is about, if there are several; empty: there is one.
        stages: the path from the store to the GPU.
        jobs: the jobs.
        ranks: their ranks, by job and rank.
        cache: the cache.
        log: recent warnings and errors, the newest first.
        bad_samples: recent bad samples, the newest first.
        bad_sample_count: all since the daemons' start.
    """

    number: int = 0
    began: int = 0
    host: str = ""
    version: str = ""
    state: str = "starting"
    uptime_s: float = 0.0
    lane_count: int = 1
    window_s: float = 0.0
    verdict: Diagnosis | None = None
    verdict_job: str = ""
    stages: tuple[StageView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    ranks: tuple[RankView, ...] = ()
    cache: CacheFill = field(default_factory=CacheFill)
    log: tuple[LogView, ...] = ()
    bad_samples: tuple[BadSampleView, ...] = ()
    bad_sample_count: int = 0

    @property
    def waiting(self) -> str:
        """Why there is no verdict; empty: there is one."""
        if self.verdict is not None:
            return ""
        if not self.window_s:
            return "measuring"
        return "no trainer takes batches" if self.jobs else "no job is running"

    @property
    def limits(self) -> bool:
        """Whether the bottleneck is a stage of the path."""
        return self.verdict is not None and (self.verdict.is_input or any(one.limits for one in self.stages))
