"""A small Hugging Face Hub on loopback: revisions, trees, files, and a second server for the bytes of large files."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import threading
import time
from typing import TYPE_CHECKING, Self

from aiohttp import web

from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]+)")
LARGE_BYTES = 8
"""From this size on, a file lies on the second server."""


class FakeHub:
    """One dataset, ``owner/name``, on the test's own loop; a context manager.

    ``requests`` are (server, path with query, headers) of what came in. ``refusals`` answers the coming requests of the
    hub, one each; None lets one pass. ``lifetime_s`` is how long the addresses of bytes are valid; ``revoked`` refuses
    them at once. ``next_url`` is what listings name as their next page. ``rows`` come at the end of each listing.
    """

    def __init__(self, *, page_count: int = 1000) -> None:
        self.commits: list[dict[str, bytes]] = [{}]
        self.requests: list[tuple[str, str, Mapping[str, str]]] = []
        self.refusals: list[tuple[int, dict[str, str]] | None] = []
        self.lifetime_s = 3600.0
        self.rows: list[dict[str, object]] = []
        self.revoked: set[str] = set()
        self.url = self.cdn_url = self.next_url = ""
        self._page_count = page_count
        self._signed_count = 0
        self._runners: list[web.AppRunner] = []
        self._blobs: dict[str, bytes] = {}

    def put(self, path: str, data: bytes) -> str:
        """Push a commit that adds or replaces a file; return the commit."""
        self.commits.append({**self.commits[-1], path: data})
        self._blobs[hashlib.sha256(data).hexdigest()] = data
        return sha_of(len(self.commits) - 1)

    def delete(self, path: str) -> None:
        """Rewrite history without a file."""
        self.commits = [{name: data for name, data in files.items() if name != path} for files in self.commits]

    def commit_of(self, path: str) -> str:
        """Return the first commit that has a file."""
        return sha_of(next(number for number, files in enumerate(self.commits) if path in files))

    def paths(self, server: str) -> list[str]:
        """Return the paths that were requested from ``hub`` or ``cdn``."""
        return [path for name, path, _ in self.requests if name == server]

    async def __aenter__(self) -> Self:
        hub, cdn = web.Application(), web.Application()
        hub.router.add_get("/api/datasets/owner/name/revision/{revision}", self._revision)
        hub.router.add_get("/api/datasets/owner/name/tree/{revision}", self._tree)
        hub.router.add_get("/api/datasets/owner/name/tree/{revision}/{path:[^|]*}", self._tree)
        hub.router.add_get("/datasets/owner/name/resolve/{revision}/{path:[^|]*}", self._resolve)
        cdn.router.add_get("/blob/{digest}", self._blob)
        urls = []
        for app in (hub, cdn):
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._runners.append(runner)
            urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        self.url, self.cdn_url = urls
        return self

    async def __aexit__(self, *exc: object) -> None:
        for runner in self._runners:
            await runner.cleanup()

    def _note(self, server: str, request: web.Request) -> web.Response | None:
        self.requests.append((server, request.path_qs, dict(request.headers)))
        if server == "hub" and self.refusals:
            refusal = self.refusals.pop(0)
            return None if refusal is None else web.Response(status=refusal[0], headers=refusal[1])
        return None

    def _files(self, revision: str) -> dict[str, bytes] | None:
        if revision == "main":
            return self.commits[-1]
        numbers = {sha_of(number): number for number in range(len(self.commits))}
        return self.commits[numbers[revision]] if revision in numbers else None

    async def _revision(self, request: web.Request) -> web.Response:
        refused = self._note("hub", request)
        if refused is not None:
            return refused
        name = request.match_info["revision"]
        if self._files(name) is None:
            return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        return web.json_response({"sha": sha_of(len(self.commits) - 1) if name == "main" else name, "id": "owner/name"})

    async def _tree(self, request: web.Request) -> web.Response:
        refused = self._note("hub", request)
        if refused is not None:
            return refused
        files = self._files(request.match_info["revision"]) or {}
        folder = f"{request.match_info.get('path', '')}/".lstrip("/")
        inside = {path: data for path, data in files.items() if path.startswith(folder)}
        if folder and not inside:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        recursive = request.query["recursive"] == "true"
        entries: dict[str, dict[str, object]] = {}
        for path, data in reversed(inside.items()):
            parts = path[len(folder) :].split("/")
            for depth in range(1, len(parts)):
                name = folder + "/".join(parts[:depth])
                if recursive or depth == 1:
                    entries[name] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
            if recursive or len(parts) == 1:
                entries[path] = _entry(path, data)
        rows = [*entries.values(), *self.rows]
        at = int(request.query.get("cursor", "0"))
        headers = {}
        if at + self._page_count < len(rows) or self.next_url:
            url = self.next_url or request.url.update_query(cursor=str(at + self._page_count))
            headers["Link"] = f'<{url}>; rel="next"'
        return web.json_response(rows[at : at + self._page_count], headers=headers)

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        refused = self._note("hub", request)
        if refused is not None:
            return refused
        data = (self._files(request.match_info["revision"]) or {}).get(request.match_info["path"])
        if data is None:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        commit = {"X-Repo-Commit": request.match_info["revision"]}
        if len(data) < LARGE_BYTES:
            return _ranged(request, data, {**commit, "ETag": f'"{blob_of(data)}"'})
        digest = hashlib.sha256(data).hexdigest()
        self._signed_count += 1
        ends = int(time.time() + self.lifetime_s)  # noqa: TID251 - a signature ends at a date
        location = f"{self.cdn_url}/blob/{digest}?Expires={ends}&Signature=s{self._signed_count}"
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data)), "Location": location}
        return web.Response(status=302, headers=commit | linked)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        self._note("cdn", request)
        if request.query["Signature"] in self.revoked:
            return web.Response(status=403)
        return _ranged(request, self._blobs[request.match_info["digest"]], {"ETag": '"of-the-cdn"'})


@contextlib.contextmanager
def threaded_hub() -> Iterator[FakeHub]:
    """Run a hub in a thread, for tests that block their own loop."""
    hub, ready = FakeHub(), threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with hub:
            loops.append((asyncio.get_running_loop(), asyncio.Event()))
            ready.set()
            await loops[0][1].wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="fake-hub")
    thread.start()
    assert ready.wait(PATIENT_S), "the hub did not start"
    try:
        yield hub
    finally:
        loop, done = loops[0]
        loop.call_soon_threadsafe(done.set)
        thread.join(PATIENT_S)


def sha_of(number: int) -> str:
    """Return the id of a commit."""
    return f"{number:040x}"


def blob_of(data: bytes) -> str:
    """Return git's id of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _entry(path: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "oid": blob_of(data), "size": len(data), "path": path}
    if len(data) >= LARGE_BYTES:
        digest = hashlib.sha256(data).hexdigest()
        entry |= {"lfs": {"oid": digest, "size": len(data), "pointerSize": 132}, "xetHash": "f" * 64}
    return entry


def _ranged(request: web.Request, data: bytes, headers: dict[str, str]) -> web.StreamResponse:
    match = _RANGE.fullmatch(request.headers.get("Range", ""))
    if match is None:
        return web.Response(body=data, headers=headers)
    start, end = int(match[1]), min(int(match[2]) + 1, len(data))
    headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
    return web.Response(status=206, body=data[start:end], headers=headers)
