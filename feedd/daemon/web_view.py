"""The web page of a daemon, and what a lane tells the supervisor that shows the page of its node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web

from feedd.daemon.sample_bytes import sample_bytes
from feedd.errors import Draining
from feedd.flow.pools import CPU

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.diagnosis.node import Observe
    from feedd.observe.status import View
    from feedd.serve.grpc_server import FeedServer
    from feedd.sessions.opening import Pipeline
    from feedd.view.web_page import WebPage
    from feedd.wire import feedd_pb2 as pb

OBSERVE: Final = "observe"
SAMPLE: Final = "sample-bytes/"
"""Names at the socket of a lane, for its supervisor: one look at the daemon, and the bytes of a bad sample."""


class PageOnDemand:
    """The web page; its code is imported when somebody first opens the page."""

    def __init__(self, daemons: Sequence[Observe], sample_bytes: Callable[[str], Awaitable[bytes | None]]) -> None:
        """Keep what the page is about.

        Args:
            daemons: look at one daemon of the node each, by lane.
            sample_bytes: returns the bytes of a bad sample by its id in the view.
        """
        self._daemons = daemons
        self._sample_bytes = sample_bytes
        self._page: WebPage | None = None

    async def __call__(self, request: web.Request, name: str, /, *, trusted: bool) -> web.StreamResponse:
        """Answer a request for the page."""
        if self._page is None:
            made = await CPU.run(self._imported)
            self._page = self._page or made
        return await self._page.answer(request, name, trusted=trusted)

    def _imported(self) -> WebPage:
        from feedd.diagnosis.node import NodeReader  # noqa: PLC0415 - nobody may ever look
        from feedd.view.web_page import WebPage  # noqa: PLC0415 - see above

        return WebPage(NodeReader(self._daemons, local=True).look, self._sample_bytes)


class DaemonView:
    """This daemon, as its page sees it.

    Attributes:
        parts: the server and the pipeline; None: the daemon has not opened them yet.
    """

    def __init__(self) -> None:
        self.parts: tuple[FeedServer, Pipeline] | None = None

    async def observe(self) -> pb.ObserveResponse:
        """Return one look at the daemon.

        Raises:
            Draining: it is still starting.
        """
        if self.parts is None:
            raise Draining("the daemon is starting", hint="try again in a second", stage="daemon")
        return await self.parts[0].observation()

    async def sample_bytes(self, sample: str) -> bytes | None:
        """Return the bytes of a bad sample, such as ``0-17``; None: they are not in the cache any more."""
        number = sample.removeprefix("0-")
        if self.parts is None or not (number.isascii() and number.isdecimal()):
            return None
        return await sample_bytes(self.parts[1], int(number))

    def page(self) -> View:
        """Return the page of this daemon alone."""
        return PageOnDemand([self.observe], self.sample_bytes)

    async def for_supervisor(self, _request: web.Request, name: str, /, *, trusted: bool) -> web.StreamResponse:
        """Answer the supervisor of a node with lanes: one look, or the bytes of a bad sample."""
        if trusted and name == OBSERVE and self.parts is not None:
            return web.Response(body=(await self.observe()).SerializeToString())
        data = await self.sample_bytes(name.removeprefix(SAMPLE)) if trusted and name.startswith(SAMPLE) else None
        if data is None:
            raise web.HTTPNotFound
        return web.Response(body=data)
