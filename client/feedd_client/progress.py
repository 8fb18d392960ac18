"""Progress of a DeviceLoader's trainer: counters, the source's state, and the number of each batch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import distributed as dist
from torch.utils.data import DataLoader

from feedd_client.agreement import process_group_ready
from feedd_client.dataset import FeedDataset
from feedd_client.iterator import FeedIterator
from feedd_client.session import Position
from feedd_client.transforms import BatchNumber

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Progress:
    """Progress of one loader over all of its passes.

    Attributes:
        batches: batches that the trainer took.
        wait_s: seconds that the trainer waited for them.
        register_s: seconds that registering shared memory with CUDA took.
        copied_bytes: bytes that were copied to the device.
        copy_s: seconds that these copies took on the device.
        epoch: epoch of the next pass, if the source does not count epochs itself.
        state: state after the trainer's last batch, for a source that is not a ``FeedDataset``.
    """

    def __init__(self, source: object) -> None:
        self.batches = 0
        self.wait_s = 0.0
        self.register_s = 0.0
        self.copied_bytes = 0
        self.copy_s = 0.0
        self.epoch = 0
        self.state: dict[str, Any] | None = None
        self._source = source

    def registered(self, took_s: float) -> None:
        """Add the seconds that registering shared memory took."""
        self.register_s += took_s

    def copied(self, size_bytes: int, took_s: float) -> None:
        """Add one batch's bytes and seconds of copies to the device."""
        self.copied_bytes += size_bytes
        self.copy_s += took_s

    def took(self, position: object, wait_s: float) -> None:
        """Record that the trainer took a batch."""
        self.batches += 1
        self.wait_s += wait_s
        if isinstance(position, Position) and isinstance(self._source, FeedDataset):
            self._source.commit(position)
        elif isinstance(position, dict):
            self.state = position

    def finished(self, batches: Iterator[Any]) -> None:
        """Record that the trainer saw the end of the pass."""
        self.epoch += 1
        if isinstance(self._source, FeedDataset) and isinstance(batches, FeedIterator) and batches.end is not None:
            self._source.finish_epoch(*batches.end)

    def positions(self, batches: Iterator[Any]) -> Callable[[], tuple[BatchNumber, object]]:
        """Return a function that gives, after each batch, its number and the source's state once it is taken."""
        if isinstance(batches, FeedIterator):
            return lambda: _numbered(batches.position)
        epoch, step, stateful = self.epoch, -1, stateful_of(self._source)

        def count() -> tuple[BatchNumber, object]:
            nonlocal step
            step += 1
            return BatchNumber(epoch, step), None if stateful is None else stateful.state_dict()

        return count


def _numbered(after: Position) -> tuple[BatchNumber, Position]:
    """Return the number of the batch right before a position, and the position."""
    return BatchNumber(after.epoch, after.step if after.row else after.step - 1, after.row), after


def stateful_of(source: Any) -> Any:  # noqa: ANN401 - any iterable
    """Return the object that keeps the source's resume position: the source, a DataLoader's dataset, or None."""
    if hasattr(source, "state_dict"):
        return source
    if isinstance(source, DataLoader) and source.num_workers == 0 and hasattr(source.dataset, "state_dict"):
        return source.dataset
    return None


def seeding_of(batches: Iterator[Any]) -> tuple[int, int]:
    """Return the seed and rank that seed the random numbers of a pass's transforms."""
    if isinstance(batches, FeedIterator):
        return batches.seeding
    return 0, dist.get_rank() if process_group_ready() else int(os.environ.get("RANK", "0"))
