"""Objects to close before the interpreter ends: a gRPC channel closed later waits for threads that have ended."""

from __future__ import annotations

import atexit
import contextlib
import queue
import weakref
from typing import Final, Protocol


class Closable(Protocol):
    """An object whose ``close`` may be called twice."""

    def close(self) -> None:
        """Close the object and free its resources."""


device_passes: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()
passes: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()
runtimes: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()


class StopSign:
    """Like ``threading.Event``, but ``set`` takes no lock, so that a finalizer may call it in any thread."""

    def __init__(self) -> None:
        self._is_set = False
        self._wake_ups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Return whether the sign is set."""
        return self._is_set

    def set(self) -> None:
        """Set the sign for good."""
        self._is_set = True
        self._wake_ups.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the sign is set, at most ``timeout_s`` seconds; return whether it is set."""
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._wake_ups.get(timeout=max(timeout_s, 0.0))
                self._wake_ups.put(None)  # wakes the next waiting thread
        return self._is_set


def close_all() -> None:
    """Close all live objects, users before the objects they use."""
    for group in (device_passes, passes, runtimes):
        for one in list(group):
            one.close()


atexit.register(close_all)
