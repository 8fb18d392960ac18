"""The status page of a node with lanes: metrics with a label, health of each lane, and one page for all."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from feedd import __version__
from feedd.daemon.web_view import OBSERVE, SAMPLE, PageOnDemand
from feedd.errors import Draining
from feedd.flow.pools import CPU
from feedd.observe.status import METRICS_TYPE, serve_pages
from feedd.wire import feedd_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from prometheus_client import Metric

    from feedd.observe.page_access import PageAccess

ASK_S = 5.0
"""Longest wait for a lane's answer; then the lane counts as down."""
_READY = 200


@dataclass
class NodeStatus:
    """What the pages show.

    Attributes:
        sockets: where each lane serves its pages, by number.
        restart_counts: how often each lane was started again.
    """

    sockets: tuple[Path, ...]
    restart_counts: dict[int, int] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def restarted(self, lane: int) -> None:
        """Count a restart."""
        self.restart_counts[lane] = self.restart_counts.get(lane, 0) + 1

    def uptime_s(self) -> float:
        """Seconds since the node's start."""
        return time.monotonic() - self.began_s


class _Merged:
    """A collector for Prometheus: the families of all lanes, each sample with its lane's number."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def merged_families(expositions: Sequence[str | None]) -> list[Metric]:
    """Return the families of all lanes, with a label ``lane``. A lane that did not answer is None."""
    found: dict[str, Metric] = {}
    for lane, text in enumerate(expositions):
        for family in text_string_to_metric_families(text or ""):
            into = found.setdefault(family.name, family)
            samples = [one._replace(labels={"lane": str(lane), **one.labels}) for one in family.samples]
            into.samples = samples if into is family else into.samples + samples
    return list(found.values())


def exposition(expositions: Sequence[str | None], restart_counts: dict[int, int]) -> bytes:
    """Return the node's metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    up = Gauge("feedd_lane_up", "Whether the lane answers.", ("lane",), registry=registry)
    restarts = Counter("feedd_lane_restarts_total", "Times the lane was started again.", ("lane",), registry=registry)
    for lane, text in enumerate(expositions):
        up.labels(str(lane)).set(float(text is not None))
        restarts.labels(str(lane)).inc(restart_counts.get(lane, 0))
    registry.register(_Merged(merged_families(expositions)))
    return generate_latest(registry)


def summed_health(answers: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Return the node's health from that of its lanes; None: the lane did not answer."""
    lanes = [answer or {"state": "down"} for answer in answers]
    worst = next((one["state"] for one in lanes if one["state"] != "ready"), "ready")
    return {
        "state": worst,
        "workers": sum(one.get("workers", 0) for one in lanes),
        "sessions": sum(one.get("sessions", 0) for one in lanes),
        "upgraded_meanwhile": any(one.get("upgraded_meanwhile") for one in lanes),
        "version": __version__,
        "lanes": lanes,
    }


async def _observe(path: Path) -> pb.ObserveResponse:
    """Return one look at the lane whose socket is ``path``.

    Raises:
        Draining: the lane does not answer, or is starting.
    """
    status, data = await _answer(path, f"/{OBSERVE}")
    if status != _READY or data is None:
        raise Draining("expected an answer of a lane, got none", object=str(path), stage="lanes")
    return pb.ObserveResponse.FromString(data)


class _Handlers:
    """Request handlers of the node."""

    def __init__(self, status: NodeStatus) -> None:
        self._status = status
        self.view = PageOnDemand([partial(_observe, path) for path in status.sockets], self._sample_bytes)

    async def metrics(self, _request: web.Request) -> web.Response:
        texts = [text for _, text in await self._ask("/metrics")]
        body = await CPU.run(exposition, texts, dict(self._status.restart_counts))
        return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})

    async def healthz(self, _request: web.Request) -> web.Response:
        answers = await self._ask("/healthz")
        health = summed_health([None if text is None else json.loads(text) for _, text in answers])
        health["uptime_s"] = round(self._status.uptime_s(), 3)
        able = all(status == _READY for status, _ in answers)
        return web.json_response(health, status=_READY if able else 503)

    async def _sample_bytes(self, sample: str) -> bytes | None:
        """Return the bytes of a bad sample, such as ``2-17``; None: they are not in the lane's cache any more."""
        lane, _, number = sample.partition("-")
        sockets = self._status.sockets
        if not all(part.isascii() and part.isdecimal() for part in (lane, number)) or int(lane) >= len(sockets):
            return None
        status, data = await _answer(sockets[int(lane)], f"/{SAMPLE}{number}")
        return data if status == _READY else None

    async def _ask(self, page: str) -> list[tuple[int, str | None]]:
        answers = await asyncio.gather(*(_answer(path, page) for path in self._status.sockets))
        return [(status, None if data is None else data.decode()) for status, data in answers]


async def _answer(path: Path, page: str) -> tuple[int, bytes | None]:
    """Return the status and the body of a lane's page; (0, None): it did not answer."""
    timeout = aiohttp.ClientTimeout(total=ASK_S)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)), timeout=timeout) as session,
            session.get(f"http://lane{page}", allow_redirects=False) as answer,
        ):
            return answer.status, await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return 0, None


@asynccontextmanager
async def open_node_status(address: str, status: NodeStatus, access: PageAccess) -> AsyncIterator[str]:
    """Serve the pages, ``metrics`` and ``healthz`` for a node until the exit; yields the bound address.

    Raises:
        BadConfig: the address cannot be listened on.
    """
    async with serve_pages(address, _Handlers(status), access) as bound:
        yield bound
