"""Our signed requests are botocore's own, header for header."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import NoCredentialsError

from feedd.source.options import S3Options, SourceOptions
from feedd.source.s3.client import open_client
from feedd.source.s3.direct.sign import catch_template

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

KEYS = [
    "plain.tar",
    "a b/c+d",
    "%2F/%",
    "ü/\U0001f600",
    "a\nb\tc",
    "/lead//double/",
    "a/../b",
    "./c",
    "~-._!*'()&=@:,;$?#",
]
WAYS = {
    "path": S3Options(endpoint_url="http://127.0.0.1:9000", region="eu-north-1"),
    "virtual": S3Options(region="eu-north-1"),
    "virtual at an endpoint": S3Options(endpoint_url="https://s3.example.com", addressing_style="virtual"),
    "path on aws": S3Options(region="us-west-2", addressing_style="path"),
    "endpoint with a path": S3Options(endpoint_url="https://example.com:443/store", region="x"),
    "ipv6": S3Options(endpoint_url="http://[::1]:9000"),
    "anonymous": S3Options(endpoint_url="http://127.0.0.1:9000", anonymous=True),
    "requester pays": S3Options(region="eu-north-1", requester_pays=True),
}
HEADERS = {"Range": "bytes=5-9", "If-Match": '"an-etag"'}


class _Sent(Exception):
    pass


@pytest.fixture(autouse=True)
def _one_moment(monkeypatch: pytest.MonkeyPatch, aws_credentials: None) -> None:
    """Time stands still, so that two signatures of the same request are the same."""
    now = datetime.now(UTC).replace(tzinfo=None)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: now)


@contextlib.asynccontextmanager
async def _client(s3: S3Options) -> AsyncIterator[Any]:
    async with contextlib.AsyncExitStack() as stack:
        yield await open_client(stack, s3, SourceOptions())


async def _theirs(client: Any, s3: S3Options, key: str) -> Any:
    """Return botocore's own request, as it would go out."""
    sent: list[Any] = []

    def before_send(request: Any, **_: Any) -> None:
        sent.append(request)
        raise _Sent

    client.meta.events.register("before-send.s3.GetObject", before_send)
    payer = {"RequestPayer": "requester"} if s3.requester_pays else {}
    with contextlib.suppress(_Sent):
        await client.get_object(Bucket="bucket", Key=key, Range=HEADERS["Range"], IfMatch=HEADERS["If-Match"], **payer)
    client.meta.events.unregister("before-send.s3.GetObject", before_send)
    return sent[0]


def _parsed(request: bytes) -> tuple[str, Mapping[str, str]]:
    first, *lines = request.decode("latin-1").split("\r\n")
    assert lines[-2:] == ["", ""]
    method, path, version = first.split(" ")
    assert (method, version) == ("GET", "HTTP/1.1")
    headers = [line.split(": ", 1) for line in lines[:-2]]
    assert len({name.lower() for name, _ in headers}) == len(headers)
    return path, {name.lower(): value for name, value in headers}


@pytest.mark.parametrize("s3", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("token", ["", "a-session-token"])
async def test_same_as_botocores(s3: S3Options, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every addressing, credential and key: the same target, the same headers, the same signature."""
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    async with _client(s3) as client:
        template = await catch_template(client, "bucket", requester_pays=s3.requester_pays)
        assert not template.obstacle
        for key in KEYS:
            theirs = await _theirs(client, s3, key)
            path, headers = _parsed(await template.sign(key, HEADERS))
            ours = dict(headers)
            host = ours.pop("host")
            assert ours.pop("accept-encoding") == "identity"  # their transport adds it to every request as well
            assert f"{template.scheme}://{host}{path}" == theirs.url.replace("example.com:443", "example.com")
            if "host" in theirs.headers:  # set by the signer that botocore takes where awscrt is installed
                assert theirs.headers["host"] == host
            assert ours == {
                name.lower(): value.decode() if isinstance(value, bytes) else value
                for name, value in theirs.headers.items()
                if name not in {"amz-sdk-invocation-id", "amz-sdk-request", "host"}  # its own statistics, not signed
            }
            assert ("authorization" in ours) == (not s3.anonymous)
            assert ("x-amz-security-token" in ours) == (bool(token) and not s3.anonymous)


async def test_signed_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranges have two signatures, and requests made from one template leave no trace in it."""
    async with _client(WAYS["path"]) as client:
        template = await catch_template(client, "bucket", requester_pays=False)
        first = await template.sign("a", HEADERS)
        second = await template.sign("a", {**HEADERS, "Range": "bytes=0-4"})
        assert _parsed(first)[1]["authorization"] != _parsed(second)[1]["authorization"]
        assert await template.sign("a", HEADERS) == first


async def test_catching_leaves_the_client_usable() -> None:
    """After a template was caught the client's own requests go out as before."""
    async with _client(WAYS["path"]) as client:
        await catch_template(client, "bucket", requester_pays=False)
        assert (await _theirs(client, WAYS["path"], "k")).url.endswith("/bucket/k")


async def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's requests are not sent unsigned: the error is botocore's."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    async with _client(WAYS["path"]) as client:
        template = await catch_template(client, "bucket", requester_pays=False)
        with pytest.raises(NoCredentialsError):
            await template.sign("a", HEADERS)


async def test_proxy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy counts for endpoints that are not excepted from it."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for no_proxy, proxied in (("", True), ("127.0.0.1", False)):
        monkeypatch.setenv("no_proxy", no_proxy)
        async with _client(WAYS["path"]) as client:
            assert (await catch_template(client, "bucket", requester_pays=False)).proxied is proxied


async def test_other_signatures_are_an_obstacle() -> None:
    """Versions of the signature that we cannot vouch for are left to the SDK."""
    async with _client(S3Options(region="us-east-1")) as client:
        template = await catch_template(client, "bucket--use1-az4--x-s3", requester_pays=False)
        assert template.obstacle == "requests are signed by v4-s3express"
