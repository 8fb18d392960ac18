"""Recorders: every metric of the table, strict labels, values that come out as they went in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd import metrics
from feedd.errors import Internal
from feedd.metrics import TABLE, Kind, Metric
from feedd.observe.recorder import MemoryRecorder, NullRecorder, PrometheusRecorder

if TYPE_CHECKING:
    from feedd.protocols import Recorder


def _labels(metric: Metric) -> dict[str, str]:
    return dict.fromkeys(metric.labels, "x")


def _touch(recorder: Recorder, metric: Metric) -> None:
    if metric.kind is Kind.COUNTER:
        recorder.count(metric, 2.0, **_labels(metric))
    elif metric.kind is Kind.GAUGE:
        recorder.gauge(metric, 3.0, **_labels(metric))
        recorder.move(metric, -1.0, **_labels(metric))
    else:
        recorder.observe(metric, 2.0, **_labels(metric))


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)
def test_every_metric_is_measured_and_exposed(metric: Metric) -> None:
    """Each row of the table takes its kind of measurement and appears in the exposition with its help."""
    recorder = PrometheusRecorder()
    _touch(recorder, metric)
    name = f"{metric.name}_sum" if metric.kind is Kind.HISTOGRAM else metric.name
    found = [sample for sample in recorder.samples() if sample.name == name and sample.value]
    assert [(sample.labels, sample.value) for sample in found] == [(_labels(metric), 2.0)]
    assert metric.help in recorder.exposition().decode()


def test_table_names_are_unique_and_well_formed() -> None:
    """Names are unique, start with feedd_, and end in their unit and in _total exactly for counters."""
    assert len({metric.name for metric in TABLE}) == len(TABLE)
    for metric in TABLE:
        assert metric.name.startswith("feedd_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert metric.name.removesuffix("_total").endswith(metric.unit), metric.name


@pytest.mark.parametrize("recorder", [PrometheusRecorder(), MemoryRecorder()], ids=["prometheus", "memory"])
def test_wrong_labels_are_a_defect(recorder: Recorder) -> None:
    """A missing, an extra and a misspelt label are refused, not silently a new series."""
    for labels in ({}, {"op": "get"}, {"op": "get", "result": "ok"}, {"op": "get", "outcome": "ok", "x": "y"}):
        with pytest.raises(Internal, match="expected labels"):
            recorder.count(metrics.SOURCE_REQUESTS, 1.0, **labels)


def test_label_order_does_not_matter() -> None:
    """Labels are told apart by name, not by the order they are given in."""
    recorder = PrometheusRecorder()
    recorder.count(metrics.SOURCE_REQUESTS, op="get", outcome="ok")
    recorder.count(metrics.SOURCE_REQUESTS, outcome="ok", op="get")
    recorder.count(metrics.SOURCE_REQUESTS, 3.0, op="list", outcome="ok")
    assert recorder.total(metrics.SOURCE_REQUESTS) == 5.0


def test_recorders_do_not_share_values() -> None:
    """Two recorders in one process (two daemons in one test) are independent."""
    first, second = PrometheusRecorder(), PrometheusRecorder()
    first.count(metrics.SOURCE_BYTES, 10.0)
    assert (first.total(metrics.SOURCE_BYTES), second.total(metrics.SOURCE_BYTES)) == (10.0, 0.0)


def test_untouched_plain_metrics_read_zero() -> None:
    """A metric without labels is exposed as 0 before it first moves: absent and zero are different alarms."""
    names = {sample.name for sample in PrometheusRecorder().samples()}
    assert metrics.CACHE_PINS.name in names
    assert not any(name.endswith("_created") for name in names)


def test_memory_recorder_is_as_strict_as_the_real_one() -> None:
    """Wrong kinds and shrinking counters are refused; values and observations are kept."""
    recorder = MemoryRecorder()
    with pytest.raises(Internal):
        recorder.count(metrics.CACHE_PINS)
    with pytest.raises(Internal):
        recorder.count(metrics.CACHE_HITS, -1.0)
    recorder.move(metrics.CACHE_PINS, 2.0)
    recorder.move(metrics.CACHE_PINS, -2.0)
    recorder.observe(metrics.PIPELINE_BATCH_SECONDS, 0.5)
    assert recorder.total(metrics.CACHE_PINS) == 0.0
    assert recorder.observations == {(metrics.PIPELINE_BATCH_SECONDS.name, ()): [0.5]}


def test_null_recorder_takes_everything() -> None:
    """The null recorder accepts every metric of the table."""
    for metric in TABLE:
        _touch(NullRecorder(), metric)


@pytest.mark.parametrize("value", [0.0, 0.001, 0.0011, 0.2, 60.0, 61.0])
def test_an_observation_may_count_several_times(value: float) -> None:
    """The histogram shows what as many single observations show."""
    singly, together = PrometheusRecorder(), PrometheusRecorder()
    for _ in range(5):
        singly.observe(metrics.PIPELINE_BATCH_SECONDS, value)
    together.observe(metrics.PIPELINE_BATCH_SECONDS, value, 5)
    found, expected = (
        {(one.name, *one.labels.items()): one.value for one in recorder.samples()} for recorder in (together, singly)
    )
    assert found == pytest.approx(expected)
    kept = MemoryRecorder()
    kept.observe(metrics.PIPELINE_BATCH_SECONDS, value, 2)
    assert kept.observations == {(metrics.PIPELINE_BATCH_SECONDS.name, ()): [value, value]}
