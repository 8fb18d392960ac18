"""What must be closed before the interpreter goes: a gRPC channel closed later waits for threads that are gone."""

from __future__ import annotations

import atexit
import contextlib
import queue
import weakref
from typing import Final, Protocol


class Closable(Protocol):
    """Has a ``close`` that may be called twice."""

    def close(self) -> None:
        """Close."""


device_passes: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()
passes: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()
runtimes: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()


class StopSign:
    """Like ``threading.Event``, but to set it takes no lock: a finalizer may, in any thread at any moment."""

    def __init__(self) -> None:
        self._is_set = False
        self._wake_ups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Return whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Set it for good."""
        self._is_set = True
        self._wake_ups.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, or for ``timeout_s``; return whether it is."""
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._wake_ups.get(timeout=max(timeout_s, 0.0))
                self._wake_ups.put(None)  # for the next that waits
        return self._is_set


def close_all() -> None:
    """Close what lives, users before what they use."""
    for group in (device_passes, passes, runtimes):
        for one in list(group):
            one.close()


atexit.register(close_all)
