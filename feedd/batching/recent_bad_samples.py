"""The latest bad samples of all sessions, and where their bytes lie, for ``feedd top`` and the web page."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.owner import Owner
    from feedd.protocols import Clock
    from feedd.recipe.bad_sample_policy import Failure

SAMPLES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class RecentBadSample:
    """A sample that could not be decoded.

    Attributes:
        number: counts from 1 since the daemon's start.
        owner: whose session needed it.
        epoch: the epoch in which it was found.
        at_s: when, on the clock's monotonic time.
        outcome: "dropped", "replaced" or "error".
        failure: the sample, and why it could not be decoded.
    """

    number: int
    owner: Owner
    epoch: int
    at_s: float
    outcome: str
    failure: Failure


class RecentBadSamples:
    """Keeps the last samples. A sample that fails again, in another epoch or job of its owner, is kept once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        self._samples: OrderedDict[tuple[Owner, str, int], RecentBadSample] = OrderedDict()

    def note(self, owner: Owner, epoch: int, failures: Iterable[Failure], outcome: str) -> None:
        """Keep the bad samples of a batch."""
        for failure in failures:
            name = owner, failure.url, failure.ordinal
            before = self._samples.pop(name, None)
            number = next(self._numbers) if before is None else before.number
            self._samples[name] = RecentBadSample(number, owner, epoch, self._clock.monotonic_s(), outcome, failure)
            if len(self._samples) > SAMPLES_MAX:
                self._samples.popitem(last=False)

    def all(self) -> list[RecentBadSample]:
        """Return the samples, the oldest first."""
        return list(self._samples.values())

    def find(self, number: int) -> RecentBadSample | None:
        """Return a sample by its number, or None if it is not kept."""
        return next((one for one in self._samples.values() if one.number == number), None)
