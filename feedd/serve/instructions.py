"""Instructions of the session state machine to its driver, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import FeeddError
from feedd.values import EpochEnd, Produced

if TYPE_CHECKING:
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
