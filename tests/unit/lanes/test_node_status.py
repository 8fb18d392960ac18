"""One page for all lanes."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from feedd import metrics
from feedd.lanes.node_status import exposition, summed_health, summed_samples
from feedd.observe.page import totals
from feedd.observe.recorder import PrometheusRecorder


def _lane(hits: int) -> str:
    recorder = PrometheusRecorder()
    recorder.count(metrics.CACHE_HITS, hits)
    recorder.observe(metrics.SOURCE_SECONDS, 0.01, op="get")
    recorder.gauge(metrics.CACHE_BYTES, 5.0)
    return recorder.exposition().decode()


def test_samples_name_their_lane() -> None:
    """Each family is there once, with the samples of all lanes; one that is down has only its own gauge."""
    text = exposition([_lane(2), None, _lane(3)], {1: 4}).decode()
    found = {
        (sample.name, sample.labels["lane"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }
    name = metrics.CACHE_HITS.name
    assert (found[name, "0"], found[name, "2"]) == (2, 3)
    assert [found["feedd_lane_up", str(lane)] for lane in range(3)] == [1, 0, 1]
    assert found["feedd_lane_restarts_total", "1"] == 4
    assert text.count(f"# TYPE {name} ") == 1


def test_the_page_shows_sums() -> None:
    """Counters, gauges and histograms of all lanes are added."""
    sums = totals(summed_samples([_lane(2), None, _lane(3)]))
    assert sums[metrics.CACHE_HITS.name] == 5
    assert sums[metrics.CACHE_BYTES.name] == 10
    assert sums[f"{metrics.SOURCE_SECONDS.name}_count"] == 2


def test_the_worst_lane_is_the_node() -> None:
    """A node is ready if all lanes are."""
    lanes = [{"state": "ready", "workers": 2, "sessions": 1}, {"state": "ready", "workers": 3, "sessions": 0}]
    assert (summed_health(lanes)["state"], summed_health(lanes)["workers"]) == ("ready", 5)
    assert summed_health([*lanes, None])["state"] == "down"
    assert summed_health([{"state": "draining"}, *lanes])["state"] == "draining"
