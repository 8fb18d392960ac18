"""The web page: its files, its JSON, and the bytes of bad samples. It changes nothing.

The daemon is looked at when a page asks, at most once a second, however many pages there are.
"""

from __future__ import annotations

import asyncio
import time
from importlib import resources
from typing import TYPE_CHECKING, Final

from aiohttp import web

from feedd.errors import FeeddError
from feedd.flow.pools import CPU, LOCAL_FILES
from feedd.view.node_model import NodeModel
from feedd.view.node_view import NodeView
from feedd.view.sample_picture import dump, picture_type
from feedd.view.view_json import view_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from feedd.view.node_model import Look

LOOK_S: Final = 0.9
"""Two looks are at least so far apart."""
_FOLDER: Final = "page"
_FILES: Final = {
    "": ("view.html", "text/html"),
    "view.css": ("view.css", "text/css"),
    "view.js": ("view.js", "text/javascript"),
    "charts.js": ("charts.js", "text/javascript"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
_SAMPLES: Final = "samples/"
_PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_DATA_POLICY: Final = "default-src 'none'; sandbox; frame-ancestors 'none'"
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class WebPage:
    """Answers requests of the page."""

    def __init__(
        self, look: Callable[[], Awaitable[Look]], sample_bytes: Callable[[str], Awaitable[bytes | None]]
    ) -> None:
        """Keep where the data comes from.

        Args:
            look: returns one look at the node; raises FeeddError if no daemon answers.
            sample_bytes: returns the bytes of a bad sample by its id in the view; None: they are not in the cache.
        """
        self._read_node = look
        self._read_sample = sample_bytes
        self._model = NodeModel()
        self._view = NodeView()
        self._looked_s = float("-inf")
        self._looking = asyncio.Lock()
        self._files: dict[str, bytes] = {}

    async def answer(self, request: web.Request, name: str, *, trusted: bool) -> web.Response:
        """Return the answer to a request.

        Args:
            request: the request.
            name: its path below the page.
            trusted: the request has the token.
        """
        if name in _FILES:
            return await self._file(name)
        if name == "view.json":
            return await self._json(request, trusted=trusted)
        if trusted and name.startswith(_SAMPLES):
            return await self._sample(name.removeprefix(_SAMPLES))
        raise web.HTTPNotFound(headers=_HEADERS)

    async def _file(self, name: str) -> web.Response:
        file, kind = _FILES[name]
        if name not in self._files:
            self._files[name] = await LOCAL_FILES.run(_read, file)
        return _response(self._files[name], kind, _PAGE_POLICY)

    async def _json(self, request: web.Request, *, trusted: bool) -> web.Response:
        text = request.query.get("since", "0")
        since = int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
        try:
            view = await self._look()
        except FeeddError as error:
            raise web.HTTPServiceUnavailable(text=error.message, headers=_HEADERS) from None
        body = await CPU.run(view_json, view, since, private=trusted)
        return _response(body, "application/json", _DATA_POLICY)

    async def _look(self) -> NodeView:
        """Return the view of this moment; all who ask at the same time get one."""
        async with self._looking:
            if time.monotonic() - self._looked_s >= LOOK_S:
                self._looked_s = time.monotonic()
                self._view = await CPU.run(self._model.add, await self._read_node())
            return self._view

    async def _sample(self, name: str) -> web.Response:
        """Return a bad sample as a picture, or as a dump if it is none, or if its name ends in ``.txt``."""
        sample = name.removesuffix(".txt")
        data = await self._read_sample(sample) if len(sample) < 32 else None
        if data is None:
            raise web.HTTPNotFound(text="these bytes are not in the cache any more", headers=_HEADERS)
        if sample != name:
            return _response(dump(data).encode(), "text/plain", _DATA_POLICY)
        kind = picture_type(data)
        return (
            _response(data, kind, _DATA_POLICY) if kind else _response(dump(data).encode(), "text/plain", _DATA_POLICY)
        )


def _read(file: str) -> bytes:
    return resources.files("feedd.view").joinpath(_FOLDER, file).read_bytes()


def _response(body: bytes, kind: str, policy: str) -> web.Response:
    charset = "utf-8" if kind.startswith(("text/", "application/")) else None
    headers = {**_HEADERS, "Content-Security-Policy": policy}
    return web.Response(body=body, content_type=kind, charset=charset, headers=headers)
