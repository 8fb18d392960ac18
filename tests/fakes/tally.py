"""A recorder that keeps sums, so that tests can ask for them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedd.metrics import Metric

_Labels = tuple[tuple[str, str], ...]


class TallyRecorder:
    """Sums by metric and labels; checks the labels against the table of metrics."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, _Labels], float] = defaultdict(float)
        self.peaks: defaultdict[str, float] = defaultdict(float)

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        self._sums[self._slot(metric, labels)] += amount

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        slot = self._slot(metric, labels)
        self._sums[slot] = value
        self.peaks[metric.name] = max(self.peaks[metric.name], value)

    def move(self, metric: Metric, delta: float, **labels: str) -> None:
        slot = self._slot(metric, labels)
        self._sums[slot] += delta
        self.peaks[metric.name] = max(self.peaks[metric.name], self._sums[slot])

    def observe(self, metric: Metric, value: float, times: int = 1, /, **labels: str) -> None:
        assert value >= 0
        self._sums[self._slot(metric, labels)] += times

    def total(self, metric: Metric, **labels: str) -> float:
        """Return the sum over all label sets that contain ``labels``; of a histogram, its observations."""
        wanted = set(labels.items())
        return sum(v for (name, have), v in self._sums.items() if name == metric.name and wanted <= set(have))

    @staticmethod
    def _slot(metric: Metric, labels: dict[str, str]) -> tuple[str, _Labels]:
        assert set(labels) == set(metric.labels), f"expected labels {metric.labels}, got {sorted(labels)}"
        return metric.name, tuple(sorted(labels.items()))
