"""A pass that a library reads in advance: its batches count once the trainer takes them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from feedd_client.dataset import FeedDataset
from feedd_client.iterator import FeedIterator
from feedd_client.progress import Progress
from feedd_client.session import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Lookahead:
    """One pass over a source.

    Args:
        source: a ``FeedDataset``, or any iterable of batches.
        ahead: batches that are read and not taken, at most. A source other than a ``FeedDataset`` that keeps a
            position counts batches as they are read, so that nothing is read ahead of it.

    Attributes:
        depth: ``ahead``, for this source.
    """

    def __init__(self, source: Iterable[Any], ahead: int) -> None:
        self._progress = Progress(source)
        self._batches: Iterator[Any]
        if isinstance(source, FeedDataset):
            self._batches = source.start_pass(copy=False)
            self._batches.auto_commit, self._batches.prefetched_max = False, ahead
        else:
            self._batches = iter(source)
            ahead = 1 if hasattr(source, "state_dict") else ahead
        self.depth = ahead
        self._positions = self._progress.positions(self._batches)
        self._read_s = time.perf_counter()

    def read(self) -> tuple[Any, object]:
        """Return the next batch, and the position after it.

        Raises:
            StopIteration: the pass is over.
        """
        began_s = time.perf_counter()
        batch = next(self._batches)
        self._read_s = time.perf_counter() - began_s
        return batch, self._positions()[1]

    def took(self, position: object) -> None:
        """Record that the trainer took the batch before ``position``."""
        if isinstance(self._batches, FeedIterator):
            self._batches.times.took(time.perf_counter() - self._read_s, self._read_s)
            if isinstance(position, Position):
                self._batches.took(position)
        self._progress.took(position, self._read_s)
        self._read_s = 0.0

    def finished(self) -> None:
        """Record that the trainer saw the end of the pass."""
        self._progress.finished(self._batches)

    def close(self) -> None:
        """End the pass."""
        if isinstance(self._batches, FeedIterator):
            self._batches.close()
