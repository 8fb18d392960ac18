"""Prometheus' own tool: whether rules are valid, and which alerts two scrapes of a daemon fire.

It is part of Debian's package prometheus. ``.ci/run`` unpacks it into ``build/tools``, without installing a server.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus"
RECORDING, ALERTS = RULES / "feedd-recording.yml", RULES / "feedd-alerts.yml"
TARGET = {"job": "feedd", "instance": "node-1:7071"}
_LIMIT_S = 60.0
_FIRED = re.compile(r"name: (.+),\n\s*alertname: (\w+), time")
_ONCE_MIN, _LASTING_MIN = 5, 50  # when it is judged: soon after, or after every range and every "for"


def promtool() -> str:
    """Return the path of promtool; skip the test where there is none."""
    found = shutil.which("promtool") or shutil.which("promtool", path=ROOT / "build" / "tools")
    if found is None:
        pytest.skip("needs promtool, of Debian's package prometheus: on PATH or in build/tools")
    return found


def check(*arguments: str | Path) -> None:
    """Run promtool; fail with what it says if it is not content."""
    done = _run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [promtool(), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=_LIMIT_S)


def alert_rules() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for group in _groups(ALERTS) for rule in group["rules"]}


@dataclass(frozen=True, slots=True)
class Window:
    """What a daemon showed before and after something happened.

    Attributes:
        before: text of its metrics.
        after: the same; empty: it did not answer.
        once: it happened once. Otherwise it goes on, once a minute.
    """

    before: str
    after: str
    once: bool = False

    def series(self) -> Iterator[dict[str, str]]:
        """Yield the input series of a test: a scrape each minute."""
        minutes = _LASTING_MIN
        up = f"1 0x{minutes}" if not self.after else f"1x{minutes}"
        yield {"series": _name("up", TARGET), "values": up}
        past = {key: value for key, (_, value) in _values(self.before).items()}
        for (name, labels), (grows, value) in _values(self.after).items():
            before = past.get((name, labels))
            first = "_" if before is None else f"{before:.9g}"
            step = value - (before or 0.0) if grows and not self.once else 0.0
            values = f"{first} {value:.9g}+{step:.9g}x{minutes}"
            yield {"series": _name(name, dict(labels)), "values": values}


def firing(windows: Mapping[str, Window], folder: Path) -> dict[str, set[str]]:
    """Return the alerts that each window fires, by the rules that are shipped."""
    alerts = list(alert_rules())
    tests = []
    for name, window in windows.items():
        at = f"{_ONCE_MIN if window.once else _LASTING_MIN}m"
        silent = [{"eval_time": at, "alertname": alert} for alert in alerts]  # promtool tells of those that are not
        series = list(window.series())
        tests.append({"name": name, "interval": "1m", "input_series": series, "alert_rule_test": silent})
    groups = [group["name"] for path in (RECORDING, ALERTS) for group in _groups(path)]
    text = {"rule_files": [str(RECORDING), str(ALERTS)], "group_eval_order": groups, "tests": tests}
    file = folder / "alerts-test.yml"
    file.write_text(json.dumps(text), encoding="utf-8")  # as YAML it would take seconds
    done = _run("test", "rules", file)
    said = done.stdout + done.stderr
    fired: dict[str, set[str]] = {name: set() for name in windows}
    for name, alert in _FIRED.findall(said):
        fired[name].add(alert)
    assert len(_FIRED.findall(said)) == said.count("got:"), said
    return fired


def _groups(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load(path.read_text(encoding="utf-8"))["groups"])


def _values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], tuple[bool, float]]:
    """Return each sample with the target's labels: whether it only grows, and its value."""
    found = {}
    rules = RECORDING.read_text(encoding="utf-8") + ALERTS.read_text(encoding="utf-8")
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name not in rules:
                continue  # promtool's time grows with the number of series
            labels = tuple(sorted({**sample.labels, **TARGET}.items()))
            found[sample.name, labels] = (family.type != "gauge", sample.value)
    return found


def _name(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}"
