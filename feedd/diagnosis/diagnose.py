"""Names the one bottleneck of a node, what limits behind it, and what turning the knob gains. Pure.

The prediction follows the utilisation law: a stage that is busy for a share U of the time at X batches per second can
do X / U. Turning the knob of the bottleneck helps until the next stage is busy all the time (Denning and Buzen, The
Operational Analysis of Queueing Network Models, 1978).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.diagnosis import thresholds as limits
from feedd.diagnosis.finding import Diagnosis, Evidence, Finding
from feedd.diagnosis.input_rules import DECODE_RULES, FETCH_RULES, HAND_OFF_RULES, copies, listing
from feedd.diagnosis.trainer_rules import TRAINER_RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.diagnosis.input_rules import Rule
    from feedd.diagnosis.window import Window

_LEAST_BUSY: Final = 0.01
_FAIR_SHARE: Final = 0.5
_BEHIND: Final = {
    "trainer": "compute_bound",
    "fetch": "s3_bandwidth",
    "decode": "decode_cpu",
    "hand-off": "transport",
    "copies": "h2d",
}


def diagnose(window: Window) -> Diagnosis:
    """Return the bottleneck of a window."""
    now, busy = window.batches_per_s, _busy(window)
    if (lists := listing(window)) is not None:
        return Diagnosis(lists, "", now, None)
    pauses_longer = window.pause >= limits.PAUSE_SHARE and window.pause > limits.PAUSE_OVER_WAIT * window.wait
    if window.wait < limits.WAIT_MODERATE or pauses_longer:
        found = _first(TRAINER_RULES, window)
        assert found is not None, "the last rule always fits"
        behind = _slowest(busy, "trainer") if found.verdict in {"healthy", "compute_bound"} else ""
        return Diagnosis(found, behind, now, now * found.factor if now and found.factor is not None else None)
    waits = Evidence("time that the trainer waits for a batch", window.wait, limits.WAIT_MODERATE, "share")
    stage, found = _input(window)
    finding = Finding(found.verdict, (waits, *found.evidence), found.advice, found.knob, found.factor)
    others = [share for name, share in busy.items() if name != stage]
    room = 1 / max(_LEAST_BUSY, *others)
    gain = room if found.factor is None else min(room, found.factor)
    known = now and found.predicts and (found.knob is not None or found.factor is not None)
    return Diagnosis(finding, _slowest(busy, stage), now, now * max(1.0, gain) if known else None)


def _first(rules: Sequence[Rule], window: Window) -> Finding | None:
    return next((found for rule in rules if (found := rule(window)) is not None), None)


def _input(window: Window) -> tuple[str, Finding]:
    """Return the stage that makes the trainer wait, and why it does."""
    if (copied := copies(window)) is not None:
        return "copies", copied
    hand_off = ("hand-off", HAND_OFF_RULES)
    fetch, decode = ("fetch", FETCH_RULES), ("decode", DECODE_RULES)
    idle = window.worker_busy < limits.WORKERS_IDLE and window.fetch.misses > 0 and window.fetching >= limits.FETCHING
    fetches = (window.fetching > window.decoding and window.worker_busy < limits.BUSY) or idle
    # Cores also work for the hand-off, so they tell of decoding only if workers are busy.
    later = (decode, hand_off) if window.worker_busy >= limits.BUSY else (hand_off, decode)
    for stage, rules in (fetch, *later) if fetches else later:
        found = _first(rules, window)
        if found is not None:
            return stage, found
    if window.fetch.requests and window.fetching > 0:
        found = _first(FETCH_RULES, window)
        assert found is not None, "the last rule always fits"
        return "fetch", found
    return "", Finding("unknown", (), "Measure again while the job is in the middle of an epoch.")


def _busy(window: Window) -> dict[str, float]:
    """Return the share of time that each stage is busy: what it does now over what it could do."""
    # Of the cores, only the job's own part grows with its rate. Others leave it the idle cores, or a fair share.
    own = window.worker_busy * window.workers + (window.loop_busy or 0.0)
    own += sum(rank.host_busy or 0.0 for rank in window.ranks)
    cores = max(own + window.idle_cores, _FAIR_SHARE * len(window.core_busy))
    decode = own / cores if cores else window.worker_busy
    fetch = window.fetching * (1 - window.fetch.hit_share)
    return {
        "trainer": 1 - window.wait,
        "fetch": fetch,
        "decode": decode,
        "hand-off": window.loop_busy or 0.0,
        "copies": window.copying,
    }


def _slowest(busy: dict[str, float], but: str) -> str:
    others = {name: share for name, share in busy.items() if name != but}
    name = max(others, key=others.__getitem__)
    return _BEHIND[name] if others[name] >= _LEAST_BUSY else ""
