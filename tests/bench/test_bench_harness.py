"""The harness itself: turns, spreads, drop-outs, CPU of a tree, pictures that are always the same."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import harness
from tests.bench.against import ratios
from tests.bench.harness import Arm, ArmFailed, Outcome, Row, Spread, interleave, run_arm
from tests.bench.pictures import HEIGHT, WIDTH, jpeg
from tests.bench.plan import Plan
from tests.bench.procs import memory_of, tree_cpu_s
from tests.bench.report import Column, Verdict

_BURN = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"


def _arm(name: str, module: str = "json.tool") -> Arm:
    return Arm(name, module, Path(sys.executable))


def test_arms_take_turns() -> None:
    """Arms run A B, B A, A B: each round begins with the next one; the first round is kept apart."""
    order: list[tuple[int, str]] = []

    def once(arm: Arm, round_index: int) -> Row:
        order.append((round_index, arm.name))
        return {"value": round_index}

    outcomes = interleave([_arm("a"), _arm("b")], 2, once, print)
    assert order == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]
    assert [outcome.warmup for outcome in outcomes] == [{"value": 0}] * 2
    assert [outcome.spread("value") for outcome in outcomes] == [Spread(1.0, 1.5, 2.0)] * 2


def test_an_arm_that_no_bench_has_is_told() -> None:
    """Asked for rows that are not there, a bench ends and names those that are; else it has only those asked for."""
    arms = [Arm(name, "m", Path(sys.executable), {}, {}) for name in ("one row", "another")]
    plan = Plan(1, quick=True, peers=None, say=print, arms=("another", "of another bench"))
    assert [arm.name for arm in plan.chosen(arms)] == ["another"]
    with pytest.raises(SystemExit, match="one of 'one row', 'another', got 'third'"):
        replace(plan, arms=("third",)).chosen(arms)


def test_a_failed_arm_drops_out_and_says_why() -> None:
    """An arm that fails once runs no more and the others go on."""
    said: list[str] = []
    calls: list[str] = []

    def once(arm: Arm, round_index: int) -> Row:
        calls.append(arm.name)
        if arm.name == "bad":
            raise ArmFailed("broken pipe")
        return {"value": 1}

    bad, good = interleave([_arm("bad"), _arm("good")], 2, once, said.append)
    assert calls == ["bad", "good", "good", "good"]
    assert bad.failure == "broken pipe"
    assert "broken pipe" in said[0]
    assert not good.failure
    assert len(good.rounds) == 2


@pytest.mark.slow
def test_an_arm_without_a_line_of_json_has_failed() -> None:
    """A process that ends badly is a failure with its last words, never a row."""
    with pytest.raises(ArmFailed, match="no_such_module"):
        run_arm(_arm("a", "no_such_module"), {}, timeout_s=30)


def test_cpu_of_children_counts() -> None:
    """What an ended child spent is part of the tree's CPU time."""
    before_s = tree_cpu_s()
    subprocess.run([sys.executable, "-c", _BURN], check=True)
    assert tree_cpu_s() - before_s >= 0.19


def test_memory_of_an_ended_process_is_nothing() -> None:
    """A process that is gone, or never was, adds nothing to a sample."""
    assert memory_of([2**22 + 1]) == (0, 0)


def test_pictures_are_reproducible_photographs() -> None:
    """The same seed and index give the same JPEG, of the size photographs of this quality have."""
    first = jpeg(0, 5)
    assert first == jpeg(0, 5)
    assert first != jpeg(0, 6)
    assert first[:2] == b"\xff\xd8"
    assert 40_000 < len(first) < 65_000
    assert (WIDTH, HEIGHT) == (500, 375)


def test_verdicts_know_both_directions() -> None:
    """A rate must reach its target, a cost must not pass it."""
    assert Verdict("rate", 1.2, 1.15).met
    assert not Verdict("rate", 1.1, 1.15).met
    assert Verdict("cost", 0.9, 1.0, at_least=False).met
    assert "NOT met" in str(Verdict("cost", 1.1, 1.0, at_least=False))


def test_verdicts_tell_rounds_apart_from_medians() -> None:
    """Medians of arms are what counts; beside them stands what single rounds say, as far as both arms have them."""
    ours = Outcome("a", rounds=[{"rate": 10.0, "later": 12.0}, {"rate": 30.0, "later": 40.0}, {"rate": 20.0}])
    peer = Outcome("b", rounds=[{"rate": 10.0}, {"rate": 20.0}, {"rate": 5.0}])
    verdict = Verdict.of("rate", ours, peer, "rate", 2.0)
    assert verdict.ratio == 2.0
    assert str(verdict) == "rate: 2.00x (target >= 2x) met; round by round 1.00-4.00, median 1.50"
    later = Verdict.of("later", ours, peer, "later", 2.0, peers="rate")
    assert later.rounds is not None
    assert (later.ratio, later.rounds.low, later.rounds.high) == (2.6, 1.2, 2.0)
    assert Verdict.of("none", ours, Outcome("c"), "rate", 1.0).rounds is None


def test_cells_show_median_and_spread() -> None:
    """A cell holds the median with minimum and maximum, and a dash where there is no figure."""
    outcome = Outcome("a", rounds=[{"rate": 1000.0}, {"rate": 3000.0}, {"rate": 2000.0}])
    assert Column("rate", "rate", digits=0, spread=True).text(outcome) == "2,000 [1,000-3,000]"
    assert Column("other", "other").text(outcome) == "-"


def test_arms_have_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """No arm compiles its sources at each start, whatever the shell of the bench forbids."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = harness._plain_environment()
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert Path(environment["PYTHONPYCACHEPREFIX"]).is_absolute()


def test_two_checkouts_are_compared_round_by_round() -> None:
    """The ratio of two checkouts is that of figures of the same round, and a round without one of them counts not."""
    rate, cpu = ("jpeg", "feedd", "samples_per_s"), ("jpeg", "feedd", "cpu_s")
    rounds = [
        {"this": {rate: 100.0, cpu: 2.0}, "other": {rate: 200.0, cpu: 1.0}},
        {"this": {rate: 300.0}, "other": {rate: 300.0, cpu: 1.0}},
        {"this": {rate: 30.0}, "other": {rate: 20.0}},
    ]
    assert ratios(rounds) == {rate: Spread(0.5, 1.0, 1.5), cpu: Spread(2.0, 2.0, 2.0)}
