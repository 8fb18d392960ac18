"""The dashboard for Grafana: panels that explain themselves, queries that parse, and every metric somewhere."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any

from feedd.metrics import TABLE
from tests.fakes.promtool import check
from tests.tidy.test_prometheus import recorded, unknown
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "feedd.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ROWS = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"percentunit", "none", "short", "s", "bytes", "Bps", "ops", "reqps"}
_SUFFIXES = ("_bucket", "_count", "_sum", "")
_WIDTH = 24


def _queries() -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]


def test_it_is_a_dashboard_of_grafana_10() -> None:
    """Its identity is stable, its variables choose source, node and lane, and ids are unique."""
    assert (DASHBOARD["id"], DASHBOARD["uid"], DASHBOARD["schemaVersion"]) == (None, "feedd-node", 38)
    assert [(one["name"], one["type"]) for one in DASHBOARD["templating"]["list"]] == [
        ("datasource", "datasource"),
        ("instance", "query"),
        ("lane", "query"),
    ]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert ROWS[0] == "Are trainers waiting?"
    assert len(ROWS) == 8


def test_panels_lie_side_by_side() -> None:
    """No panel covers another one or leaves the grid."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= _WIDTH, panel["title"]
        cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not cells & taken, panel["title"]
        taken |= cells


def test_panels_explain_themselves() -> None:
    """Each has a title of its own, a description, a unit, thresholds, and queries to the chosen source."""
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    for panel in PANELS:
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["type"] in {"stat", "timeseries", "table"}
        assert panel["description"].endswith("."), panel["title"]
        assert defaults["unit"] in UNITS, panel["title"]
        assert defaults["thresholds"]["steps"][0]["value"] is None
        assert all(target["datasource"] == SOURCE for target in (panel, *panel["targets"]))
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_queries_ask_for_what_exists() -> None:
    """Each names metrics of the table or recording rules, and looks at the chosen nodes and lanes only."""
    for title, expression in _queries():
        assert not unknown(expression), title
        if "ALERTS" not in expression:
            names = len(re.findall(r"feedd_\w+(?::\w+)?{", expression))
            assert expression.count('{instance=~"$instance",lane=~"$lane"') == names > 0, title


def test_every_metric_is_on_it() -> None:
    """Each metric of the table is shown, by itself or in a recording rule that is shown."""
    shown = " ".join(expression for _, expression in _queries())
    shown += " ".join(expression for name, expression in recorded().items() if name in shown)
    shown += " ".join(expression for name, expression in recorded().items() if name in shown)  # rules of rules
    missing = [m.name for m in TABLE if not any(re.search(rf"\b{m.name}{end}\b", shown) for end in _SUFFIXES)]
    assert not missing


def test_every_recording_rule_is_used() -> None:
    """A rule that neither the dashboard nor another rule reads only costs."""
    texts = " ".join(expression for _, expression in _queries()) + " ".join(
        path.read_text(encoding="utf-8").replace("record: ", "record:#") for path in (ROOT / "deploy").glob("*/*.yml")
    )
    assert not [name for name in recorded() if not re.search(rf"(?<!#){re.escape(name)}", texts)]


def test_queries_parse(tmp_path: Path) -> None:
    """Prometheus' own tool takes each of them."""
    rules = []
    for number, (_, expression) in enumerate(_queries()):
        plain = expression.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$lane", ".*")
        rules.append({"record": f"panel:query_{number}", "expr": plain})
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")
    check("check", "rules", file)
