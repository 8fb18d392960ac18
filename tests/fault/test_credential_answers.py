"""Who answers where credentials are asked for, and what a source of credentials may do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import stat
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.errors import FeeddError, PermissionDenied, StoreUnavailable
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.s3 import credential_chain, credential_sources
from feedd.fetch.s3.credential_chain import find_credentials
from feedd.metrics import SOURCE_RETRIES
from tests.fakes.s3.server import S3Server
from tests.fakes.sinks import into
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

SECRET: Final = "do-not-show-this-key"
PAGE: Final = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>please</body></html>"
ROLE: Final = "arn:aws:iam::123456789012:role/train"


def answer(status: int, body: bytes, kind: str = "", **headers: str) -> bytes:
    """Return an answer with a length."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}"]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def unframed(body: bytes, kind: str) -> bytes:
    """Return an answer that ends with its connection."""
    return f"HTTP/1.1 200 Said\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode() + body


def chunked(body: bytes, kind: str) -> bytes:
    """Return an answer in chunks."""
    head = f"HTTP/1.1 200 Said\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def ends(seconds: float) -> str:
    """Return a time in the future as services write it."""
    moment = datetime.now(UTC) + timedelta(seconds=seconds)  # noqa: TID251 - credentials end at a date
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def role_credentials(life_s: float = 3600, action: str = "AssumeRoleWithWebIdentity") -> bytes:
    """Return STS's answer."""
    return (
        f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><Credentials>'
        f"<AccessKeyId>ROLE</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>t</SessionToken>"
        f"<Expiration>{ends(life_s)}</Expiration></Credentials><AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s"
        f"</Arn><AssumedRoleId>A:s</AssumedRoleId></AssumedRoleUser></{action}Result></{action}Response>"
    ).encode()


def key_credentials(life_s: float = 3600) -> bytes:
    """Return a metadata service's answer."""
    found = {"AccessKeyId": "POD", "SecretAccessKey": SECRET, "Token": "t", "Expiration": ends(life_s)}
    return json.dumps({"Code": "Success", **found}).encode()


class Service:
    """A web server with one answer to everything, or what a function of verb and path returns; None: it is silent."""

    def __init__(self, told: bytes | None | Callable[[str, str], bytes | None]) -> None:
        self.told = told
        self.requests: list[tuple[str, str, str]] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                verb, path, _ = head.split(" ", 2)
                self.requests.append((verb, path, head))
                length = head.lower().partition("content-length: ")[2].partition("\r")[0]
                await reader.readexactly(int(length or 0))
                found = self.told(verb, path) if callable(self.told) else self.told
                if found is None:
                    await reader.read()  # until the client gives up
                    break
                writer.write(found)
                await writer.drain()
                if b"Content-Length" not in found and b"chunked" not in found:
                    break
        writer.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve; yields the URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for _ in range(50):
                await asyncio.sleep(0)


@pytest.fixture
def store() -> Iterator[S3Server]:
    """A store that must not be asked before there are credentials."""
    with S3Server() as server:
        server.put("bucket", "one", b"1")
        yield server


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is known for silence after a short time."""
    monkeypatch.setattr(credential_sources, "_READ_S", 0.3)
    monkeypatch.setattr(credential_chain, "_PAUSES_S", (0.05, 0.05, 0.05, 0.05))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


async def listed(store: S3Server, recorder: TallyRecorder | None = None, **access: str) -> int:
    """List and read the store's object; return its size."""
    options = SourceOptions(s3={"*": S3Options(endpoint_url=store.url, **access)})  # type: ignore[arg-type]  # texts only
    async with Sources(options, recorder or TallyRecorder(), SystemClock()) as sources:
        (ref,) = await sources.resolve(["s3://bucket/one"])
        await sources.fetcher.fetch(ref, into(bytearray(1)))
        return ref.size_bytes


async def refused(store: S3Server, **access: str) -> FeeddError:
    """Return the error of a listing; the store was not asked, and no secret is in the error."""
    recorder = TallyRecorder()
    with pytest.raises((PermissionDenied, StoreUnavailable)) as caught:
        await listed(store, recorder, **access)
    error = caught.value
    assert store.requests == []
    assert error.stage == "credentials"
    assert error.object == "s3://bucket/one"
    assert error.hint
    assert SECRET not in f"{error} {error.hint}"
    if isinstance(error, PermissionDenied):
        assert recorder.total(SOURCE_RETRIES) == 0
    return error


def use_web_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, token: str = "token") -> Path:
    """Let credentials come from STS for a token."""
    file = tmp_path / "token"
    file.write_text(token)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(file))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
    return file


def use_metadata(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let credentials come from the instance metadata service."""
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{url}/")


def use_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> Path:
    """Let credentials come from a configuration file."""
    file = tmp_path / "config"
    file.write_text(text)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    return file


CELLS: Final[dict[str, tuple[bytes | None, str]]] = {
    "html 200": (answer(200, PAGE, "text/html"), 'web page "Sign in"'),
    "empty 200": (answer(200, b""), "empty answer"),
    "html 403": (answer(403, PAGE, "text/html"), 'web page "Sign in"'),
    "407": (answer(407, PAGE, "text/html", Proxy_Authenticate="Basic"), "proxy"),
    "redirect": (answer(302, b"", Location="http://login.example/sso?x=y"), "redirects to http://login.example/sso"),
    "no length": (unframed(PAGE, "text/html"), 'web page "Sign in"'),
    "chunked": (chunked(PAGE, "text/html"), 'web page "Sign in"'),
    "never answers": (None, "did not answer"),
}


@pytest.mark.parametrize("source", ["STS", "metadata service"])
@pytest.mark.parametrize("cell", CELLS)
async def test_a_foreign_answer_is_named(
    store: S3Server, source: str, cell: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An answer that is not the credential service's names its sender and the provider, and is not asked for again."""
    told, words = CELLS[cell]
    service = Service(told)
    async with service.running() as url:
        if source == "STS":
            use_web_identity(monkeypatch, tmp_path, url)
        else:
            use_metadata(monkeypatch, url)
        if cell == "never answers" and source == "STS":
            monkeypatch.setattr(credential_chain, "CREDENTIALS_DEADLINE_S", 0.5)
            error = await refused(store)
        else:
            error = await refused(store)
        assert isinstance(error, PermissionDenied)
        assert source in error.message
        assert url in error.message
        assert words in error.message
        assert len(service.requests) <= 6
        assert all("login.example" not in head for _, _, head in service.requests)


@pytest.mark.parametrize("frame", [lambda body, kind: answer(200, body, kind), unframed, chunked])
@pytest.mark.parametrize("source", ["STS", "metadata service"])
async def test_any_framing_of_a_right_answer_is_read(
    store: S3Server,
    source: str,
    frame: Callable[[bytes, str], bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Credentials are read from answers with a length, without one, and in chunks."""

    def metadata(verb: str, path: str) -> bytes:
        if verb == "PUT":
            return frame(b"token", "text/plain")
        return frame(b"role" if path.endswith("/") else key_credentials(), "text/plain")

    service = Service(frame(role_credentials(), "text/xml") if source == "STS" else metadata)
    async with service.running() as url:
        if source == "STS":
            use_web_identity(monkeypatch, tmp_path, url)
        else:
            use_metadata(monkeypatch, url)
        assert await listed(store) == 1
