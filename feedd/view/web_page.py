"""The web page: its files, its JSON, and the bytes of bad samples. It changes nothing."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict, replace
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from feedd.diagnosis.finding import STAGES
from feedd.errors import FeeddError
from feedd.flow.pools import CPU, LOCAL_FILES
from feedd.units import format_size
from feedd.view.node_model import NodeModel
from feedd.view.node_view import NodeView, ago, short_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from feedd.diagnosis.finding import Diagnosis
    from feedd.diagnosis.node import Look
    from feedd.view.node_view import FolderView, JobView, RankView

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


def view_json(view: NodeView, since: int, *, private: bool) -> bytes:
    """Return the JSON that the page shows.

    Args:
        view: the view.
        since: the number of the view that the page has; only later points of histories are sent. 0: all.
        private: the reader may see what the data is: URLs, owners, log lines and bad samples.
    """
    shown = view if private else without_names(view)
    newer = shown.number - since if view.began <= since <= shown.number else shown.number
    facts: dict[str, Any] = {
        "number": shown.number,
        "began": shown.began,
        "private": private,
        "host": shown.host,
        "version": shown.version,
        "state": shown.state,
        "uptime": short_time(shown.uptime_s),
        "lane_count": shown.lane_count,
        "window_s": round(shown.window_s, 1),
        "waiting": shown.waiting,
        "limits": shown.limits,
        "verdict": None if shown.verdict is None else _verdict(shown.verdict, shown.verdict_job),
        "stages": [asdict(one) for one in shown.stages],
        "jobs": [_job(one) for one in shown.jobs],
        "ranks": [_rank(one, newer) for one in shown.ranks],
        "cache": {
            "limit_bytes": shown.cache.limit_bytes,
            "used_bytes": shown.cache.used_bytes,
            "arriving_bytes": shown.cache.arriving_bytes,
            "text": f"{format_size(shown.cache.used_bytes)} of {format_size(shown.cache.limit_bytes)}",
            "folders": [_folder(one) for one in shown.cache.folders],
        },
        "log": [asdict(one) | {"age": ago(one.age_s)} for one in shown.log],
        "bad_samples": [asdict(one) | {"age": ago(one.age_s)} for one in shown.bad_samples],
        "bad_sample_count": shown.bad_sample_count,
    }
    return json.dumps(facts, separators=(",", ":"), allow_nan=False).encode()


def without_names(view: NodeView) -> NodeView:
    """Return the view without anything that tells what the data is, or whose."""
    names = {one.name: f"job {number + 1}" for number, one in enumerate(view.jobs)}
    folders = tuple(replace(one, url=f"folder {number + 1}") for number, one in enumerate(view.cache.folders))
    return replace(
        view,
        host="",
        verdict_job=names.get(view.verdict_job, ""),
        jobs=tuple(replace(one, name=names[one.name], owner="", urls=()) for one in view.jobs),
        cache=replace(view.cache, folders=folders),
        log=(),
        bad_samples=(),
    )


def _verdict(found: Diagnosis, job: str) -> dict[str, Any]:
    return {
        "id": found.finding.verdict,
        "title": found.about.title,
        "is_input": found.is_input,
        "advice": found.finding.advice,
        "knob": found.knob,
        "gain": found.gain,
        "behind": STAGES.get(found.behind, ""),
        "job": job,
    }


def _job(one: JobView) -> dict[str, Any]:
    facts = asdict(one) | {"progress": one.progress}
    facts["eta"] = "" if one.eta_s is None else short_time(one.eta_s)
    return facts


def _rank(one: RankView, newer: int) -> dict[str, Any]:
    facts = asdict(one)
    count = min(newer, len(one.waits))
    facts["waits"] = [round(wait, 3) for wait in one.waits[len(one.waits) - count :]]
    facts["rates"] = [round(rate, 2) for rate in one.rates[len(one.rates) - count :]]
    return facts


def _folder(one: FolderView) -> dict[str, Any]:
    return asdict(one) | {"text": format_size(one.size_bytes)}


DUMP_BYTES: Final = 256
_ROW: Final = 16
_STARTS: Final = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)
_RIFF: Final = b"RIFF"
_WEBP: Final = b"WEBP"
_AVIF: Final = b"ftypavif"


def picture_type(data: bytes) -> str:
    """Return the media type of a picture; empty: the bytes are shown as a dump."""
    if data[:4] == _RIFF and data[8:12] == _WEBP:
        return "image/webp"
    if data[4:12] == _AVIF:
        return "image/avif"
    return next((name for start, name in _STARTS if data.startswith(start)), "")


def dump(data: bytes) -> str:
    """Return the first bytes in hexadecimal, and as far as they are text."""
    rows = []
    for at in range(0, min(len(data), DUMP_BYTES), _ROW):
        row = data[at : at + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:04x}  {row.hex(' '):<{3 * _ROW}} {text}")
    more = f"\n({len(data):,} bytes in all)" if len(data) > DUMP_BYTES else ""
    return "\n".join(rows) + more
