"""Events that a copy thread and a trainer wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class HostEvent(Protocol):
    """An event that the host can wait for."""

    def query(self) -> bool:
        """Return whether the event has happened."""

    def record(self, stream: Any = None) -> None:  # noqa: ANN401 - torch.cuda.Stream, or a test's stream
        """Make the event happen after the work that is queued on ``stream`` now."""

    def synchronize(self) -> None:
        """Wait until the event has happened."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceSlot:
    """Room for one batch on the device. Its events are reused for each batch in the slot.

    Attributes:
        copied: the host memory has been read.
        ready: the batch is copied and transformed.
        taken: the trainer's work on earlier batches is done; recorded when the trainer takes this batch.
    """

    copied: HostEvent
    ready: torch.cuda.Event | None
    taken: HostEvent
