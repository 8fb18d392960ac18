"""Passwords of ``~/.netrc`` are for the tools of the daemon's user, not for the daemon."""

from __future__ import annotations

import base64
import contextlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Final

import pytest

from feedd.errors import FeeddError
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.s3.store import S3Store
from feedd.fetch.web.hub import HubStore
from feedd.fetch.web.store import HttpStore
from feedd.observe import otel_spans
from tests.conformance.object_store_suite import collect, read
from tests.fakes.hub import FakeHub
from tests.fakes.web_service import WebService
from tests.fault.test_traces import _batch

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.protocols import ObjectStore

PASSWORD: Final = "netrc-password"
SENT: Final = base64.b64encode(f"bob:{PASSWORD}".encode()).decode()
DATA: Final = b'HTTP/1.1 206 Part\r\nETag: "x"\r\nContent-Range: bytes 0-1/2\r\nContent-Length: 2\r\n\r\nab'


@pytest.fixture(autouse=True)
def _netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A netrc with a password for this machine, and one for all others."""
    file = tmp_path / ".netrc"
    file.write_text(f"machine 127.0.0.1 login bob password {PASSWORD}\ndefault login bob password {PASSWORD}\n")
    file.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def stores(url: str) -> dict[str, ObjectStore]:
    """Return each kind of store, at a server."""
    limits = SourceOptions(s3={"*": S3Options(endpoint_url=url)})
    return {
        "web": HttpStore(url, limits),
        "S3": S3Store("bucket", limits),
    }


@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("name", ["web", "S3"])
@pytest.mark.usefixtures("aws_credentials")
async def test_stores_get_no_password(name: str, *, proxied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store gets no password of netrc, with and without a proxy; a proxy gets only its own."""
    service = WebService(DATA)
    async with service.running() as url:
        server = url
        if proxied:
            monkeypatch.setenv("http_proxy", url.replace("://", "://me:for-the-proxy@"))
            server = "http://data.example"
        store = stores(server)[name]
        try:
            with contextlib.suppress(FeeddError):
                await store.head("key")
        finally:
            await store.close()
    assert service.requests
    for _, path, head in service.requests:
        assert SENT not in head
        assert path.startswith("http://data.example/") is proxied
        assert (base64.b64encode(b"me:for-the-proxy").decode() in head) is proxied


async def test_a_proxys_password_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy gets its password with CONNECT, and a proxy that refuses it is named without the password."""
    service = WebService(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
    async with service.running() as url:
        monkeypatch.setenv("https_proxy", url.replace("://", "://me:for-the-proxy@"))
        store = HttpStore("https://data.example", SourceOptions())
        with pytest.raises(FeeddError) as caught:
            await store.head("key")
        await store.close()
    assert base64.b64encode(b"me:for-the-proxy").decode() in service.requests[0][2]
    assert "for-the-proxy" not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize("source", ["STS", "instance", "container"])
async def test_credential_services_get_no_password(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """STS and the metadata services get no password of netrc."""
    service = WebService(b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\n{}")
    async with service.running() as url:
        if source == "STS":
            (tmp_path / "token").write_text("token")
            monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
            monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/train")
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
            monkeypatch.setenv("AWS_REGION", "us-east-1")
        elif source == "instance":
            monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{url}/")
        else:
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/creds")
        store = S3Store("bucket", SourceOptions(s3={"*": S3Options(endpoint_url="http://127.0.0.1:1")}))
        with pytest.raises(FeeddError):
            await store.head("key")
        await store.close()
    assert service.requests
    assert not [head for _, _, head in service.requests if "authorization: basic" in head.lower()]


@pytest.mark.parametrize("token", ["hf_secret", ""])
async def test_the_hub_gets_its_token_only(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A netrc entry for the Hub, as ``git clone`` writes it, neither reaches the Hub nor stops an open."""
    monkeypatch.setenv("HF_TOKEN", token)
    async with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.put("a.tar", b"content")
        store = HubStore("hf://datasets/owner/name", SourceOptions())
        try:
            (ref,) = await collect(store, "")
            assert await read(store, ref, 0, 7) == b"content"
        finally:
            await store.close()
        wanted = f"Bearer {token}" if token else None
        assert {headers.get("Authorization") for server, _, headers in hub.requests if server == "hub"} == {wanted}


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://other.example/api", "got a redirect to http://other.example"),
        ("http://localhost:{port}/api", "got a redirect to http://localhost"),
        ("", "a redirect with a location"),
    ],
)
async def test_the_hubs_listing_stays_at_the_hub(location: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect of the Hub's API to another host is refused, with the variable that would name that host."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    async with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        location = location.format(port=hub.url.rpartition(":")[2])
        hub.refusals = [(307, {"Location": location} if location else {})] * 9
        store = HubStore("hf://datasets/owner/name", SourceOptions())
        try:
            with pytest.raises(FeeddError, match=words):
                await collect(store, "")
        finally:
            await store.close()


async def test_a_renamed_dataset_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub redirects a dataset's old name to the new one, with a path alone; the token goes along within the Hub."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    async with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.put("a.tar", b"content")
        hub.refusals = [(307, {"Location": "/api/datasets/owner/name/revision/main?renamed"})]
        store = HubStore("hf://datasets/owner/name", SourceOptions())
        try:
            await store._api.commit("main")
        finally:
            await store.close()
        paths = [(path, headers.get("Authorization")) for _, path, headers in hub.requests]
        assert paths[-1] == ("/api/datasets/owner/name/revision/main?renamed", "Bearer hf_secret")


def test_the_collector_of_traces_gets_its_own_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector gets the headers that the operator configured, in place of a password of netrc."""
    seen: list[str] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(str(self.headers["Authorization"]))
            self.send_response(307 if self.path == "/v1/traces" else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20mine")
        spans = otel_spans.open_spans()
        spans.export(_batch(), [])
        spans.close()
        spans._provider.shutdown()
        server.shutdown()
        serving.join()
    assert seen == ["Bearer mine"]
