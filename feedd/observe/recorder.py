"""Recorders: to Prometheus for the daemon, to a dict for tests and short commands, or to nothing."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from feedd.errors import Internal
from feedd.metrics import TABLE, Kind

if TYPE_CHECKING:
    from feedd.metrics import Metric

# From a cache hit on tmpfs to a stalled store; seconds.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One measured value, as in ``Admin.Stats`` and on the status page.

    Attributes:
        name: exposition name; a histogram gives ``_sum``, ``_count`` and one ``_bucket`` per bound.
    """

    name: str
    labels: dict[str, str]
    value: float


def _label_values(metric: Metric, labels: dict[str, str]) -> tuple[str, ...]:
    if len(labels) != len(metric.labels) or any(name not in labels for name in metric.labels):
        raise Internal(f"expected labels {metric.labels} for {metric.name}, got {tuple(labels)}", stage="observe")
    return tuple(labels[name] for name in metric.labels)


_Series = TypeVar("_Series", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class _Family(Generic[_Series]):
    """Series of one kind. Children are kept, because Prometheus' ``labels()`` locks and checks names at each call."""

    parents: dict[str, _Series]
    children: dict[object, _Series] = field(default_factory=dict)

    def child(self, metric: Metric, labels: dict[str, str]) -> _Series:
        # labels in the caller's order: two orders lead to the same series
        key = (metric.name, *labels.items()) if labels else metric.name
        child = self.children.get(key)
        if child is None:
            values = _label_values(metric, labels)
            parent = self.parents[metric.name]
            child = self.children[key] = parent.labels(*values) if values else parent
        return child


class PrometheusRecorder:
    """Every row of ``feedd.metrics.TABLE`` in a separate registry; safe to call from any thread."""

    def __init__(self) -> None:
        # They would add an unused time series to every counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left this one untyped
        self.registry = CollectorRegistry()
        self._counters: _Family[Counter] = _Family({})
        self._gauges: _Family[Gauge] = _Family({})
        self._histograms: _Family[Histogram] = _Family({})
        for metric in TABLE:
            about = (metric.name, metric.help, metric.labels)
            if metric.kind is Kind.COUNTER:
                self._counters.parents[metric.name] = Counter(*about, registry=self.registry)
            elif metric.kind is Kind.GAUGE:
                self._gauges.parents[metric.name] = Gauge(*about, registry=self.registry)
            else:
                self._histograms.parents[metric.name] = Histogram(*about, registry=self.registry, buckets=BUCKETS_S)
            for value in metric.values:
                self.count(metric, 0.0, **{metric.labels[0]: value})

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        self._counters.child(metric, labels).inc(amount)

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._gauges.child(metric, labels).set(value)

    def move(self, metric: Metric, delta: float, **labels: str) -> None:
        """Add to a gauge; ``delta`` may be negative."""
        self._gauges.child(metric, labels).inc(delta)

    def observe(self, metric: Metric, value: float, times: int = 1, /, **labels: str) -> None:
        """Add an observation to a histogram, ``times`` times."""
        child = self._histograms.child(metric, labels)
        if times == 1:
            child.observe(value)
            return
        # The library adds one observation at a time, which takes 3 us.
        total, buckets, bounds = child._sum, child._buckets, child._upper_bounds  # noqa: SLF001 - it has no other way
        total.inc(value * times)
        buckets[bisect_left(bounds, value)].inc(times)

    def samples(self) -> list[MetricSample]:
        """Return every current value, in the table's order."""
        return [
            MetricSample(sample.name, dict(sample.labels), float(sample.value))
            for family in self.registry.collect()
            for sample in family.samples
        ]

    def total(self, metric: Metric) -> float:
        """Return a counter or gauge summed over its labels."""
        family: Counter | Gauge = (self._counters if metric.kind is Kind.COUNTER else self._gauges).parents[metric.name]
        return sum(sample.value for found in family.collect() for sample in found.samples if sample.name == metric.name)

    def exposition(self) -> bytes:
        """Render all values in Prometheus' text format."""
        return generate_latest(self.registry)


class NullRecorder:
    """A recorder that drops everything."""

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Do nothing."""

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Do nothing."""

    def move(self, metric: Metric, delta: float, **labels: str) -> None:
        """Do nothing."""

    def observe(self, metric: Metric, value: float, times: int = 1, /, **labels: str) -> None:
        """Do nothing."""


class TotalRecorder(NullRecorder):
    """A recorder that adds up one counter, over all its labels.

    Attributes:
        total: the sum.
    """

    def __init__(self, metric: Metric) -> None:
        self.total = 0.0
        self._metric = metric

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to the sum."""
        del labels
        if metric is self._metric:
            self.total += amount


@dataclass
class MemoryRecorder:
    """Keeps values in dicts, and checks kinds and labels as strictly as the Prometheus recorder.

    Attributes:
        values: counters and gauges by (metric name, label values).
        observations: histograms' raw observations by the same key.
    """

    values: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    observations: dict[tuple[str, tuple[str, ...]], list[float]] = field(default_factory=dict)

    def _key(self, metric: Metric, kind: Kind, labels: dict[str, str]) -> tuple[str, tuple[str, ...]]:
        if metric.kind is not kind:
            raise Internal(f"expected a {kind.value}, got {metric.kind.value} {metric.name}", stage="observe")
        return metric.name, _label_values(metric, labels)

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        if amount < 0:
            raise Internal(f"expected {metric.name} to grow, got {amount}", stage="observe")
        key = self._key(metric, Kind.COUNTER, labels)
        self.values[key] = self.values.get(key, 0.0) + amount

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        self.values[self._key(metric, Kind.GAUGE, labels)] = value

    def move(self, metric: Metric, delta: float, **labels: str) -> None:
        """Add to a gauge."""
        key = self._key(metric, Kind.GAUGE, labels)
        self.values[key] = self.values.get(key, 0.0) + delta

    def observe(self, metric: Metric, value: float, times: int = 1, /, **labels: str) -> None:
        """Store an observation, ``times`` times."""
        self.observations.setdefault(self._key(metric, Kind.HISTOGRAM, labels), []).extend([value] * times)

    def total(self, metric: Metric) -> float:
        """Return a counter or gauge summed over its labels; 0 if it was never changed."""
        return sum(value for (name, _), value in self.values.items() if name == metric.name)
