"""Instructions of the session state machine to its driver, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import FeeddError
from feedd.values import BatchReady, EpochEnd

if TYPE_CHECKING:
    from feedd.values import Cursor, SlotRef


@dataclass(frozen=True, slots=True)
class Produce:
    """Decode the batch at ``at`` into ``slot``, then call ``produced``."""

    at: Cursor
    slot: SlotRef


@dataclass(frozen=True, slots=True)
class Send:
    """Send this batch after all earlier instructions, and call ``sent``."""

    seq: int
    batch: BatchReady
    slot: SlotRef


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
    """These slots were reclaimed from a client that cannot release them any more."""

    slots: tuple[SlotRef, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the stream once all earlier messages have been written."""


Instruction = Produce | Send | SendEnd | SendError | Reclaim | Finish
Outcome = BatchReady | EpochEnd | FeeddError | None  # None: the production was cancelled
