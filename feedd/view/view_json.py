"""The view of a node as JSON for the web page. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from feedd.units import format_size
from feedd.view.node_view import NodeView, short_time

if TYPE_CHECKING:
    from feedd.view.node_view import FolderView, JobView, RankView


def view_json(view: NodeView, since: int, *, private: bool) -> bytes:
    """Return the JSON that the page shows.

    Args:
        view: the view.
        since: the number of the view that the page has; only later points of histories are sent. 0: all.
        private: the reader may see what the data is: URLs, owners, log lines and bad samples.
    """
    shown = view if private else without_names(view)
    newer = shown.number - since if view.began <= since <= shown.number else shown.number
    facts: dict[str, Any] = {
        "number": shown.number,
        "began": shown.began,
        "private": private,
        "host": shown.host,
        "version": shown.version,
        "state": shown.state,
        "uptime": short_time(shown.uptime_s),
        "lane_count": shown.lane_count,
        "window_s": round(shown.window_s, 1),
        "verdict": None if shown.verdict is None else asdict(shown.verdict),
        "stages": [asdict(one) for one in shown.stages],
        "jobs": [_job(one) for one in shown.jobs],
        "ranks": [_rank(one, newer) for one in shown.ranks],
        "cache": {
            "limit_bytes": shown.cache.limit_bytes,
            "used_bytes": shown.cache.used_bytes,
            "arriving_bytes": shown.cache.arriving_bytes,
            "text": f"{format_size(shown.cache.used_bytes)} of {format_size(shown.cache.limit_bytes)}",
            "folders": [_folder(one) for one in shown.cache.folders],
        },
        "log": [asdict(one) | {"age": _age(one.age_s)} for one in shown.log],
        "bad_samples": [asdict(one) | {"age": _age(one.age_s)} for one in shown.bad_samples],
        "bad_sample_count": shown.bad_sample_count,
    }
    return json.dumps(facts, separators=(",", ":"), allow_nan=False).encode()


def without_names(view: NodeView) -> NodeView:
    """Return the view without anything that tells what the data is, or whose."""
    names = {one.name: f"job {number + 1}" for number, one in enumerate(view.jobs)}
    folders = tuple(replace(one, url=f"folder {number + 1}") for number, one in enumerate(view.cache.folders))
    verdict = view.verdict
    return replace(
        view,
        host="",
        verdict=None if verdict is None else replace(verdict, job=names.get(verdict.job, "")),
        jobs=tuple(replace(one, name=names[one.name], owner="", urls=()) for one in view.jobs),
        cache=replace(view.cache, folders=folders),
        log=(),
        bad_samples=(),
    )


def _job(one: JobView) -> dict[str, Any]:
    facts = asdict(one) | {"progress": one.progress}
    facts["eta"] = "" if one.eta_s is None else short_time(one.eta_s)
    return facts


def _rank(one: RankView, newer: int) -> dict[str, Any]:
    facts = asdict(one)
    count = min(newer, len(one.waits))
    facts["waits"] = [round(wait, 3) for wait in one.waits[len(one.waits) - count :]]
    facts["rates"] = [round(rate, 2) for rate in one.rates[len(one.rates) - count :]]
    return facts


def _folder(one: FolderView) -> dict[str, Any]:
    return asdict(one) | {"text": format_size(one.size_bytes)}


def _age(age_s: float) -> str:
    return "now" if age_s < 1 else f"{short_time(age_s)} ago"
