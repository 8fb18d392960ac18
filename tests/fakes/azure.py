"""The calls of Azure Blob Storage that readers need, as its REST reference describes them."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Self
from xml.sax.saxutils import escape

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]+)")
_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


class AzureServer:
    """One account with one container, on the test's own loop; a context manager. Pages hold ``page_count`` rows."""

    def __init__(self, *, page_count: int = 5000) -> None:
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, Mapping[str, str]]] = []
        self.refusals: list[int] = []
        self.url = ""
        self._page_count = page_count
        self._runner: web.AppRunner | None = None

    def put(self, name: str, data: bytes) -> None:
        """Write a blob."""
        self.blobs[name] = data

    def delete(self, name: str) -> None:
        """Remove a blob."""
        del self.blobs[name]

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/container", self._list)
        app.router.add_get("/container/{name:[^|]*}", self._get)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def _note(self, request: web.Request) -> web.Response | None:
        self.requests.append((request.method, request.path_qs, dict(request.headers)))
        return web.Response(status=self.refusals.pop(0)) if self.refusals else None

    async def _list(self, request: web.Request) -> web.Response:
        refused = self._note(request)
        if refused is not None:
            return refused
        assert (request.query["restype"], request.query["comp"]) == ("container", "list")
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        rows: dict[str, str] = {}
        for name in sorted(self.blobs, key=str.encode):
            rest = name.removeprefix(prefix)
            if not name.startswith(prefix):
                continue
            if delimiter and delimiter in rest:
                folder = prefix + rest.partition(delimiter)[0] + delimiter
                rows[folder] = f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>"
                continue
            data = self.blobs[name]
            facts = f"<Last-Modified>{_DATE}</Last-Modified><Etag>{_etag(data)}</Etag>"
            facts += f"<Content-Length>{len(data)}</Content-Length><Content-Type>x/y</Content-Type>"
            facts += "<BlobType>BlockBlob</BlobType>"
            rows[name] = f"<Blob><Name>{escape(name)}</Name><Properties>{facts}</Properties></Blob>"
        at = int(request.query.get("marker", "0"))
        page = list(rows.values())[at : at + self._page_count]
        more = str(at + self._page_count) if at + self._page_count < len(rows) else ""
        text = f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Prefix>{escape(prefix)}</Prefix>'
        text += f"<Blobs>{''.join(page)}</Blobs><NextMarker>{more}</NextMarker></EnumerationResults>"
        return web.Response(text=text, content_type="application/xml")

    async def _get(self, request: web.Request) -> web.StreamResponse:
        refused = self._note(request)
        if refused is not None:
            return refused
        data = self.blobs.get(request.match_info["name"])
        if data is None:
            return web.Response(status=404, headers={"x-ms-error-code": "BlobNotFound"})
        if request.headers.get("If-Match", "*").strip('"') not in {"*", _etag(data)}:
            return web.Response(status=412, headers={"x-ms-error-code": "ConditionNotMet"})
        headers = {"ETag": f'"{_etag(data)}"', "Last-Modified": _DATE, "x-ms-blob-type": "BlockBlob"}
        match = _RANGE.fullmatch(request.headers.get("x-ms-range", request.headers.get("Range", "")))
        if match is None:
            return web.Response(body=data, headers={**headers, "Content-Length": str(len(data))})
        start, end = int(match[1]), min(int(match[2]) + 1, len(data))
        if start >= len(data):
            return web.Response(status=416)
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return web.Response(status=206, body=data[start:end], headers=headers)


def _etag(data: bytes) -> str:
    return "0x8D" + hashlib.sha256(data).hexdigest()[:12].upper()
