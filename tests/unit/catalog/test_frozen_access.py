"""Frozen manifests name objects below their folder only, which the caller may read, whatever store they are in."""

from __future__ import annotations

import posixpath
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from feedd.access import EVERYTHING, Access, completed
from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.dataset.frozen_manifest import render
from feedd.errors import BadRequest, FeeddError, PermissionDenied
from feedd.fetch.fetch_options import SourceOptions
from feedd.flow.loop_thread import LoopThread
from feedd.values import ObjectRef
from tests.fakes.hub import FakeHub
from tests.fakes.sinks import into
from tests.fakes.stores import serving, sources_over
from tests.fakes.tally import TallyRecorder
from tests.unit.dataset.test_frozen_manifest import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow  # over real servers

_NAME = "_feedd_manifest/00000001.feedd"
CLIMBING = [
    "../../private/secret.txt",
    "x/../../../private/secret.txt",
    "..%2f..%2fprivate/secret.txt",
    "%2e%2e/%2E%2E/private/secret.txt",
    "%252e%252e/%252e%252e/private/secret.txt",
    "..\\..\\private\\secret.txt",
    "..;/..;/private/secret.txt",
    "\uff0e\uff0e/\uff0e\uff0e/private/secret.txt",
    "..",
    "a\0b",
]


class _Lenient(ThreadingHTTPServer):
    """A web server that decodes a path twice before it resolves dots, as some do."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        """Its root URL."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Lenient

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer a GET of a range."""
        self.server.asked.append(self.path)
        body = self.server.files.get(posixpath.normpath(unquote(unquote(self.path)).replace("\\", "/")))
        if body is None:
            self.send_error(404)
            return
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(body)), len(body) - 1) + 1
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", '"v1"')
        self.end_headers()
        self.wfile.write(body[start:end])


@contextmanager
def _lenient(files: dict[str, bytes]) -> Iterator[_Lenient]:
    with _Lenient(files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _frozen(*keys: str) -> bytes:
    return render(manifest([(key, 8, "v1", 1) for key in keys]))


def _sources() -> Sources:
    return Sources(SourceOptions(), TallyRecorder(), SystemClock(), LoopThread("feedd-fetch"))


@pytest.mark.parametrize("key", CLIMBING)
async def test_a_manifest_on_a_web_server_that_climbs_is_refused(key: str) -> None:
    """With rules and without, among many good keys, and before any request for the object."""
    keys = [*(f"good-{number}.tar" for number in range(5000)), key]
    with _lenient({f"/team/evil/{_NAME}": _frozen(*keys), "/private/secret.txt": b"secret..."}) as server:
        async with _sources() as sources:
            for access in (EVERYTHING, Access(completed(f"{server.url}/team/"))):
                for url in (f"frozen+{server.url}/team/evil/{_NAME}", f"text+frozen+{server.url}/team/evil/{_NAME}"):
                    with pytest.raises(BadRequest, match="expected objects below the manifest's folder, got the key"):
                        await sources.resolve([url], access)
        assert set(server.asked) == {f"/team/evil/{_NAME}"}


async def test_a_good_manifest_on_a_web_server_is_read() -> None:
    """Keys with dots, percent signs and letters of any language are names like others."""
    keys = ["a.tar", ".b/c..d", "e%20f.tar", "g/\u00e9.tar", "date=1/x;y"]
    with _lenient({f"/team/{_NAME}": _frozen(*keys)}) as server:
        async with _sources() as sources:
            found = await sources.resolve([f"frozen+{server.url}/team/{_NAME}"], Access((f"{server.url}/team/",)))
            assert [ref.key for ref in found] == [f"team/{key}" for key in keys]


async def test_objects_of_a_manifest_are_held_against_the_rules() -> None:
    """A rule that covers the manifest, or a part of its folder, covers no other objects that it names."""
    bodies = {f"train/{_NAME}": _frozen("a/1.tar", "b/2.tar"), "train/a/1.tar": b"12345678", "train/b/2.tar": b"1" * 8}
    with serving(bodies) as server:
        async with sources_over(server) as sources:
            url = f"frozen+s3://bucket/train/{_NAME}"
            for rules in (("s3://bucket/train/",), ("s3://bucket/",), ("s3://",), None):
                assert len(await sources.resolve([url], Access(rules))) == 2
            both = ("s3://bucket/train/_feedd_manifest/", "s3://bucket/train/a/", "s3://bucket/train/b/")
            assert len(await sources.resolve([url], Access(both))) == 2
            for part in (both[:1], both[:2]):
                with pytest.raises(
                    PermissionDenied, match=r"s3://bucket/train/(a/1|b/2)\.tar, which s3://bucket/train/"
                ):
                    await sources.resolve([url], Access(part))


@pytest.mark.parametrize("key", ["../x.tar", "..%2fx.tar", "a/../../x.tar"])
async def test_keys_of_s3_are_names(key: str) -> None:
    """S3 resolves nothing, so such keys lie below the folder, as any other."""
    with serving({f"train/{_NAME}": _frozen(key), f"train/{key}": b"12345678", "x.tar": b"secret.."}) as server:
        async with sources_over(server) as sources:
            (ref,) = await sources.resolve([f"frozen+s3://bucket/train/{_NAME}"], Access(("s3://bucket/train/",)))
            assert ref.key == f"train/{key}"


@pytest.mark.parametrize("key", CLIMBING)
async def test_the_token_of_the_hub_goes_with_no_path_that_climbs(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither a manifest of a dataset, nor a ref, nor a listing makes the daemon ask for another dataset's files."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    async with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.put(f"data/{_NAME}", _frozen("a.tar", key))
        async with _sources() as sources:
            root = "hf://datasets/owner/name"
            for url in (f"frozen+{root}/data/", f"frozen+{root}/data/{_NAME}"):
                with pytest.raises(BadRequest, match="expected objects below the manifest's folder"):
                    await sources.resolve([url], EVERYTHING)
            store = sources.store(root)
            with pytest.raises(FeeddError):
                await store.head(f"data/{key}")
            with pytest.raises(BadRequest, match="expected a key below its folder"):
                await sources.fetcher.fetch(ObjectRef(root, f"data/{key}", 8, "v1"), into(bytes(8)))
        assert hub.requests
        assert not [path for _, path, _ in hub.requests if "secret.txt" in path or ".." in path]
