"""Common progress of the readers of one node's epoch: which windows no reader needs any more."""

from __future__ import annotations


class Progress:
    """Windows behind the slowest open reader. Synchronous; one per (dataset, node, epoch)."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._left = 0

    @property
    def reader_count(self) -> int:
        """Number of readers that joined and did not leave."""
        return len(self._at)

    def join(self, reader: str, window: int) -> range:
        """Add or move a reader to ``window``; return the windows that had been left and are needed again."""
        again = range(window, max(window, self._left))
        self._at[reader] = window
        self._left = min(self._left, window)
        return again

    def advance(self, reader: str, window: int) -> range:
        """Move a reader forward (never back); return the windows that all readers have now left."""
        if reader in self._at:
            self._at[reader] = max(self._at[reader], window)
        return self._leave()

    def leave(self, reader: str) -> range:
        """Remove a reader; return the windows that all readers have now left."""
        self._at.pop(reader, None)
        return self._leave()

    def _leave(self) -> range:
        slowest = min(self._at.values(), default=self._left)
        left = range(self._left, max(slowest, self._left))
        self._left = left.stop
        return left
