"""Workers' time is shared evenly between owners, however many sessions each has and however long their rows take."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from feedd.workers.schedule import Call, Schedule


class _Clock:
    """Workers that take as long for a chunk as its owner's rows cost."""

    def __init__(self, workers: int) -> None:
        self.schedule = Schedule(4)
        self.busy_s: dict[str, float] = defaultdict(float)
        self._free_at = dict.fromkeys(range(workers), 0.0)
        for worker in range(workers):
            self.schedule.join(worker)

    def run(self, costs: dict[str, float], sessions: dict[str, int], until_s: float) -> None:
        """Keep every session busy with calls of several chunks."""
        streams = [(owner, f"{owner}{n}") for owner, count in sessions.items() for n in range(count)]
        numbers = {name: number for number, (_, name) in enumerate(streams, 1)}
        open_calls: dict[str, Call] = {}
        now_s = 0.0
        while now_s < until_s:
            for owner, name in streams:
                if name not in open_calls or open_calls[name].over:
                    open_calls[name] = call = Call(numbers[name], owner=owner)
                    self.schedule.submit(call, 8, 1)
            while self.schedule.assign() is not None:
                pass
            worker = min(self._free_at, key=self._free_at.__getitem__)
            running = self.schedule.running(worker)
            assert running is not None
            assert isinstance(running.call.owner, str)
            cost_s = costs[running.call.owner]
            now_s = self._free_at[worker]
            self._free_at[worker] += cost_s
            self.busy_s[running.call.owner] += cost_s
            self.schedule.finish(worker, cost_s)


def test_64_sessions_of_4_owners() -> None:
    """One has 40 sessions, one has rows of 0.4 s; each gets a quarter of the time within a tenth."""
    clock = _Clock(4)
    sessions = {"many": 40, "slow": 8, "few": 4, "plain": 12}
    clock.run({"many": 0.02, "slow": 0.4, "few": 0.05, "plain": 0.1}, sessions, 120.0)
    mean_s = sum(clock.busy_s.values()) / 4
    assert all(abs(busy_s / mean_s - 1) < 0.1 for busy_s in clock.busy_s.values()), clock.busy_s


@pytest.mark.parametrize("seed", range(5))
def test_any_owners(seed: int) -> None:
    """Whatever their rows cost, and however many sessions they have."""
    rng = random.Random(seed)
    owners = [f"o{n}" for n in range(rng.randint(2, 6))]
    clock = _Clock(rng.randint(1, 4))
    costs = {owner: rng.choice([0.02, 0.05, 0.1, 0.3]) for owner in owners}
    clock.run(costs, {owner: rng.randint(4, 12) for owner in owners}, 60.0)
    mean_s = sum(clock.busy_s.values()) / len(owners)
    assert all(abs(busy_s / mean_s - 1) < 0.1 for busy_s in clock.busy_s.values()), clock.busy_s


def test_who_had_nothing_to_do_starts_level() -> None:
    """Time that an owner did not use is not owed to it: others are not held up when it comes back."""
    schedule = Schedule(1)
    schedule.join(0)
    first, late = Call(1, owner="first"), Call(2, owner="late")
    schedule.submit(first, 30, 1)
    for _ in range(10):
        schedule.assign()
        schedule.finish(0, 1.0)
    schedule.submit(late, 30, 1)
    order = []
    for _ in range(8):
        assigned = schedule.assign()
        assert assigned is not None
        order.append(assigned[1].call)
        schedule.finish(0, 1.0)
    assert {order.count(first), order.count(late)} == {4}


def test_calls_without_an_owner_wait_for_nobody() -> None:
    """Indexes and conversions serve all; one owner alone is never held up either."""
    schedule = Schedule(1)
    schedule.join(0)
    nobody, owned = Call(0), Call(1, owner="a")
    schedule.submit(owned, 2, 1)
    schedule.charge(owned, 1000.0)
    schedule.submit(nobody, 1, 1)
    found = []
    while (assigned := schedule.assign()) is not None:
        found.append(assigned[1].call)
        schedule.finish(0, 1.0)
    assert sorted(call.stream for call in found) == [0, 1, 1]
