"""A verdict with its evidence. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

TITLES: Final = {
    "healthy": "not the input: batches are there when the trainer asks",
    "compute_bound": "not the input: the GPU is busy",
    "small_batch": "not the input: the GPU is idle for most of each step",
    "host_compute": "not the input: the trainer's main thread computes while the GPU waits",
    "straggler": "not the input: one rank is slower than the others",
    "checkpointing": "not the input: the trainer pauses and writes, as for checkpoints",
    "evaluation": "not the input: the trainer pauses, as for an evaluation",
    "communication": "not the input: the network between nodes is full",
    "logging": "not the input: the trainer writes output in each step",
    "listing": "the store's listing",
    "s3_far": "the distance to the store",
    "s3_throttling": "the store refuses requests",
    "failing_peers": "peers that fail again and again",
    "s3_latency": "the store's latency",
    "s3_bandwidth": "the bandwidth to the store",
    "small_objects": "many small objects",
    "shard_sizes": "the size of the shards",
    "skewed_shards": "shards of unequal size",
    "cache_too_small": "the cache, which is too small",
    "disk": "the disk of the cache",
    "decode_cpu": "decoding: all cores are busy",
    "too_few_workers": "decoding: too few workers",
    "too_many_workers": "decoding: more workers than cores",
    "uneven_cores": "decoding: some cores are busy, others idle",
    "transport": "the transport of batches from daemon to trainer",
    "h2d": "copies to the GPU",
    "unpinned_memory": "copies to the GPU from memory that is not registered",
    "unknown": "the input, but no single stage stands out",
}
"""What each verdict says, by its id."""

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


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that fits.

    Attributes:
        verdict: a key of ``TITLES``.
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
