"""What must be closed before the interpreter goes: a gRPC channel closed later waits for threads that are gone."""

from __future__ import annotations

import atexit
import weakref
from typing import Final, Protocol


class Closable(Protocol):
    """Has a ``close`` that may be called twice."""

    def close(self) -> None:
        """Close."""


device_passes: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()
passes: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()
runtimes: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()


def close_all() -> None:
    """Close what lives, users before what they use."""
    for group in (device_passes, passes, runtimes):
        for one in list(group):
            one.close()


atexit.register(close_all)
