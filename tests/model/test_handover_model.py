"""A handover with deaths, silence and nonsense at every moment: never two daemons that serve, never none."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feedd.daemon.handover_machine import HandoverStage, HandoverStep, PredecessorMachine
from feedd.daemon.handover_messages import VERSION
from tests.budget import budget


class HandoverModel(RuleBasedStateMachine):
    """The predecessor's machine with its driver, a successor that may die, and the name that clients connect to."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = PredecessorMachine()
        self.to_successor: list[str] = []
        self.to_predecessor: list[str] = []
        self.successor = "none"  # none, waiting, prepared, ready, serving
        self.name = "predecessor"  # whose socket has the public name
        self.paused = self.ended = self.must_end = False

    def _carry_out(self, step: HandoverStep) -> None:
        if step in {HandoverStep.TELL, HandoverStep.SWITCH, HandoverStep.PUBLISH}:
            self.paused |= step is HandoverStep.SWITCH
            self.to_successor.append(step.value)
        elif step is HandoverStep.RESUME:
            assert not self.must_end, "a daemon that must end serves on"
            self.paused, self.name = False, "predecessor"
        elif step is HandoverStep.END:
            self.ended = True
        if self.machine.stage in {HandoverStage.ALONE, HandoverStage.OVER}:
            self.to_predecessor.clear()  # the link is closed
            publishes = self.successor == "serving" or HandoverStep.PUBLISH.value in self.to_successor
            if self.machine.stage is HandoverStage.ALONE and not publishes:
                self.successor = "none"  # it waits for the predecessor's end, and can do no harm

    # ------------------------------------------------------------------ the predecessor

    @precondition(lambda self: not self.ended and self.to_predecessor)
    @rule()
    def hear(self) -> None:
        event = {
            "prepared": self.machine.prepared,
            "takeover": self.machine.takeover_requested,
            "ready": self.machine.ready,
            "go": self.machine.go,
        }[self.to_predecessor.pop(0)]
        self._carry_out(event())

    @precondition(lambda self: not self.ended)
    @rule(really=st.integers(0, 3))
    def sigterm(self, really: int) -> None:
        if not really:
            self.must_end = True
            self._carry_out(self.machine.end_requested())

    @precondition(lambda self: self.machine.patience_s is not None)
    @rule()
    def patience_ends(self) -> None:
        if not self.ended:
            self._carry_out(self.machine.late())

    @precondition(lambda self: not self.ended and self.machine.stage is not HandoverStage.ALONE)
    @rule(version=st.sampled_from([VERSION, VERSION + 1]))
    def another_successor(self, version: int) -> None:
        assert self.machine.hello(version) is HandoverStep.REFUSE

    # ------------------------------------------------------------------ the successor

    @precondition(lambda self: self.successor == "none" and not self.ended)
    @rule()
    def hello(self) -> None:
        self.to_successor.clear()
        self.to_predecessor.clear()
        step = self.machine.hello(VERSION)
        assert (step is HandoverStep.REFUSE) == self.must_end
        if step is HandoverStep.TELL:
            self.successor = "waiting"
            self._carry_out(step)

    @precondition(lambda self: self.to_successor and self.successor != "none")
    @rule(takes_over=st.booleans())
    def successor_hears(self, takes_over: bool) -> None:
        message = self.to_successor.pop(0)
        if message == "tell":
            self.successor = "prepared"
            self.to_predecessor += ["prepared", "takeover"] if takes_over else ["prepared"]
        elif message == "switch":
            self.successor = "ready"
            self.to_predecessor.append("ready")
        else:
            assert self.successor == "ready"
            self.successor, self.name = "serving", "successor"
            self.to_predecessor.append("go")

    @precondition(lambda self: self.successor != "none")
    @rule(really=st.integers(0, 3))
    def successor_dies(self, really: int) -> None:
        if really:
            return
        self.successor = "none"
        self.to_successor.clear()
        self.to_predecessor.clear()
        if not self.ended:
            self._carry_out(self.machine.lost())

    @precondition(lambda self: self.ended)
    @rule()
    def nothing_more(self) -> None:
        assert self.machine.hello(VERSION) is HandoverStep.REFUSE, "a daemon that ends takes a successor"

    # ------------------------------------------------------------------ invariants

    @invariant()
    def the_name_is_of_a_daemon_that_serves(self) -> None:
        if self.name == "successor" and self.successor != "serving":
            assert self.ended, "clients reach a dead successor while the predecessor serves"

    @invariant()
    def nothing_is_published_before_the_predecessor_commits(self) -> None:
        if self.successor == "serving" and not self.ended:
            assert self.machine.stage in {HandoverStage.COMMITTED, HandoverStage.OVER} or self.must_end
            assert self.paused

    @invariant()
    def without_a_successor_the_predecessor_serves(self) -> None:
        if not self.ended and self.machine.stage is HandoverStage.ALONE:
            assert not self.paused, "streams stay paused for a successor that is gone"
            assert self.name == "predecessor"

    @invariant()
    def who_must_end_does(self) -> None:
        if self.must_end and self.machine.stage in {HandoverStage.ALONE, HandoverStage.OVER}:
            assert self.ended

    @invariant()
    def nobody_waits_for_a_silent_successor(self) -> None:
        if self.paused or (self.must_end and not self.ended):
            assert self.machine.patience_s is not None or self.ended


HandoverModel.TestCase.settings = settings(max_examples=budget(300), stateful_step_count=30, deadline=None)
TestHandoverModel = HandoverModel.TestCase


def test_a_signal_before_a_takeover_begins_the_same() -> None:
    """A successor that asks for what has begun is not given up."""
    machine = PredecessorMachine()
    machine.hello(VERSION)
    machine.end_requested()
    assert machine.prepared() is HandoverStep.SWITCH
    assert machine.takeover_requested() is HandoverStep.NOTHING
    assert machine.ready() is HandoverStep.PUBLISH


def test_a_silent_successor_is_forgotten_only_before_it_may_publish() -> None:
    """Afterwards it may be serving already, so its predecessor ends; its death still leads back."""
    machine = PredecessorMachine()
    machine.hello(VERSION)
    machine.prepared()
    machine.takeover_requested()
    assert machine.late() is HandoverStep.RESUME
    for last, step in ((machine.late, HandoverStep.END), (machine.lost, HandoverStep.RESUME)):
        machine.stage = HandoverStage.ALONE
        machine.hello(VERSION)
        machine.prepared()
        machine.takeover_requested()
        machine.ready()
        assert last() is step
