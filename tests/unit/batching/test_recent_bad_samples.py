"""The latest bad samples: bounded, each once, with where its bytes lie."""

from __future__ import annotations

from feedd.batching.recent_bad_samples import SAMPLES_MAX, RecentBadSamples
from feedd.clock import SystemClock
from feedd.owner import Owner
from feedd.recipe.bad_sample_policy import Failure

ME, OTHER = Owner.of_uid(1), Owner.of_uid(2)


def test_a_sample_is_kept_once() -> None:
    """A sample that fails in each epoch keeps its number; another owner's is another."""
    recent = RecentBadSamples(SystemClock())
    torn = Failure("s3://b/x.tar", "a", "jpg", "torn", ordinal=3)
    recent.note(ME, 0, [torn], "dropped")
    recent.note(ME, 1, [torn], "dropped")
    recent.note(OTHER, 1, [torn], "replaced")
    assert [(one.number, one.epoch, one.owner, one.outcome) for one in recent.all()] == [
        (1, 1, ME, "dropped"),
        (2, 1, OTHER, "replaced"),
    ]
    found = recent.find(2)
    assert found is not None
    assert found.failure is torn
    assert recent.find(3) is None


def test_the_oldest_go() -> None:
    """Many bad samples take bounded memory; the newest stay."""
    recent = RecentBadSamples(SystemClock())
    for number in range(3 * SAMPLES_MAX):
        recent.note(ME, 0, [Failure("s3://b/x.tar", str(number), "jpg", "torn", ordinal=number)], "dropped")
    assert len(recent.all()) == SAMPLES_MAX
    assert recent.all()[-1].failure.key == str(3 * SAMPLES_MAX - 1)
    assert recent.find(1) is None
