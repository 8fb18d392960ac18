"""A timer that is postponed far more often than it fires."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class LazyTimer:
    """Calls ``callback`` at a set time; moving the time costs only an assignment.

    The loop's timer behind it may fire in vain. That is cheaper than setting and cancelling a timer for each small
    request.

    Args:
        callback: called on the loop; the timer is off then.
    """

    def __init__(self, callback: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._at_s = math.inf
        # The time is kept here, because uvloop's handle of a timer that is due at once does not tell it.
        self._due_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at_s: float) -> None:
        """Fire at that time of the loop and no other; inf: never."""
        self._at_s = at_s
        if self._timer is not None and self._due_s > at_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and at_s < math.inf:
            self._due_s = at_s
            self._timer = self._loop.call_at(at_s, self._look)

    def stop(self) -> None:
        """Turn the timer off and leave no loop timer behind."""
        self._at_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._loop.time() < self._at_s:
            self.set(self._at_s)
            return
        self._at_s = math.inf
        self._callback()
