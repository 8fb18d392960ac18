"""What the run shows: a table per section, and the targets that can be judged from it."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from tests.bench.ingest.contenders import (
    AIOBOTOCORE,
    BEST_OF,
    FEEDD,
    FEEDD_WIDE,
    LIMIT,
    RECYCLED,
    RECYCLED_AIOBOTOCORE,
    RECYCLED_BEST_OF,
)
from tests.bench.ingest.run import CLEAN, DELAYED, ERRORS, HTTP, OVER_TLS, RADOSGW_HTTP, RADOSGW_TLS, TLS, USERS
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.bench.ingest.run import Section

_TITLES = {
    HTTP: "plain HTTP, our server",
    TLS: "TLS, our server",
    RADOSGW_HTTP: "plain HTTP, Ceph's radosgw",
    RADOSGW_TLS: "TLS, Ceph's radosgw",
    USERS: "your bucket",
    CLEAN: "a store with latency, no faults",
    DELAYED: "a store with latency, some answers late",
    ERRORS: "a store with latency, some answers 503",
}
_COLUMNS = (
    Column("GB/s", "rate", scale=1e-9, digits=2, spread=True),
    Column("CPU s/GB", "cpu_per_gb", digits=3, spread=True),
    Column("of it system", "system_per_gb", digits=3),
    Column("server's CPU s/GB", "server_cpu_per_gb", digits=3),
    Column("GETs", "gets", digits=0),
)
_MEMORY = Column("peak RSS beyond the cache, MB", "peak_resident_bytes", scale=1e-6, digits=0, warmup=True)
_PARTS = (
    Column("errors sent", "errors", digits=0),
    Column("GETs/s", "gets_per_s", digits=1),
    Column("part p50, ms", "part_p50_s", scale=1e3, digits=1),
    Column("part p99, ms", "part_p99_s", scale=1e3, digits=1),
)
MEMORY_BYTES_MAX = 150e6
_COST_TARGETS = {TLS: 1.05, RADOSGW_HTTP: 0.9, RADOSGW_TLS: 0.9}  # over the cheapest peer
_COST_TARGET = 0.65


def results(sections: Sequence[Section]) -> list[Result]:
    """Return one table per section, with its verdicts."""
    return [_result(section, sections) for section in sections]


def _result(section: Section, sections: Sequence[Section]) -> Result:
    faulty = section.name in {CLEAN, DELAYED, ERRORS}
    for outcome in section.outcomes:
        for row in [outcome.warmup, *outcome.rounds]:
            parts_s = row.get("parts_s")
            if parts_s:
                row["part_p50_s"], row["part_p99_s"] = statistics.median(parts_s), percentile(parts_s, 0.99)
    result = Result(
        f"ingest, {section.name}",
        f"{_TITLES[section.name]}, {len(section.place.objects)} objects, {section.place.size_bytes / 1e9:.2f} GB",
        (*_COLUMNS, *_PARTS) if faulty else (*_COLUMNS, _MEMORY),
        section.outcomes,
        notes=list(section.left_out),
    )
    if faulty:
        clean = next((one for one in sections if one.name == CLEAN), None)
        if clean is not None and clean is not section:
            result.verdicts += _faulty_verdicts(section, clean)
    else:
        result.verdicts += _cost_verdicts(section, result)
    return result


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of ``values`` that at least ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def _middle(section: Section, name: str, figure: str) -> float | None:
    found = next((one for one in section.outcomes if one.name == name and not one.failure), None)
    return found.middle(figure) if found else None


def _middles(section: Section, names: Iterable[str], figure: str) -> dict[str, float]:
    return {name: value for name in names if (value := _middle(section, name, figure)) is not None}


def _cost_verdicts(section: Section, result: Result) -> list[Verdict]:
    verdicts: list[Verdict] = []
    cost, rate = _middle(section, FEEDD, "cpu_per_gb"), _middle(section, FEEDD, "rate")
    if cost is None or rate is None:
        return verdicts
    costs = _middles(section, BEST_OF, "cpu_per_gb")
    if costs:
        cheapest = min(costs, key=lambda name: costs[name])
        target = _COST_TARGETS.get(section.name, _COST_TARGET)
        verdicts.append(
            Verdict(f"CPU per GB over {cheapest}, the cheapest", cost / costs[cheapest], target, at_least=False)
        )
    sdk = _middle(section, AIOBOTOCORE, "cpu_per_gb")
    if sdk is not None and section.name in {HTTP, USERS}:
        verdicts.append(Verdict("CPU per GB over aiobotocore", cost / sdk, 0.45, at_least=False))
    rates = _middles(section, BEST_OF, "rate")
    if rates:
        fastest = max(rates, key=lambda name: rates[name])
        verdicts.append(Verdict(f"GB/s over {fastest}, the fastest", rate / rates[fastest], 1.0))
    verdicts += _recycled_verdicts(section)
    limit = _middle(section, LIMIT, "rate")
    if limit is not None and section.name == HTTP:
        verdicts.append(Verdict("GB/s over the server's limit", rate / limit, 0.9))
    wide = result.outcome(FEEDD_WIDE)
    if wide is not None and wide.warmup:
        used = wide.warmup["peak_resident_bytes"] / MEMORY_BYTES_MAX
        verdicts.append(Verdict("peak RSS beyond the cache over 150 MB, 64 parts in flight", used, 1.0, at_least=False))
    return verdicts


def _recycled_verdicts(section: Section) -> list[Verdict]:
    """Say how a full cache fares, which is what a long run has, beside others over files that are there already."""
    cost = _middle(section, RECYCLED, "cpu_per_gb")
    costs = _middles(section, RECYCLED_BEST_OF, "cpu_per_gb")
    if cost is None or not costs or section.name in OVER_TLS:
        return []
    cheapest = min(costs, key=lambda name: costs[name])
    target = _COST_TARGETS.get(section.name, _COST_TARGET)
    verdicts = [Verdict(f"CPU per GB, recycled, over {cheapest}", cost / costs[cheapest], target, at_least=False)]
    sdk = _middle(section, RECYCLED_AIOBOTOCORE, "cpu_per_gb")
    if sdk is not None and section.name in {HTTP, USERS}:
        verdicts.append(Verdict(f"CPU per GB, recycled, over {RECYCLED_AIOBOTOCORE}", cost / sdk, 0.45, at_least=False))
    return verdicts


def _faulty_verdicts(section: Section, clean: Section) -> list[Verdict]:
    verdicts: list[Verdict] = []
    rate, before = _middle(section, FEEDD, "rate"), _middle(clean, FEEDD, "rate")
    if rate is None or before is None:
        return verdicts
    late = section.name == DELAYED
    verdicts.append(Verdict("feedd's GB/s over the clean run's", rate / before, 0.95 if late else 0.85))
    middle, tail = _middle(section, FEEDD, "part_p50_s"), _middle(section, FEEDD, "part_p99_s")
    if late and middle is not None and tail is not None:
        verdicts.append(Verdict("feedd's part p99 over p50", tail / middle, 2.0, at_least=False))
    gets, gets_before = _middle(section, FEEDD, "gets_per_s"), _middle(clean, FEEDD, "gets_per_s")
    if not late and gets is not None and gets_before is not None:
        verdicts.append(Verdict("feedd's GETs/s over the clean run's", gets / gets_before, 1.3, at_least=False))
    return verdicts
