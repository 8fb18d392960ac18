from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.workers.dispatch import Meter


def test_states_count_for_as_long_as_they_last() -> None:
    """Busy workers and a queue are weighed by time, and each answer begins where the one before ended."""
    meter = Meter(10.0)
    meter.note(11.0, 2, queued=False)
    meter.note(13.0, 3, queued=True)
    meter.note(14.0, 0, queued=False)
    assert meter.take(15.0) == (5.0, 7.0, 1.0)
    meter.note(16.0, 1, queued=True)
    assert meter.take(18.0) == (3.0, 2.0, 2.0)
    assert meter.take(19.0) == (1.0, 1.0, 1.0)


@given(
    events=st.lists(st.tuples(st.floats(0, 10), st.integers(0, 8), st.booleans(), st.booleans()), max_size=50),
)
def test_nothing_is_lost_between_answers(events: list[tuple[float, int, bool, bool]]) -> None:
    """However often it is asked, the parts add up to the whole, and no more can be busy than there are workers."""
    meter, whole = Meter(0.0), Meter(0.0)
    now_s = 0.0
    sums = [0.0, 0.0, 0.0]
    for wait_s, busy, queued, asks in events:
        now_s += wait_s
        for one in (meter, whole):
            one.note(now_s, busy, queued=queued)
        if asks:
            sums = [a + b for a, b in zip(sums, meter.take(now_s), strict=True)]
    sums = [a + b for a, b in zip(sums, meter.take(now_s + 1.0), strict=True)]
    assert sums == pytest.approx(whole.take(now_s + 1.0))
    assert sums[1] <= 8 * sums[0] + 1e-9
    assert sums[2] <= sums[0] + 1e-9
