"""The hedger under any order of samples and questions: within its account, quiet when told, the same each time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from feedd.fetch.hedge import Hedge, HedgePolicy, Hedger, Leave, LookAgain, Sight
from tests.budget import budget

POLICY = HedgePolicy(saved_bytes=5000, share=0.1, quiet_s=3.0, samples_min=4)
TIMES = st.sampled_from([0.0, 0.001, 0.02, 0.05, 0.3, 2.0, 60.0])
SIZES = st.integers(1, 2000)


class HedgerModel(RuleBasedStateMachine):
    """The model keeps what was read, what was asked twice, and when the store last throttled."""

    def __init__(self) -> None:
        super().__init__()
        self.hedger, self.twin = Hedger(POLICY), Hedger(POLICY)
        self.read_bytes = self.extra_bytes = self.sample_count = 0
        self.now_s, self.throttled_s = 0.0, float("-inf")

    @rule(size=SIZES, first_s=TIMES, body_s=TIMES)
    def note(self, size: int, first_s: float, body_s: float) -> None:
        """A request ended well."""
        for one in (self.hedger, self.twin):
            one.note(size, first_s, first_s + body_s)
        self.read_bytes += size
        self.sample_count += 1

    @rule(waited_s=TIMES)
    def note_slow(self, waited_s: float) -> None:
        """A request was given up."""
        for one in (self.hedger, self.twin):
            one.note_slow(waited_s)

    @rule(won=st.booleans())
    def hedged(self, *, won: bool) -> None:
        """A hedge ended before its first request, or after."""
        for one in (self.hedger, self.twin):
            one.hedged(won=won)

    @rule(passed_s=TIMES)
    def throttled(self, passed_s: float) -> None:
        """Time passes, and the store asks to slow down."""
        self.now_s += passed_s
        self.throttled_s = self.now_s
        for one in (self.hedger, self.twin):
            one.throttled(self.now_s)

    @rule(passed_s=TIMES)
    def wait(self, passed_s: float) -> None:
        """Time passes."""
        self.now_s += passed_s

    @rule(size=SIZES, share=st.floats(0, 1), at_s=TIMES, first_s=st.none() | TIMES, gone_s=TIMES, lag_s=TIMES)
    def judge(self, size: int, share: float, at_s: float, first_s: float | None, gone_s: float, lag_s: float) -> None:
        """Somebody looks at a request, and looked before."""
        begun = first_s is not None and first_s <= at_s
        filled = int(size * share) if begun else 0
        sight = Sight(at_s, filled, first_s if begun else None, lag_s)
        before = Sight(max(0.0, at_s - gone_s), filled // 2, first_s if begun else None)
        verdict = self.hedger.judge(size, sight, before, self.now_s)
        assert verdict == self.twin.judge(size, sight, before, self.now_s), "the same questions have the same answers"
        match verdict:
            case Hedge():
                assert self.sample_count >= POLICY.samples_min
                assert self.now_s >= self.throttled_s + POLICY.quiet_s
                assert lag_s <= POLICY.lag_max_s
                assert sight.first_byte_s is not None or at_s >= POLICY.floor_s
                assert filled < size
                self.extra_bytes += size - filled
            case LookAgain(after_s):
                assert after_s > 0
            case Leave():
                assert filled == size

    @rule(size=st.integers(0, 2000))
    def look(self, size: int) -> None:
        """A request is made."""
        after_s = self.hedger.look_after_s(size)
        assert (after_s is None) == (size == 0)
        if after_s is not None and self.sample_count >= POLICY.samples_min:
            assert after_s >= POLICY.floor_s

    @invariant()
    def within_the_account(self) -> None:
        """Never more is asked twice than the share of what was read, and what there was at first."""
        assert self.extra_bytes <= POLICY.saved_bytes + POLICY.share * self.read_bytes + 1e-3
        assert 0 <= self.hedger.account_bytes <= POLICY.saved_bytes


TestHedger = HedgerModel.TestCase
TestHedger.settings = settings(max_examples=budget(100), stateful_step_count=60, deadline=None)
