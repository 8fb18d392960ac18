"""How many decode workers there should be: as many as demand keeps busy, and some more. Pure: no I/O, no clock.

Demand is measured in workers: how many were at work on average. It is the whole demand while some idle; where all are
at work and more waits, it is more than that, nobody can say how much, and the crew grows until some idle.

It cannot swing under a steady load: it grows where nine tenths of the crew are at work, and shrinks to no fewer than
are at work for seven tenths of the time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

SATURATED: Final = 0.9
"""Share of the crew at work from which on it counts as all of it."""
COMFORTABLE: Final = 0.7
"""Share of the crew at work that a shrunk one is to have at most."""
GROW_AFTER_S: Final = 2.0
"""Saturated for so long: filling the slots of a job that starts is no lasting demand."""
SHRINK_AFTER_S: Final = 60.0
"""The highest demand of so long is what a smaller crew must be enough for: an evaluation between epochs is shorter."""
SHRINK_EVERY_S: Final = 10.0
REFUSED_S: Final = 60.0
"""After a worker could not be started none is asked for, for so long."""
CONTENDED: Final = 0.25
"""Share of their time that workers wait for a core, from which on more workers would only take it from each other."""


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured since the time before.

    Attributes:
        elapsed_s: since then, > 0.
        busy_s: time workers had something to do, summed over them.
        queued_s: time in which work waited behind work.
        workers: those that take work now.
        contended: share of their time that workers were ready to run and had no core.
    """

    elapsed_s: float
    busy_s: float
    queued_s: float
    workers: int
    contended: float = 0.0

    @property
    def demand(self) -> float:
        """Workers at work, on average."""
        return self.busy_s / self.elapsed_s

    @property
    def saturated(self) -> bool:
        """Whether more workers would have found something to do."""
        return self.demand >= SATURATED * self.workers and self.queued_s >= self.elapsed_s / 2


class Autotune:
    """Says how many workers are wanted, given one ``Load`` after the other.

    Args:
        least: never fewer; what it begins with.
        most: never more.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = max(least, most)
        self._wanted = least
        self._recent: deque[tuple[float, float]] = deque()  # elapsed_s, demand: of the last SHRINK_AFTER_S
        self._recent_s = 0.0
        self._saturated_s = 0.0
        self._unchanged_s = 0.0
        self._refused_s = 0.0

    @property
    def wanted(self) -> int:
        """Workers wanted now."""
        return self._wanted

    def observe(self, load: Load) -> int:
        """Take note of what was measured, and return how many workers are wanted."""
        self._unchanged_s += load.elapsed_s
        self._refused_s = max(0.0, self._refused_s - load.elapsed_s)
        self._remember(load)
        settled = load.workers >= self._wanted  # those asked for last have come
        self._saturated_s = self._saturated_s + load.elapsed_s if settled and load.saturated else 0.0
        if self._saturated_s >= GROW_AFTER_S:
            if not self._refused_s and load.contended < CONTENDED:
                self._change(min(self._most, self._wanted + max(1, self._wanted // 2)))
        elif self._recent_s >= SHRINK_AFTER_S and self._unchanged_s >= SHRINK_EVERY_S:
            enough = math.ceil(max(demand for _, demand in self._recent) / COMFORTABLE)
            step = max(1, self._wanted // 8)
            self._change(max(self._least, min(self._wanted, max(enough, self._wanted - step))))
        return self._wanted

    def refused(self, workers: int) -> None:
        """Take note that a worker could not be started: there are ``workers``, and asking for more waits."""
        self._refused_s = REFUSED_S
        self._wanted = max(self._least, min(self._wanted, workers))

    def _remember(self, load: Load) -> None:
        self._recent.append((load.elapsed_s, load.demand))
        self._recent_s += load.elapsed_s
        while self._recent_s - self._recent[0][0] >= SHRINK_AFTER_S:
            self._recent_s -= self._recent.popleft()[0]

    def _change(self, wanted: int) -> None:
        if wanted > self._wanted:  # what was measured of a crew too small says nothing of what would be enough
            self._recent.clear()
            self._recent_s = 0.0
        if wanted != self._wanted:
            self._unchanged_s = self._saturated_s = 0.0
        self._wanted = wanted
