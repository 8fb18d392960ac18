"""One page for all lanes."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from feedd import metrics
from feedd.daemon.web_view import OBSERVE
from feedd.lanes.node_status import NodeStatus, exposition, open_node_status, summed_health
from feedd.observe.page_access import PageAccess
from feedd.observe.recorder import PrometheusRecorder
from feedd.observe.status import StatusSource, open_status
from feedd.values import Lifecycle
from feedd.wire import feedd_pb2 as pb
from tests.fakes.looks import answer, session

if TYPE_CHECKING:
    from pathlib import Path


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


def test_the_worst_lane_is_the_node() -> None:
    """A node is ready if all lanes are."""
    lanes = [{"state": "ready", "workers": 2, "sessions": 1}, {"state": "ready", "workers": 3, "sessions": 0}]
    assert (summed_health(lanes)["state"], summed_health(lanes)["workers"]) == ("ready", 5)
    assert summed_health([*lanes, None])["state"] == "down"
    assert summed_health([{"state": "draining"}, *lanes])["state"] == "draining"


async def test_the_page_asks_all_lanes(short_dir: Path) -> None:
    """One view for all lanes, through their sockets: sessions and caches are added, a sample is asked of its lane."""

    async def first(_request: web.Request, name: str, /, *, trusted: bool) -> web.Response:
        assert trusted
        body = answer(50.0, [session(0, 50.0)], bad_samples=[pb.BadSample(id=1, key="a")])
        return web.Response(body=body.SerializeToString() if name == OBSERVE else name.encode())

    async def second(_request: web.Request, name: str, /, *, trusted: bool) -> web.Response:
        if name != OBSERVE:
            raise web.HTTPNotFound
        return web.Response(body=answer(50.0, [session(1, 50.0)]).SerializeToString())

    sockets = (short_dir / "0", short_dir / "1", short_dir / "gone")
    async with AsyncExitStack() as stack:
        for path, view in zip(sockets[:2], (first, second), strict=True):
            source = StatusSource(PrometheusRecorder(), lambda: Lifecycle.READY, "1", "d", 0.0, view)
            await stack.enter_async_context(open_status(f"unix://{path}", source, PageAccess("")))
        node = await stack.enter_async_context(
            open_node_status("127.0.0.1:0", NodeStatus(sockets), PageAccess("token", public=False))
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        async with client.get(f"http://{node}/token/view.json") as response:
            view = json.loads(await response.text())
        assert (view["lane_count"], view["state"], [one["rank"] for one in view["ranks"]]) == (3, "down", [0, 1])
        assert view["cache"]["limit_bytes"] == 4000
        assert [one["id"] for one in view["bad_samples"]] == ["0-1"]
        for sample, expected in {"0-1": 200, "1-1": 404, "2-1": 404, "7-1": 404, "x-1": 404, "0-x": 404}.items():
            async with client.get(f"http://{node}/token/samples/{sample}.txt") as response:
                assert response.status == expected, sample
        async with client.get(f"http://{node}/view.json") as response:
            assert response.status == 404
