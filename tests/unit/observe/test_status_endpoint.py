"""The status endpoint over real HTTP: health follows the state, metrics parse, the page shows what is held."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from feedd import metrics
from feedd.errors import BadConfig
from feedd.observe.page import Rates
from feedd.observe.recorder import MetricSample, PrometheusRecorder
from feedd.observe.status import StatusSource, open_status
from feedd.units import is_loopback, parse_host_port
from feedd.values import Lifecycle


@dataclass
class _Daemon:
    recorder: PrometheusRecorder = field(default_factory=PrometheusRecorder)
    state: Lifecycle = Lifecycle.STARTING

    def source(self) -> StatusSource:
        return StatusSource(
            recorder=self.recorder,
            state=lambda: self.state,
            version="1.2.3",
            daemon_id="d1",
            started_s=time.monotonic(),
            cache_capacity_bytes=1000,
        )


async def _get(address: str, path: str) -> tuple[int, str]:
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(timeout=timeout) as client, client.get(f"http://{address}{path}") as response:
        return response.status, await response.text()


@pytest.mark.parametrize("state", list(Lifecycle))
async def test_health_is_200_only_when_ready(state: Lifecycle) -> None:
    """A load balancer sees 200 in the ready state and 503 in every other one, with the state named."""
    daemon = _Daemon(state=state)
    async with open_status("127.0.0.1:0", daemon.source()) as address:
        status, body = await _get(address, "/healthz")
    assert status == (200 if state in {Lifecycle.STANDBY, Lifecycle.READY} else 503)
    assert f'"state": "{state.value}"' in body


async def test_a_daemon_without_workers_is_not_ready() -> None:
    """Where workers are wanted and none is left, health says so; with one again it is 200."""
    daemon = _Daemon(state=Lifecycle.READY)
    daemon.recorder.gauge(metrics.DECODE_WANTED, 2.0)
    async with open_status("127.0.0.1:0", daemon.source()) as address:
        for workers, expected in ((0.0, 503), (1.0, 200)):
            daemon.recorder.gauge(metrics.DECODE_WORKERS, workers)
            status, body = await _get(address, "/healthz")
            assert status == expected
            assert f'"workers": {workers:.0f}' in body


async def test_metrics_parse_as_prometheus() -> None:
    """What /metrics answers is valid exposition text with every metric that was touched."""
    daemon = _Daemon()
    daemon.recorder.count(metrics.SOURCE_REQUESTS, 3.0, op="get", outcome="ok")
    daemon.recorder.observe(metrics.PIPELINE_BATCH_SECONDS, 0.2)
    async with open_status("127.0.0.1:0", daemon.source()) as address:
        _, body = await _get(address, "/metrics")
    samples = {s.name: s.value for family in text_string_to_metric_families(body) for s in family.samples}
    assert samples[metrics.SOURCE_REQUESTS.name] == 3.0
    assert samples[f"{metrics.PIPELINE_BATCH_SECONDS.name}_count"] == 1.0


async def test_page_shows_state_fill_and_counts() -> None:
    """The page names the state, the fill level of the cache and the open sessions."""
    daemon = _Daemon(state=Lifecycle.READY)
    daemon.recorder.gauge(metrics.CACHE_BYTES, 250.0)
    daemon.recorder.gauge(metrics.SERVE_SESSIONS, 4.0)
    async with open_status("127.0.0.1:0", daemon.source()) as address:
        status, body = await _get(address, "/")
        unknown, _ = await _get(address, "/nothing")
    assert (status, unknown) == (200, 404)
    assert "feedd 1.2.3 - ready" in body
    assert "(25 %)" in body
    assert re.search(r"open sessions</td><td>4<", body)
    assert "<script" not in body


async def test_taken_port_is_a_configuration_error() -> None:
    """A port in use is named, with a hint; nothing is left open."""
    source = _Daemon().source()
    async with open_status("127.0.0.1:0", source) as address:
        with pytest.raises(BadConfig, match="the port is taken") as caught:
            async with open_status(address, source):
                pass
    assert address in caught.value.message
    assert "--status" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:7071", ("127.0.0.1", 7071)), ("[::1]:0", ("::1", 0)), ("localhost:80", ("localhost", 80))],
)
def test_addresses_parse(text: str, expected: tuple[str, int]) -> None:
    """Host and port are split, brackets removed."""
    assert parse_host_port(text) == expected


@pytest.mark.parametrize("text", ["", "7071", ":7071", "host:", "host:x", "host:70000", "::1:80", "host:-1"])
def test_bad_addresses_say_what_is_expected(text: str) -> None:
    """Anything but host:port is refused with an example."""
    with pytest.raises(ValueError, match=r"expected host:port"):
        parse_host_port(text)


def test_loopback_is_told_from_the_world() -> None:
    """Only addresses of this machine count as loopback."""
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org")] == [False] * 4


def test_rates_are_per_second_between_views() -> None:
    """A rate is the growth since the last view divided by the time since then; quick reloads keep the base."""
    rates = Rates()
    name = metrics.SERVE_BATCHES.name

    def view(at_s: float, value: float) -> float:
        return rates.update(at_s, [MetricSample(name, {"transport": "slot"}, value)])[name]

    assert view(10.0, 100.0) == pytest.approx(10.0)
    assert view(10.5, 110.0) == pytest.approx(20.0)
    assert view(12.0, 140.0) == pytest.approx(20.0)
    assert view(13.0, 140.0) == pytest.approx(0.0)
