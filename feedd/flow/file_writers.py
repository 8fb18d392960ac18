"""Who may still write to a file. Its owner asks; threads that a disk may hold up tell."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Writers:
    """Counts the writes of one file that are under way or promised; any thread.

    Nobody waits on a thread for a write to end: whoever no longer wants it marks it as stopped and goes on, and the
    owner of the file waits, with a deadline, before the file is given to readers (``writing.left_alone``).
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a finalizer may close a file between any two steps
        self._count = 0
        self._when_gone: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"Writers({self._count})"

    @property
    def count(self) -> int:
        """How many writes are under way or promised."""
        return self._count

    def begin(self) -> None:
        """Announce a write; ``end`` follows, whatever becomes of it."""
        with self._lock:
            self._count += 1

    def end(self) -> None:
        """Say that this write does not touch the file any more."""
        with self._lock:
            self._count -= 1
            assert self._count >= 0, "ended more writes than were begun"
            calls: list[Callable[[], object]] = []
            if not self._count:
                calls, self._when_gone = self._when_gone, calls
        for call in calls:
            call()

    def then(self, call: Callable[[], object]) -> None:
        """Call once nobody writes: now, or in the thread of the last writer. Must not wait for anything."""
        with self._lock:
            if self._count:
                self._when_gone.append(call)
                return
        call()
