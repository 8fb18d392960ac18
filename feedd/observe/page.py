"""The plain status page: a few tables, no script, readable in a text browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from feedd import metrics
from feedd.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from feedd.metrics import Metric
    from feedd.observe.recorder import MetricSample

RATE_MIN_S = 1.0  # views closer than this share the earlier base, because a rate over milliseconds is noise
_RATED = (
    metrics.SOURCE_BYTES,
    metrics.DECODE_SAMPLES,
    metrics.SERVE_BATCHES,
    metrics.SERVE_BATCH_BYTES,
    metrics.CACHE_HITS,
    metrics.CACHE_MISSES,
)
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>{title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:52em;padding:0 1em;color:#222}}
table{{border-collapse:collapse;width:100%;margin:0 0 1.5em}}td,th{{text-align:left;padding:.2em .8em .2em 0;
border-bottom:1px solid #ddd}}td:last-child{{text-align:right;font-variant-numeric:tabular-nums}}
@media(prefers-color-scheme:dark){{body{{background:#181818;color:#ddd}}td,th{{border-color:#444}}a{{color:#8bf}}}}
</style></head><body><h1>{title}</h1>
<p>up {uptime} &middot; <a href="/metrics">metrics</a> &middot; <a href="/healthz">health</a></p>
"""


def totals(samples: Iterable[MetricSample]) -> dict[str, float]:
    """Sum each exposition name over its labels."""
    sums: dict[str, float] = {}
    for sample in samples:
        sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


@dataclass
class Rates:
    """Per-second rates of the main counters since the page was last viewed."""

    _base_at_s: float = 0.0
    _base: dict[str, float] = field(default_factory=dict)

    def update(self, now_s: float, samples: Sequence[MetricSample]) -> dict[str, float]:
        """Return the rates since the last view (or since the start) and make this view the base."""
        now = totals(samples)
        elapsed_s = max(now_s - self._base_at_s, 1e-9)
        rates = {
            metric.name: (now.get(metric.name, 0.0) - self._base.get(metric.name, 0.0)) / elapsed_s for metric in _RATED
        }
        if elapsed_s >= RATE_MIN_S:
            self._base_at_s, self._base = now_s, now
        return rates


def _shown(metric: Metric, value: float) -> str:
    if metric.unit == "bytes":
        return format_size(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<h2>{escape(caption)}</h2><table>{body}</table>\n"


def render_page(
    *,
    title: str,
    uptime_s: float,
    cache_capacity_bytes: int,
    samples: Sequence[MetricSample],
    rates: Mapping[str, float],
) -> str:
    """Render the page; ``title`` is already escaped."""
    now = totals(samples)

    def value(metric: Metric) -> float:
        return now.get(metric.name, 0.0)

    used_bytes = value(metrics.CACHE_BYTES)
    fill = f" ({100 * used_bytes / cache_capacity_bytes:.0f} %)" if cache_capacity_bytes else ""
    held = (
        metrics.SERVE_SESSIONS,
        metrics.SERVE_LEASES,
        metrics.SERVE_ARENA_BYTES,
        metrics.DECODE_WORKERS,
        metrics.DECODE_WANTED,
        metrics.DECODE_DEMAND,
        metrics.DECODE_TASKS,
        metrics.FETCH_PARTS,
        metrics.FETCH_BYTES,
        metrics.CACHE_ENTRIES,
        metrics.CACHE_RESERVED,
        metrics.CACHE_PINS,
    )
    counted = [metric for metric in metrics.TABLE if metric.kind is metrics.Kind.COUNTER]
    return "".join(
        (
            _HEAD.format(title=title, uptime=format_duration(uptime_s)),
            _table("Rates", ((m.help, f"{_shown(m, rates[m.name])}/s") for m in _RATED)),
            _table("Cache", [(metrics.CACHE_BYTES.help, f"{format_size(used_bytes)}{fill}")]),
            _table("Now", ((m.help, _shown(m, value(m))) for m in held)),
            _table("Since the start", ((m.help, _shown(m, value(m))) for m in counted)),
            "</body></html>\n",
        )
    )
