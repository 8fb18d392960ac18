"""Tracks pending writes of a file, which a disk may delay."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Writers:
    """Counts running and announced writes of one file; used from any thread.

    No thread waits for a write to end. A caller that no longer needs a write marks it as stopped and continues. The
    owner of the file waits, with a deadline, before readers get the file (``file_writing.left_alone``).
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, because a finalizer may close a file between any two steps
        self._count = 0
        self._when_gone: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"Writers({self._count})"

    @property
    def count(self) -> int:
        """Number of running and announced writes."""
        return self._count

    def begin(self) -> None:
        """Announce a write; ``end`` must follow in any case."""
        with self._lock:
            self._count += 1

    def end(self) -> None:
        """Report that one write no longer touches the file."""
        with self._lock:
            self._count -= 1
            assert self._count >= 0, "ended more writes than were begun"
            calls: list[Callable[[], object]] = []
            if not self._count:
                calls, self._when_gone = self._when_gone, calls
        for call in calls:
            call()

    def then(self, call: Callable[[], object]) -> None:
        """Call ``call`` once no write is pending: now, or in the last writer's thread. ``call`` must not wait."""
        with self._lock:
            if self._count:
                self._when_gone.append(call)
                return
        call()
