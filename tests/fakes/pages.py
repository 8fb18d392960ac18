"""The web page over a node that never was, for tests of the page in a client and in a browser."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import cv2
import numpy as np
from aiohttp import web

from feedd.errors import NotFound
from feedd.observe.page_access import PageAccess
from feedd.observe.status import serve_pages
from feedd.view import web_page
from feedd.view.web_page import WebPage
from feedd.wire import feedd_pb2 as pb
from tests.fakes.looks import look

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from feedd.observe.status import View
    from feedd.view.node_model import Look

JPEG = bytes(cv2.imencode(".jpg", np.full((30, 40, 3), 128, np.uint8))[1].tobytes())


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
        return {"0-1": JPEG, "0-2": b"<script>alert(1)</script>"}.get(sample)

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
