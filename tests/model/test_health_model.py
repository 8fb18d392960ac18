"""The health of a disk against a plain reference: lists of what happened, looked through every time."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from feedd.cache.health import DiskHealth, HealthOptions
from tests.budget import budget

OPTIONS = HealthOptions(
    errors_max=3, error_window_s=60.0, slow_op_s=30.0, clean_ops=4, down_after_s=200.0, full_pause_s=10.0
)


class HealthMachine(RuleBasedStateMachine):
    """Drives the machine and keeps a history it cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.health = DiskHealth(OPTIONS)
        self.now_s = 0.0
        self.state = "normal"
        self.errors_s: list[float] = []  # since the disk was last normal after being ill
        self.clean = 0
        self.ill_since_s = 0.0
        self.fulls = 0
        self.full_s = 0.0

    def age(self) -> None:
        if self.state == "unstable" and self.now_s - self.ill_since_s >= OPTIONS.down_after_s:
            self.state = "down"

    @rule(duration_s=st.sampled_from([0.0, 1.0, 9.0, 30.0, 70.0]))
    def wait(self, duration_s: float) -> None:
        self.now_s += duration_s

    @rule()
    def error(self) -> None:
        self.health.failed(self.now_s)
        self.count_error()

    def count_error(self) -> None:
        self.clean = 0
        self.errors_s.append(self.now_s)
        recent = [then_s for then_s in self.errors_s if then_s > self.now_s - OPTIONS.error_window_s]
        if self.state in {"normal", "full"} and len(recent) >= OPTIONS.errors_max:
            self.state, self.ill_since_s = "unstable", self.now_s
        self.age()

    @rule(took_s=st.sampled_from([0.0, 29.0, 30.0, 31.0]))
    def probe(self, took_s: float) -> None:
        self.health.probed(self.now_s, took_s)
        if took_s > OPTIONS.slow_op_s:
            self.count_error()
            return
        if self.state in {"unstable", "down"}:
            self.clean += 1
            if self.clean == OPTIONS.clean_ops:
                self.state, self.errors_s, self.clean = "normal", [], 0
                return
        self.age()

    @rule()
    def full(self) -> None:
        self.health.full(self.now_s)
        if self.state in {"normal", "full"}:
            self.state, self.full_s, self.fulls = "full", self.now_s, self.fulls + 1

    @rule()
    def fill(self) -> None:
        self.health.filled()
        self.fulls = 0
        if self.state == "full":
            self.state = "normal"

    @invariant()
    def same(self) -> None:
        assert self.health.state.value == self.state
        assert self.health.may_read() == (self.state != "down")
        pause_s = min(OPTIONS.full_pause_s * 2 ** (self.fulls - 1), OPTIONS.full_pause_max_s) if self.fulls else 0.0
        waited = self.state == "full" and self.now_s >= self.full_s + pause_s
        assert self.health.may_fill(self.now_s) == (self.state == "normal" or waited)
        assert (self.health.probe_interval_s() is None) == (self.state in {"normal", "full"})


HealthMachine.TestCase.settings = settings(max_examples=budget(150), stateful_step_count=40, deadline=None)
TestHealth = HealthMachine.TestCase


def test_three_errors_a_minute_and_the_way_back() -> None:
    """The defaults: three errors a minute stop writing, half an hour of that reading too, sixty probes heal."""
    health = DiskHealth(HealthOptions())
    states = []
    for now_s in (0.0, 30.0, 61.0, 62.0, 62.0 + 1800.0):  # the first is older than a minute when the third comes
        health.failed(now_s)
        states.append((health.state.value, health.may_read(), health.may_fill(now_s)))
    normal, unstable, down = ("normal", True, True), ("unstable", True, False), ("down", False, False)
    assert states == [normal, normal, normal, unstable, down]
    states.clear()
    for second in range(60):
        health.probed(2000.0 + second, 0.01)
        states.append((health.state.value, health.may_read(), health.may_fill(2000.0)))
    assert states == [down] * 59 + [normal]
