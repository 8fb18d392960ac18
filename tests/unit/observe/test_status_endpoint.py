"""The status endpoint over real HTTP: health follows the state, metrics parse, the token decides."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass, field, replace

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from feedd import metrics
from feedd.errors import BadConfig
from feedd.flow.doors import PortLimits
from feedd.observe import status
from feedd.observe.page_access import PageAccess
from feedd.observe.recorder import PrometheusRecorder
from feedd.observe.status import StatusSource, is_local, open_status
from feedd.units import is_loopback, parse_host_port
from feedd.values import Lifecycle

OPEN = PageAccess("token")


async def _view(_request: web.Request, name: str, /, *, trusted: bool) -> web.Response:
    return web.Response(text=f"{name!r} trusted={trusted}")


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
            view=_view,
        )


async def _get(address: str, path: str) -> tuple[int, str]:
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(timeout=timeout) as client, client.get(f"http://{address}{path}") as response:
        return response.status, await response.text()


@pytest.mark.parametrize("state", list(Lifecycle))
async def test_health_is_200_only_when_ready(state: Lifecycle) -> None:
    """A load balancer sees 200 in the ready state and 503 in every other one, with the state named."""
    daemon = _Daemon(state=state)
    async with open_status("127.0.0.1:0", daemon.source(), OPEN) as address:
        code, body = await _get(address, "/healthz")
    assert code == (200 if state in {Lifecycle.STANDBY, Lifecycle.READY} else 503)
    assert f'"state": "{state.value}"' in body


async def test_a_daemon_without_workers_is_not_ready() -> None:
    """Where workers are wanted and none is left, health says so; with one again it is 200."""
    daemon = _Daemon(state=Lifecycle.READY)
    daemon.recorder.gauge(metrics.DECODE_WANTED, 2.0)
    async with open_status("127.0.0.1:0", daemon.source(), OPEN) as address:
        for workers, expected in ((0.0, 503), (1.0, 200)):
            daemon.recorder.gauge(metrics.DECODE_WORKERS, workers)
            code, body = await _get(address, "/healthz")
            assert code == expected
            assert f'"workers": {workers:.0f}' in body


async def test_metrics_parse_as_prometheus() -> None:
    """What /metrics answers is valid exposition text with every metric that was touched."""
    daemon = _Daemon()
    daemon.recorder.count(metrics.SOURCE_REQUESTS, 3.0, op="get", outcome="ok")
    daemon.recorder.observe(metrics.PIPELINE_BATCH_SECONDS, 0.2)
    async with open_status("127.0.0.1:0", daemon.source(), OPEN) as address:
        _, body = await _get(address, "/metrics")
    samples = {s.name: s.value for family in text_string_to_metric_families(body) for s in family.samples}
    assert samples[metrics.SOURCE_REQUESTS.name] == 3.0
    assert samples[f"{metrics.PIPELINE_BATCH_SECONDS.name}_count"] == 1.0


async def test_other_paths_are_the_views() -> None:
    """All but metrics and health is the view's to answer, which is told whether the request has the token."""
    source = _Daemon(state=Lifecycle.READY).source()
    access = PageAccess("secret", public=True)
    async with open_status("127.0.0.1:0", source, access) as address:
        assert await _get(address, "/") == (200, "'' trusted=False")
        assert await _get(address, "/view.json") == (200, "'view.json' trusted=False")
        assert await _get(address, "/secret/a/b") == (200, "'a/b' trusted=True")
        assert (await _get(address, "/secret/healthz"))[0] == 200
        assert (await _get(address, "/secret"))[1] == "'' trusted=True"  # redirected


async def test_pages_that_nobody_configured_need_the_token() -> None:
    """Without the token there is nothing: no page, no metrics, no health."""
    source = _Daemon(state=Lifecycle.READY).source()
    async with open_status("127.0.0.1:0", source, PageAccess("secret", public=False)) as address:
        for path in ("/", "/metrics", "/healthz", "/view.json", "/secre/", "/secret2/", "//secret/"):
            assert (await _get(address, path))[0] == 404, path
        for path in ("/secret/", "/secret/metrics", "/secret/healthz"):
            assert (await _get(address, path))[0] == 200, path


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (("127.0.0.1", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        ("", True),
        (("10.0.0.7", 1), False),
        (("::ffff:10.0.0.7", 1, 0, 0), False),
        (None, False),
    ],
)
def test_the_token_counts_on_this_machine_only(peer: object, expected: bool) -> None:
    """Where the address can be reached by other machines, the token does not help them: it travels as text."""
    assert is_local(peer) == expected


async def test_tokens_from_elsewhere_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of another machine that has the token gets nothing, and without it what everybody gets."""
    monkeypatch.setattr(status, "is_local", lambda peer: False)
    async with open_status("127.0.0.1:0", _Daemon().source(), PageAccess("secret")) as address:
        assert (await _get(address, "/secret/"))[0] == 404
        assert await _get(address, "/") == (200, "'' trusted=False")


async def test_nothing_can_be_changed() -> None:
    """The endpoint answers GET and HEAD, and refuses everything else."""
    async with (
        open_status("127.0.0.1:0", _Daemon().source(), OPEN) as address,
        aiohttp.ClientSession() as client,
    ):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            async with client.request(method, f"http://{address}/") as answer:
                assert answer.status == 405


async def test_taken_port_is_a_configuration_error() -> None:
    """A port in use is named, with a hint; nothing is left open."""
    source = _Daemon().source()
    async with open_status("127.0.0.1:0", source, OPEN) as address:
        with pytest.raises(BadConfig, match="the port is taken") as caught:
            async with open_status(address, source, OPEN):
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


async def test_silent_connections_keep_no_request_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more of them than places, new requests are answered, and so is one that takes long."""
    monkeypatch.setattr(PortLimits, "of_process", lambda: PortLimits.of(160))  # 8 for the page
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request, _name: str, /, *, trusted: bool) -> web.Response:
        begun.set()
        await go.wait()
        return web.Response(text="late")

    source = replace(_Daemon(state=Lifecycle.READY).source(), view=slow)
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        async with open_status("127.0.0.1:0", source, OPEN) as address, asyncio.TaskGroup() as group:
            late = group.create_task(_get(address, "/page"))
            await begun.wait()
            for number in range(40):
                conn = stack.enter_context(socket.socket())
                conn.setblocking(False)
                await loop.sock_connect(conn, parse_host_port(address))
                with contextlib.suppress(ConnectionError):  # dropped already
                    await loop.sock_sendall(conn, b"GET /healthz" if number % 2 else b"")
            assert (await _get(address, "/healthz"))[0] == 200
            go.set()
        assert late.result() == (200, "late")
