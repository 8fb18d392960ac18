"""A verdict with its evidence. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple


class About(NamedTuple):
    """What a verdict says, and the stage of the path that it is about: one of ``PATH``, or empty for none."""

    title: str
    stage: str = ""


PATH: Final = ("store", "cache", "decode", "hand-off", "trainer", "GPU")
"""The stages, in the order in which a batch passes them."""
_NOT_INPUT: Final = "not the input"
VERDICTS: Final = {
    "healthy": About(f"{_NOT_INPUT}: batches are there when the trainer asks"),
    "compute_bound": About(f"{_NOT_INPUT}: the GPU is busy", "GPU"),
    "small_batch": About(f"{_NOT_INPUT}: the GPU is idle for most of each step", "GPU"),
    "host_compute": About(f"{_NOT_INPUT}: the trainer's main thread computes while the GPU waits", "trainer"),
    "straggler": About(f"{_NOT_INPUT}: one rank is slower than the others", "trainer"),
    "checkpointing": About(f"{_NOT_INPUT}: the trainer pauses and writes, as for checkpoints", "trainer"),
    "evaluation": About(f"{_NOT_INPUT}: the trainer pauses, as for an evaluation", "trainer"),
    "communication": About(f"{_NOT_INPUT}: the network between nodes is full", "trainer"),
    "logging": About(f"{_NOT_INPUT}: the trainer writes output in each step", "trainer"),
    "listing": About("the store's listing", "store"),
    "s3_far": About("the distance to the store", "store"),
    "s3_throttling": About("the store refuses requests", "store"),
    "failing_peers": About("peers that fail again and again", "store"),
    "s3_latency": About("the store's latency", "store"),
    "s3_bandwidth": About("the bandwidth to the store", "store"),
    "small_objects": About("many small objects", "store"),
    "shard_sizes": About("the size of the shards", "store"),
    "skewed_shards": About("shards of unequal size", "store"),
    "cache_too_small": About("the cache, which is too small", "cache"),
    "disk": About("the disk of the cache", "cache"),
    "decode_cpu": About("decoding: all cores are busy", "decode"),
    "too_few_workers": About("decoding: too few workers", "decode"),
    "too_many_workers": About("decoding: more workers than cores", "decode"),
    "uneven_cores": About("decoding: some cores are busy, others idle", "decode"),
    "transport": About("the transport of batches from daemon to trainer", "hand-off"),
    "h2d": About("copies to the GPU", "GPU"),
    "unpinned_memory": About("copies to the GPU from memory that is not registered", "hand-off"),
    "unknown": About("the input, but no single stage stands out"),
}
"""What is known of each verdict, by its id."""

STAGES: Final = {
    "compute_bound": "the trainer's own step",
    "s3_bandwidth": "the bandwidth to the store",
    "decode_cpu": "decoding",
    "transport": "the daemon's main thread",
    "h2d": "copies to the GPU",
}
"""What limits behind the bottleneck, by the verdict that it would be."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured value beside its threshold.

    Attributes:
        what: what was measured.
        value: the value.
        threshold: the value that decides.
        unit: unit of both; "share" lies between 0 and 1.
    """

    what: str
    value: float
    threshold: float
    unit: str


@dataclass(frozen=True, slots=True)
class Knob:
    """What to turn.

    Attributes:
        option: an option of ``feedd serve``, an argument of the client, or a setting of the training script.
        now: its present value; empty: not known.
        to: the value to try.
    """

    option: str
    now: str
    to: str

    def __str__(self) -> str:
        return f"{self.option} from {self.now} to {self.to}" if self.now else f"{self.option} {self.to}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that fits.

    Attributes:
        verdict: a key of ``VERDICTS``.
        evidence: the values that led to it.
        advice: what to do, in one or two sentences.
        knob: what to turn; None: no single option.
        factor: how much more the stage does after that; None: it no longer limits.
        predicts: what the stage takes after that is known, so that a gain can be predicted.
    """

    verdict: str
    evidence: tuple[Evidence, ...]
    advice: str
    knob: Knob | None = None
    factor: float | None = None
    predicts: bool = True


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The one bottleneck of a node.

    Attributes:
        finding: the bottleneck.
        behind: the verdict on the stage that limits next; empty: none is known.
        now: batches per second of all ranks.
        predicted: batches per second after the advice was followed; None: no prediction.
    """

    finding: Finding
    behind: str
    now: float
    predicted: float | None

    @property
    def about(self) -> About:
        """What the verdict says."""
        return VERDICTS[self.finding.verdict]

    @property
    def is_input(self) -> bool:
        """Whether the trainers wait for input."""
        return not self.about.title.startswith(_NOT_INPUT)

    @property
    def knob(self) -> str:
        """What to turn, from which value to which; empty: no single option."""
        return "" if self.finding.knob is None else str(self.finding.knob)

    @property
    def gain(self) -> str:
        """Batches per second, now and predicted; empty: no prediction."""
        return "" if self.predicted is None else f"{self.now:,.1f} to {self.predicted:,.1f} batches/s, predicted"

    def as_json(self) -> dict[str, Any]:
        """Return the form that ``feedd doctor --json`` prints."""
        finding, knob = self.finding, self.finding.knob
        evidence = [
            {"what": one.what, "value": round(one.value, 4), "threshold": one.threshold, "unit": one.unit}
            for one in finding.evidence
        ]
        predicted = None if self.predicted is None else round(self.predicted, 3)
        return {
            "verdict": finding.verdict,
            "evidence": evidence,
            "next": self.behind or None,
            "knob": None if knob is None else {"option": knob.option, "from": knob.now or None, "to": knob.to},
            "gain": {"now": round(self.now, 3), "predicted": predicted, "unit": "batches/s"},
            "advice": finding.advice,
        }
