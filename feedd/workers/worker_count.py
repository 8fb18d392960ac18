"""Chooses the number of decode workers: those that demand keeps busy, and some more. Pure: no I/O, no clock.

Demand is measured in workers: the average number of busy workers. While some workers idle, this is the whole demand. If
all are busy and work waits, the real demand is larger but unknown, and the number of workers grows until some idle.

The number does not oscillate under a steady load. It grows if nine tenths of the workers are busy, and shrinks only to
a number that would be busy at most seven tenths of the time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

SATURATED: Final = 0.9
"""Share of busy workers that counts as all of them."""
COMFORTABLE: Final = 0.7
"""Maximum share of busy workers after shrinking."""
GROW_AFTER_S: Final = 2.0
"""Seconds of saturation before growing: filling the slots of a new job is no lasting demand."""
SHRINK_AFTER_S: Final = 60.0
"""Seconds whose highest demand fewer workers must be able to meet; an evaluation between epochs is shorter."""
SHRINK_EVERY_S: Final = 10.0
REFUSED_S: Final = 60.0
"""Seconds without growth after a worker could not be started."""
CONTENDED: Final = 0.25
"""Share of time that workers wait for a core above which more workers would only take it from each other."""


@dataclass(frozen=True, slots=True)
class Load:
    """Measurements since the last time.

    Attributes:
        elapsed_s: seconds since then, > 0.
        busy_s: seconds that workers had work, summed over workers.
        queued_s: seconds in which work waited behind other work.
        workers: number of workers that take work now.
        contended: share of time that workers were ready to run but had no core.
        waiting_count: pieces of work that no worker holds now.
    """

    elapsed_s: float
    busy_s: float
    queued_s: float
    workers: int
    contended: float = 0.0
    waiting_count: int = 0

    @property
    def demand(self) -> float:
        """Average number of busy workers."""
        return self.busy_s / self.elapsed_s

    @property
    def saturated(self) -> bool:
        """Whether more workers would have had work."""
        return self.demand >= SATURATED * self.workers and self.queued_s >= self.elapsed_s / 2


class Autotune:
    """Computes the wanted number of workers from a series of ``Load`` values.

    Attributes:
        reason: why the number is what it is since its last change.

    Args:
        least: minimum and first value.
        most: maximum.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = max(least, most)
        self._wanted = least
        self._recent: deque[tuple[float, float]] = deque()  # (elapsed_s, demand) of the last SHRINK_AFTER_S
        self._recent_s = 0.0
        self._saturated_s = 0.0
        self._unchanged_s = 0.0
        self._refused_s = 0.0
        self.reason = ""

    @property
    def wanted(self) -> int:
        """Number of workers wanted now."""
        return self._wanted

    def observe(self, load: Load) -> int:
        """Add a measurement; return the wanted number of workers."""
        self._unchanged_s += load.elapsed_s
        self._refused_s = max(0.0, self._refused_s - load.elapsed_s)
        self._remember(load)
        settled = load.workers >= self._wanted  # all requested workers have joined
        self._saturated_s = self._saturated_s + load.elapsed_s if settled and load.saturated else 0.0
        if self._saturated_s >= GROW_AFTER_S:
            if not self._refused_s and load.contended < CONTENDED:
                reason = f"all were busy for {self._saturated_s:.0f} s, and work waited"
                self._change(min(self._most, self._wanted + max(1, self._wanted // 2)), reason)
        elif self._recent_s >= SHRINK_AFTER_S and self._unchanged_s >= SHRINK_EVERY_S:
            peak = max(demand for _, demand in self._recent)
            enough = math.ceil(peak / COMFORTABLE)
            step = max(1, self._wanted // 8)
            reason = f"at most {peak:.1f} were busy in {self._recent_s:.0f} s"
            self._change(max(self._least, min(self._wanted, max(enough, self._wanted - step))), reason)
        return self._wanted

    def refused(self, workers: int) -> None:
        """Record that a worker could not be started: ``workers`` are running, and growth pauses."""
        self._refused_s = REFUSED_S
        self._change(max(self._least, min(self._wanted, workers)), "a worker could not be started")

    def _remember(self, load: Load) -> None:
        self._recent.append((load.elapsed_s, load.demand))
        self._recent_s += load.elapsed_s
        while self._recent_s - self._recent[0][0] >= SHRINK_AFTER_S:
            self._recent_s -= self._recent.popleft()[0]

    def _change(self, wanted: int, reason: str) -> None:
        if wanted > self._wanted:  # demand measured with too few workers does not tell how many are enough
            self._recent.clear()
            self._recent_s = 0.0
        if wanted != self._wanted:
            self.reason = reason
            self._unchanged_s = self._saturated_s = 0.0
        self._wanted = wanted
