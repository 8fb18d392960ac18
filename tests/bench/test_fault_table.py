"""The fault table judges: what fails the bench, and what a cell says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.fault_table import CASES, Cell, _judge
from tests.bench.harness import Outcome
from tests.bench.report import Result

_EXACT = {"outcome": "exact", "gets": 4, "seconds": 0.5}
_OWN_ERROR = {"outcome": "error", "error": "feedd.errors.BadResponse", "gets": 4, "seconds": 0.5}


def judged(**changes: dict[str, Any]) -> Result:
    """Judge a run in which feedd gave exact bytes, but for ``changes`` by the row's index."""
    rows = {case.name: {"feedd": changes.get(f"row{index}", _EXACT)} for index, case in enumerate(CASES)}
    result = Result("faults", "", [], [])
    _judge(result, rows)
    return result


@pytest.mark.parametrize(
    ("cell", "good_everywhere", "good_if_hopeless"),
    [
        (_EXACT, True, True),
        (_OWN_ERROR, False, True),
        (_EXACT | {"outcome": "wrong"}, False, False),
        (_OWN_ERROR | {"error": "builtins.TypeError"}, False, False),
    ],
    ids=["exact", "own error", "wrong", "foreign error"],
)
def test_only_exact_bytes_or_a_due_error_pass(
    cell: dict[str, Any], good_everywhere: bool, good_if_hopeless: bool
) -> None:
    """A wrong byte or a foreign error fails the bench in every row, an error of ours where bytes could be had."""
    for index, case in enumerate(CASES):
        result = judged(**{f"row{index}": cell})
        passes = good_if_hopeless if case.hopeless else good_everywhere
        assert bool(result.outcomes) != passes
        assert all(verdict.met == passes for verdict in result.verdicts)
        assert all(case.name in outcome.failure for outcome in result.outcomes)


def test_cells_say_outcome_requests_and_time() -> None:
    """A cell has the outcome in words, the GETs and seconds, and an error's name; a dash where nothing was asked."""
    rows: list[dict[str, Any]] = [{"feedd": _EXACT}, {"feedd": _OWN_ERROR}, {}]
    shown = [Cell("x", "feedd").text(Outcome("row", rounds=[row])) for row in rows]
    assert shown == ["exact bytes\nn=4 0.5 s", "error\nn=4 0.5 s\nBadResponse", "-"]
