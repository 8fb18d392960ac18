"""The web page over a node that never was, for tests of the page in a client and in a browser."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from aiohttp import web

from feedd import metrics
from feedd.diagnosis.node import Look
from feedd.errors import NotFound
from feedd.observe.page_access import PageAccess
from feedd.observe.status import serve_pages
from feedd.view import web_page
from feedd.view.web_page import WebPage
from feedd.wire import feedd_pb2 as pb
from tests.fakes.looks import answer, look, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from feedd.observe.status import View

JPEG = bytes(cv2.imencode(".jpg", np.full((30, 40, 3), 128, np.uint8))[1].tobytes())


def _torn(seed: int) -> bytes:
    """Return the first part of a JPEG of coloured shapes."""
    random = np.random.default_rng(seed)
    ground = random.integers(90, 200, (3, 4, 3), dtype=np.uint8)
    image = cv2.resize(ground, (320, 240), interpolation=cv2.INTER_CUBIC)
    for _ in range(9):
        centre, colour = random.integers(20, 300, 2).tolist(), random.integers(40, 255, 3).tolist()
        cv2.circle(image, centre, int(random.integers(20, 60)), colour, -1)
    data = bytes(cv2.imencode(".jpg", image)[1].tobytes())
    return data[: len(data) * 5 // 8]


def _bad_samples() -> list[pb.BadSample]:
    return [
        pb.BadSample(id=1, url="s3://bucket/train/1.tar", key="key-1", field="jpg", reason="samples are bad", age_s=3),
        pb.BadSample(id=2, url="s3://bucket/train/2.tar", key="key-2", field="jpg", reason="not an image", age_s=9),
    ]


@dataclass
class FakeNode:
    """A node whose looks are scripted.

    Attributes:
        ranks: ranks of its job.
        log: its log.
        bad_samples: its bad samples; the first is a picture.
        is_down: no daemon answers.
        look_at: makes a look at a time; None: two ranks that wait for 40 % of the time.
    """

    ranks: int = 2
    log: Sequence[pb.LogEntry] = ()
    bad_samples: Sequence[pb.BadSample] = field(default_factory=_bad_samples)
    is_down: bool = False
    look_at: Callable[[float], Look] | None = None
    look_count: int = 0
    page: WebPage | None = None

    async def look(self) -> Look:
        """Return the next look, a second after the one before."""
        if self.is_down:
            raise NotFound("no daemon answers")
        self.look_count += 1
        at_s = 100.0 + self.look_count
        if self.look_at is not None:
            return self.look_at(at_s)
        return look(at_s, self.ranks, wait=0.4, log=self.log, bad_samples=self.bad_samples)

    async def sample_bytes(self, sample: str) -> bytes | None:
        """Return the bytes of a sample."""
        pictures = {"0-1": _torn(1), "0-3": _torn(5)} if self.look_at is not None else {"0-1": JPEG}
        return pictures.get(sample) or {"0-2": b"<script>alert(1)</script>"}.get(sample)

    def wait(self) -> None:
        """Let the next request look again."""
        assert self.page is not None
        self.page._looked_s -= web_page.LOOK_S

    @property
    def view(self) -> View:
        """Answers requests of the page."""

        async def answer(request: web.Request, name: str, /, *, trusted: bool) -> web.Response:
            assert self.page is not None
            return await self.page.answer(request, name, trusted=trusted)

        return answer

    async def metrics(self, _request: web.Request) -> web.Response:
        """Answer metrics."""
        return web.Response(text="")

    async def healthz(self, _request: web.Request) -> web.Response:
        """Answer health."""
        return web.Response(text="{}")


@asynccontextmanager
async def serving_page(node: FakeNode, token: str) -> AsyncIterator[str]:
    """Serve the page of a node; yield its address."""
    node.page = WebPage(node.look, node.sample_bytes)
    async with serve_pages("127.0.0.1:0", node, PageAccess(token)) as address:
        yield address


def busy_look(at_s: float, ranks: int) -> Look:
    """Return a look at a node that decodes with all its cores for a job that waits, beside one that evaluates.

    Each rank waits for another share of the time, which rises and falls, rank 3 the longest.
    """
    random = np.random.default_rng(7)
    phases = random.uniform(0, 2 * np.pi, ranks)
    sessions = []
    for rank in range(ranks):
        mean = 0.62 if rank == 3 else 0.34 + 0.02 * (rank % 4)
        wait_s = mean * at_s + 1.6 * np.sin(at_s / 9 + phases[rank])  # its slope is the wait
        steps = round(12.4 * (at_s - 0.6 * (wait_s - mean * at_s)))
        times = pb.TrainerTimes(wall_s=at_s, wait_s=wait_s, steps=steps, device=f"cuda:{rank % 8}")
        state: dict[str, Any] = (
            {"waits_for": "decoding", "ready": 0} if (rank + int(at_s)) % 3 == 0 else {"ready": 1 + rank % 2}
        )
        about: dict[str, Any] = {
            "urls": ["s3://imagenet/train/"],
            "times": times,
            "world_size": ranks,
            "batch_size": 256,
        }
        progress: dict[str, Any] = {"epoch": 12, "step": 2210 + steps, "steps": 5004, "assigned_bytes": 120 << 30}
        sessions.append(session(rank, at_s, **about, **progress, **state))
    eval_times = pb.TrainerTimes(wall_s=at_s, wait_s=0.02 * at_s, steps=round(2 * at_s), device="cuda:0")
    eval_job: dict[str, Any] = {
        "urls": ["s3://imagenet/eval/"],
        "times": eval_times,
        "world_size": 1,
        "batch_size": 128,
        "id": "eval0000",
    }
    sessions.append(session(0, at_s, **eval_job, epoch=3, step=round(2 * at_s) + 40, steps=391, assigned_bytes=7 << 30))
    found = answer(at_s, sessions, log=[], bad_samples=_torn_samples())
    _set_figures(found.stats, at_s, ranks)
    del found.folders[:]
    for url, entries, size, pinned in (("train", 938, 118, 41), ("eval", 49, 6, 2), ("pretrain", 210, 25, 0)):
        found.folders.append(
            pb.CacheFolder(url=f"s3://imagenet/{url}/", entries=entries, bytes=size << 30, pinned_bytes=pinned << 30)
        )
    line = "request retried, url=s3://imagenet/train/shard-00417.tar, attempt=2, reason=throttled"
    found.log.append(pb.LogEntry(age_s=43, level="warning", text=line, count=12))
    return Look(at_s, [found], host="gpu-node-7", gpu=0.61)


def _set_figures(stats: pb.StatsResponse, at_s: float, ranks: int) -> None:
    figures = {
        metrics.SOURCE_BYTES: 210e6 * at_s,
        metrics.CACHE_HITS: 940 * at_s,
        metrics.CACHE_MISSES: 22 * at_s,
        metrics.DECODE_WORKERS: 48.0,
        metrics.DECODE_BUSY: 48 * 0.97 * at_s,
        metrics.DECODE_SAMPLES: 256 * 12.4 * ranks * at_s,
        metrics.SERVE_BATCHES: 12.4 * ranks * at_s,
        metrics.SERVE_BATCH_BYTES: 12.4 * ranks * at_s * 38.5e6,
    }
    for metric, value in figures.items():
        stats.samples.append(pb.Sample(name=metric.name, value=value))
        for sample in stats.samples[:-1]:
            sample.value = 0.0 if sample.name == metric.name else sample.value
    stats.uptime_s = 8000 + at_s
    stats.version = "0.1.0"
    gib = 1 << 30
    stats.cache.CopyFrom(pb.CacheState(limit_bytes=200 * gib, committed_bytes=149 * gib, reserved_bytes=5 * gib))


def _torn_samples() -> list[pb.BadSample]:
    reasons = {
        "n01532829_2411": "expected an intact JPEG, got 8492 bytes: Premature end of JPEG file",
        "n02119789_0083": "expected a JPEG, PNG, WebP, TIFF, AVIF, JPEG 2000 or BMP image, got 37 bytes",
        "n03207941_1170": "expected an intact JPEG, got 7925 bytes: Premature end of JPEG file",
    }
    return [
        pb.BadSample(
            id=number,
            url=f"s3://imagenet/train/shard-{137 * number:05}.tar",
            key=key,
            field="jpg",
            reason=reason,
            epoch=12,
            age_s=60.0 * number,
            outcome="replaced",
        )
        for number, (key, reason) in enumerate(reasons.items(), start=1)
    ]
