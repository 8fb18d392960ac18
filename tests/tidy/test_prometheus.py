"""The rules for Prometheus: valid, about metrics that exist, each alert explained and fired by a test."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from feedd.metrics import TABLE, Kind
from feedd.notices import ABOUT, NoticeKind
from tests.fakes.promtool import ALERTS, RECORDING, alert_rules, check
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOCS = ROOT / "docs" / "operate"
FAULTS = ROOT / "tests" / "e2e" / "test_alerts.py"
_LANES = {"feedd_lane_up", "feedd_lane_restarts_total"}
_NAME = re.compile(r"(?<![:\w])feedd_\w+")
_RECORDED = re.compile(r"\w+:feedd_\w+:\w+")


def recorded() -> dict[str, str]:
    """Return the expressions of the recording rules by their names."""
    groups = yaml.safe_load(RECORDING.read_text(encoding="utf-8"))["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


def series() -> set[str]:
    """Return the names of all series that a daemon or a supervisor of lanes shows."""
    names = set(_LANES)
    for metric in TABLE:
        suffixes = ("_bucket", "_count", "_sum") if metric.kind is Kind.HISTOGRAM else ("",)
        names |= {metric.name + suffix for suffix in suffixes}
    return names


def unknown(expression: str) -> set[str]:
    """Return the series and rules in an expression that do not exist."""
    return set(_NAME.findall(expression)) - series() | set(_RECORDED.findall(expression)) - recorded().keys()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", [RECORDING, ALERTS], ids=lambda path: path.name)
def test_rules_are_valid(path: Any) -> None:
    """Prometheus' own tool takes them."""
    check("check", "rules", path)


def test_rules_are_about_metrics_that_exist() -> None:
    """Each series in a rule is in the table of metrics, or recorded by another rule."""
    expressions = recorded() | {name: rule["expr"] for name, rule in alert_rules().items()}
    missing = {name: found for name, expression in expressions.items() if (found := unknown(expression))}
    assert not missing


@pytest.mark.parametrize("name", alert_rules())
def test_alerts_are_explained(name: str) -> None:
    """Each has a severity, a summary, a description, a section that tells what to do, and a row in metrics.md."""
    rule = alert_rules()[name]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    notes = rule["annotations"]
    assert notes.keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = notes["runbook_url"].partition("#")
    assert (ROOT / page).is_relative_to(DOCS)
    assert anchor in anchors(ROOT / page)
    wait = rule.get("for", "-")
    row = rf"\| `{name}` \| {rule['labels']['severity']} \| {wait} \| .+ \|"
    assert re.search(row, (DOCS / "metrics.md").read_text(encoding="utf-8")), row


def test_alerts_are_fired_by_tests() -> None:
    """A fault of a real daemon fires each of them."""
    text = FAULTS.read_text(encoding="utf-8")
    assert not [name for name in alert_rules() if f'"{name}"' not in text]


def test_harmless_notices_fire_nothing() -> None:
    """The alert about data that is left out covers the notices that warn, and no others."""
    expression = alert_rules()["FeeddDataLeftOut"]["expr"]
    (left_out,) = re.findall(r'kind!~"([^"]+)"', expression)
    assert {kind for kind in NoticeKind if not re.fullmatch(left_out, kind.value)} == {
        kind for kind in NoticeKind if ABOUT[kind].warns
    }


def test_series_exist_before_their_first_count() -> None:
    """Prometheus sees no growth of a series that appears with its first count: those that alerts watch begin at 0."""
    texts = "".join(rule["expr"] for rule in alert_rules().values()) + "".join(recorded().values())
    watched = [m for m in TABLE if m.kind is Kind.COUNTER and m.labels and f"increase({m.name}" in texts]
    assert watched
    assert [metric.name for metric in watched if not metric.values] == []
