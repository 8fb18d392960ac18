"""The path of a batch as stages with rates and levels, and the bottleneck among them. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from feedd import metrics
from feedd.diagnosis.diagnose import diagnose
from feedd.diagnosis.finding import STAGES, TITLES
from feedd.units import format_count, format_size
from feedd.view.node_view import StageView, VerdictView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.diagnosis.finding import Knob
    from feedd.diagnosis.node_sampler import Moment
    from feedd.diagnosis.window import Window
    from feedd.metrics import Metric

NAMES: Final = ("store", "cache", "decode", "hand-off", "trainer", "GPU")
"""The stages, in the order in which a batch passes them."""
STAGE_OF: Final = {
    "listing": "store",
    "s3_throttling": "store",
    "failing_peers": "store",
    "s3_far": "store",
    "s3_latency": "store",
    "s3_bandwidth": "store",
    "small_objects": "store",
    "shard_sizes": "store",
    "skewed_shards": "store",
    "cache_too_small": "cache",
    "disk": "cache",
    "decode_cpu": "decode",
    "too_few_workers": "decode",
    "too_many_workers": "decode",
    "uneven_cores": "decode",
    "transport": "hand-off",
    "unpinned_memory": "hand-off",
    "h2d": "GPU",
    "straggler": "trainer",
    "checkpointing": "trainer",
    "evaluation": "trainer",
    "logging": "trainer",
    "host_compute": "trainer",
    "communication": "trainer",
    "small_batch": "GPU",
    "compute_bound": "GPU",
    "healthy": "",
    "unknown": "",
}
"""The stage that a verdict of the diagnosis is about; empty: none."""
_NOT_INPUT: Final = "not the input"
_WHOLE: Final = 10.0
"""Rates from here on have no fraction."""
_MANY: Final = 10_000.0
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def verdict_of(window: Window) -> VerdictView:
    """Return the bottleneck of a window in which a trainer took batches, or waited for one."""
    found = diagnose(window)
    finding, predicted = found.finding, found.predicted
    title = TITLES.get(finding.verdict, finding.verdict)
    gain = "" if predicted is None else f"{found.now:,.1f} to {predicted:,.1f} batches/s, predicted"
    return VerdictView(
        id=finding.verdict,
        title=title,
        is_input=not title.startswith(_NOT_INPUT),
        advice=finding.advice,
        knob=_turned(finding.knob),
        gain=gain,
        behind=STAGES.get(found.behind, ""),
    )


def _turned(knob: Knob | None) -> str:
    if knob is None:
        return ""
    return f"{knob.option} from {knob.now} to {knob.to}" if knob.now else f"{knob.option} {knob.to}"


def stages_of(window: Window | None, first: Moment, last: Moment, verdict: VerdictView | None) -> tuple[StageView, ...]:
    """Return the stages of the path.

    Args:
        window: what was measured; None: too little yet, and only levels are known.
        first: the beginning of the window.
        last: its end.
        verdict: the bottleneck.
    """
    limiting = "" if verdict is None else STAGE_OF.get(verdict.id, "")
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


def _cache(window: Window | None, last: Moment) -> StageView:
    states = [one.cache for one in last.stats if one.HasField("cache")]
    limit = sum(one.limit_bytes for one in states)
    if not limit:
        return StageView("cache")
    used = sum(one.committed_bytes for one in states)
    fetch = None if window is None else window.fetch
    rate = ("", "")
    if fetch is not None and fetch.hits + fetch.misses:
        rate = (f"{fetch.hit_share:.0%}", "hits")
    return StageView("cache", *rate, used / limit, f"full {used / limit:.0%}", f"{format_size(used)} here")


def _decode(window: Window | None, first: Moment, last: Moment) -> StageView:
    workers = round(last.total(metrics.DECODE_WORKERS.name))
    detail = format_count(workers, "worker")
    if window is None:
        return StageView("decode", detail=detail)
    rate = _per_s(_grown(metrics.DECODE_SAMPLES, first, last) / window.seconds, "samples/s")
    return StageView("decode", *rate, window.worker_busy, f"busy {window.worker_busy:.0%}", detail)


def _hand_off(window: Window | None, first: Moment, last: Moment) -> StageView:
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


def _gpu(window: Window | None, last: Moment) -> StageView:
    devices: Sequence[str] = sorted({one.times.device for one in last.sessions if one.times.device})
    name = (devices[0], "") if len(devices) == 1 else (str(len(devices)), "devices") if devices else ("", "")
    if window is None or window.gpu_busy is None:
        return StageView("GPU", *name, level_text="not seen")
    return StageView("GPU", *name, window.gpu_busy, f"busy {window.gpu_busy:.0%}")


def _grown(metric: Metric, first: Moment, last: Moment) -> float:
    return max(0.0, last.total(metric.name) - first.total(metric.name))


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
