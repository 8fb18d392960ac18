"""Instructions of the session state machine to its driver, in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import FeeddError
from feedd.values import EpochEnd, Produced

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.protocols import FeedSession
    from feedd.values import Cursor, SlotRef


@dataclass(frozen=True, slots=True)
class Produce:
    """Make the batches of ``count`` steps from ``at`` on in a slot, which is free; then call ``produced``."""

    at: Cursor
    count: int = 1


@dataclass(frozen=True, slots=True)
class Free:
    """Release the slot, because its batch is no longer read. Comes before a ``Produce`` that needs it."""

    slot: SlotRef


@dataclass(frozen=True, slots=True)
class Send:
    """Send the batches of a slot after all earlier instructions, and call ``sent``."""

    seq: int
    produced: Produced


@dataclass(frozen=True, slots=True)
class SendEnd:
    """Send the end of the epoch; nothing follows on this stream."""

    end: EpochEnd
    samples: int
    bad_samples: int


@dataclass(frozen=True, slots=True)
class SendError:
    """Send the error in-band; nothing follows on this stream."""

    error: FeeddError


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Take these slots back from a client that cannot release them any more."""

    slots: tuple[SlotRef, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the stream once all earlier messages have been written."""


Instruction = Produce | Free | Send | SendEnd | SendError | Reclaim | Finish
Outcome = Produced | EpochEnd | FeeddError | None  # None: the production was cancelled


class JobQueue:
    """The productions that no task has begun, in the order of their steps."""

    def __init__(self) -> None:
        self._jobs: deque[Produce] = deque()
        self._separate: set[int] = set()  # steps to be produced alone

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def are_due(self, feed: FeedSession) -> bool:
        """Whether a task should take productions now. Whenever a running production ends, that is asked again."""
        return bool(self._jobs) and len(self._jobs) >= feed.info.batches_per_call_least

    def add(self, job: Produce) -> None:
        """Append a production."""
        self._jobs.append(job)

    def pop(self) -> Produce:
        """Take the first production."""
        return self._jobs.popleft()

    def pop_together(self, count: int) -> list[Cursor]:
        """Take the first steps, up to ``count``, which may be produced together."""
        steps = [self._jobs.popleft().at]
        if steps[0].step not in self._separate:
            while self._jobs and len(steps) < count and self._jobs[0].at.step not in self._separate:
                steps.append(self._jobs.popleft().at)
        return steps

    def put_back(self, steps: Iterable[Cursor]) -> None:
        """Put steps back in order, because another task may have put back later ones."""
        self._jobs = deque(sorted((*map(Produce, steps), *self._jobs), key=lambda job: job.at.step))

    def separate(self, steps: Iterable[Cursor]) -> None:
        """Have steps that failed together produced one by one, and put them back by ``put_back``."""
        self._separate.update(at.step for at in steps)
