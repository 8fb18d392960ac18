"""One recorder for several caches: counters add up by themselves, gauges do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedd.metrics import Metric
    from feedd.protocols import Recorder

_Slot = tuple[str, tuple[tuple[str, str], ...]]


class JointGauges:
    """Hands out one recorder per cache; each published gauge is the sum of the caches' last values."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._shares: list[dict[_Slot, float]] = []

    def part(self) -> Recorder:
        """Return the recorder of one more cache."""
        self._shares.append({})
        return _Part(self._recorder, self._shares[-1], self._shares)


class _Part:
    """A ``Recorder`` that sums gauges over all caches."""

    def __init__(self, recorder: Recorder, mine: dict[_Slot, float], all_shares: list[dict[_Slot, float]]) -> None:
        self._recorder = recorder
        self._mine = mine
        self._all = all_shares

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        self._recorder.count(metric, amount, **labels)

    def observe(self, metric: Metric, value: float, times: int = 1, /, **labels: str) -> None:
        self._recorder.observe(metric, value, times, **labels)

    def move(self, metric: Metric, delta: float, **labels: str) -> None:
        self._recorder.move(metric, delta, **labels)

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        slot = (metric.name, tuple(sorted(labels.items())))
        self._mine[slot] = value
        self._recorder.gauge(metric, sum(part.get(slot, 0.0) for part in self._all), **labels)
