"""Events that a copy thread and a trainer wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class HostEvent(Protocol):
    """An event that the host can wait for."""

    def query(self) -> bool:
        """Return whether the event has happened."""

    def record(self, stream: Any = None) -> None:  # noqa: ANN401 - a stream of any accelerator, or a test's
        """Make the event happen after the work that is queued on ``stream`` now."""

    def synchronize(self) -> None:
        """Wait until the event has happened."""

    def elapsed_time(self, end: Any) -> float:  # noqa: ANN401 - an event of the same kind
        """Return the milliseconds from this event to ``end``; both were made to measure time, and have happened."""


class DoneEvent:
    """An event of a device without streams: whatever it stands for is done before it is recorded."""

    def query(self) -> bool:
        """Return True."""
        return True

    def record(self, stream: object = None) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Return at once."""

    def elapsed_time(self, end: object) -> float:
        """Return 0: copies were measured by the host."""
        del end
        return 0.0


@dataclass(slots=True, eq=False)
class DeviceSlot:
    """Room for one batch on the device. Its events are reused for each batch in the slot.

    Attributes:
        copied: the host memory has been read.
        ready: the batch is copied and transformed; None: it is when the copy thread hands it over.
        taken: the trainer's work on earlier batches is done; recorded when the trainer takes this batch.
        started: the copy begins.
        copied_bytes: bytes of the batch that went to the device.
        copied_s: seconds of the copy that the host measured, if the device has no events.
    """

    copied: HostEvent
    ready: HostEvent | None
    taken: HostEvent
    started: HostEvent | None = None
    copied_bytes: int = 0
    copied_s: float = 0.0

    def copy_s(self) -> float:
        """Return the seconds that the copy took; ``copied`` has happened."""
        return self.copied_s if self.started is None else self.started.elapsed_time(self.copied) / 1e3
