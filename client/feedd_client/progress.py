"""What a DeviceLoader's trainer took: counters, the source's state at that point, and the number of each batch."""

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
    """Of one loader, over all of its passes.

    Attributes:
        batches: that the trainer took.
        wait_s: that the trainer waited for them.
        register_s: that registering shared memory with CUDA took.
        epoch: of the next pass, where the source does not count epochs itself.
        state: of a source that is no ``FeedDataset``, after the last batch the trainer took.
    """

    def __init__(self, source: object) -> None:
        self.batches = 0
        self.wait_s = 0.0
        self.register_s = 0.0
        self.epoch = 0
        self.state: dict[str, Any] | None = None
        self._source = source

    def registered(self, took_s: float) -> None:
        """Take note of what registering shared memory took."""
        self.register_s += took_s

    def took(self, position: object, wait_s: float) -> None:
        """Take note that the trainer took a batch."""
        self.batches += 1
        self.wait_s += wait_s
        if isinstance(position, Position) and isinstance(self._source, FeedDataset):
            self._source.commit(position)
        elif isinstance(position, dict):
            self.state = position

    def finished(self, batches: Iterator[Any]) -> None:
        """Take note that the trainer saw the end of the pass."""
        self.epoch += 1
        if isinstance(self._source, FeedDataset) and isinstance(batches, FeedIterator) and batches.end is not None:
            self._source.finish_epoch(*batches.end)

    def positions(self, batches: Iterator[Any]) -> Callable[[], tuple[BatchNumber, object]]:
        """Return what tells, after each batch of a pass, its number, and what the trainer has had once it takes it."""
        if isinstance(batches, FeedIterator):
            return lambda: _numbered(batches.position)
        epoch, step, stateful = self.epoch, -1, stateful_of(self._source)

        def count() -> tuple[BatchNumber, object]:
            nonlocal step
            step += 1
            return BatchNumber(epoch, step), None if stateful is None else stateful.state_dict()

        return count


def _numbered(after: Position) -> tuple[BatchNumber, Position]:
    """Return the number of what lies right before a position."""
    return BatchNumber(after.epoch, after.step if after.row else after.step - 1, after.row), after


def stateful_of(source: Any) -> Any:  # noqa: ANN401 - any iterable
    """Return what keeps the source's resume position: itself, or a DataLoader's dataset; or None."""
    if hasattr(source, "state_dict"):
        return source
    if isinstance(source, DataLoader) and source.num_workers == 0 and hasattr(source.dataset, "state_dict"):
        return source.dataset
    return None


def seeding_of(batches: Iterator[Any]) -> tuple[int, int]:
    """Return the seed and rank from which the numbers of a pass's transforms are drawn."""
    if isinstance(batches, FeedIterator):
        return batches.seeding
    return 0, dist.get_rank() if process_group_ready() else int(os.environ.get("RANK", "0"))
