"""A timer that is put off far more often than it rings."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class LazyTimer:
    """Rings when its moment has come; until then the moment may be moved, at the cost of an assignment.

    Behind it is a timer of the loop that may go off in vain: setting and cancelling one for each small request costs
    more than that.

    Args:
        ring: called on the loop; the alarm is off then.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at_s: float) -> None:
        """Ring at that time of the loop, and at no other; inf: not at all."""
        self._at_s = at_s
        if self._timer is None and at_s < math.inf:
            self._timer = self._loop.call_at(at_s, self._look)
        elif self._timer is not None and self._timer.when() > at_s:
            self._timer.cancel()
            self._timer = self._loop.call_at(at_s, self._look)

    def stop(self) -> None:
        """Turn it off, and leave no timer behind."""
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
        self._ring()
