"""What a copy thread and a trainer wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class HostEvent(Protocol):
    """What a host can wait for."""

    def query(self) -> bool:
        """Tell whether it happened."""

    def record(self, stream: Any = None) -> None:  # noqa: ANN401 - torch.cuda.Stream, or a test's
        """Let it happen after what is queued on ``stream`` now."""

    def synchronize(self) -> None:
        """Wait until it happened."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Room for one batch on the device, and its events, which are used again for each batch in that place.

    Attributes:
        copied: the host memory has been read.
        ready: copied and transformed.
        taken: the trainer's work on the batches before has been done; recorded when the trainer takes this one.
    """

    copied: HostEvent
    ready: torch.cuda.Event | None
    taken: HostEvent
