"""Our signed requests are botocore's own, header for header."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore import UNSIGNED
from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import NoCredentialsError
from botocore.loaders import create_loader
from botocore.utils import percent_encode
from hypothesis import given
from hypothesis import strategies as st

from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.s3.client import ClockOffset, open_client
from feedd.fetch.s3.sign import Pattern, catch_template

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
LOADER = create_loader()  # botocore's files, read once: a session of its own reads megabytes of JSON
ARN = "arn:aws:s3:us-west-2:123456789012:accesspoint/mine"
MULTI_REGION = "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap"
DIRECTORY = "mine--use1-az4--x-s3"
DUAL_STACK = {"AWS_USE_DUALSTACK_ENDPOINT": "true"}
FIPS = {"AWS_USE_FIPS_ENDPOINT": "true"}


@dataclass(frozen=True)
class Way:
    """One way to address a bucket."""

    s3: S3Options
    bucket: str = "bucket"
    environment: Mapping[str, str] = field(default_factory=dict)


AWS = S3Options(region="us-east-1")
WAYS = {
    "path": Way(S3Options(endpoint_url="http://127.0.0.1:9000", region="eu-north-1")),
    "virtual": Way(S3Options(region="eu-north-1")),
    "virtual at an endpoint": Way(S3Options(endpoint_url="https://s3.example.com", addressing_style="virtual")),
    "path on aws": Way(S3Options(region="us-west-2", addressing_style="path")),
    "endpoint with a path": Way(S3Options(endpoint_url="https://example.com:443/store", region="x")),
    "ipv6": Way(S3Options(endpoint_url="http://[::1]:9000")),
    "anonymous": Way(S3Options(endpoint_url="http://127.0.0.1:9000", anonymous=True)),
    "requester pays": Way(S3Options(region="eu-north-1", requester_pays=True)),
    "dots over tls": Way(S3Options(region="eu-north-1"), "a.bucket.with.dots"),
    "dots asked to be virtual": Way(S3Options(region="eu-north-1", addressing_style="virtual"), "a.bucket.with.dots"),
    "access point": Way(AWS, ARN),
    "access point with colons": Way(AWS, ARN.replace("/", ":")),
    "access point at an endpoint": Way(S3Options(endpoint_url="https://example.com", region="us-west-2"), ARN),
    "access point by alias": Way(AWS, "mine-abcdefghijklmnop-s3alias"),
    "access point in every region": Way(AWS, MULTI_REGION),
    "directory": Way(AWS, DIRECTORY),
    "directory at an endpoint": Way(S3Options(endpoint_url="http://127.0.0.1:9000"), DIRECTORY),
    "dual-stack": Way(AWS, environment=DUAL_STACK),
    "dual-stack by path": Way(S3Options(region="us-west-2", addressing_style="path"), environment=DUAL_STACK),
    "fips": Way(AWS, environment=FIPS),
    "fips and dual-stack": Way(AWS, environment=FIPS | DUAL_STACK),
    "fips access point": Way(S3Options(region="us-west-2"), ARN, FIPS),
    "dual-stack directory": Way(AWS, DIRECTORY, DUAL_STACK),
}
HOSTS = {
    "dots over tls": "s3.eu-north-1.amazonaws.com",
    "access point": "mine-123456789012.s3-accesspoint.us-west-2.amazonaws.com",
    "access point in every region": "mfzwi23gnjvgw.mrap.accesspoint.s3-global.amazonaws.com",
    "directory": "mine--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com",
    "dual-stack": "bucket.s3.dualstack.us-east-1.amazonaws.com",
    "fips and dual-stack": "bucket.s3-fips.dualstack.us-east-1.amazonaws.com",
}
NOW = datetime.now(UTC)  # noqa: TID251 - a signature states its date
NATIVE = "s3v4a" in AUTH_TYPE_MAPS  # unless BOTO_DISABLE_CRT is set
HEADERS = {"Range": "bytes=5-9", "If-Match": '"an-etag"'}


class _Sent(Exception):
    pass


@pytest.fixture(autouse=True)
def _one_moment(monkeypatch: pytest.MonkeyPatch, aws_credentials: None) -> None:
    """Time stands still, so that two signatures of the same request are the same."""
    for signers in ("botocore.auth", "botocore.crt.auth")[: 2 if NATIVE else 1]:
        monkeypatch.setattr(
            f"{signers}.get_current_datetime",
            lambda *, remove_tzinfo=True: NOW.replace(tzinfo=None) if remove_tzinfo else NOW,
        )


@pytest.fixture(params=["native", pytest.param("python", marks=pytest.mark.slow)])
def _signers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Botocore's signers with awscrt, and those it has without."""
    if request.param == "native" and not NATIVE:
        pytest.skip("needs botocore's use of awscrt")
    if request.param == "python":
        monkeypatch.setitem(AUTH_TYPE_MAPS, "s3v4", S3SigV4Auth)


async def _session_of_directory(**_: Any) -> Any:
    """Answer CreateSession."""
    ends = datetime.now(UTC) + timedelta(minutes=5)  # noqa: TID251 - credentials end at a date
    found = {"AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "session-token", "Expiration": ends}
    return {"Credentials": found}


@contextlib.asynccontextmanager
async def _client(s3: S3Options) -> AsyncIterator[Any]:
    async with contextlib.AsyncExitStack() as stack:
        client = await open_client(stack, s3, SourceOptions())
        client.create_session = _session_of_directory
        yield client


@contextlib.asynccontextmanager
async def _plain_client(s3: S3Options) -> AsyncIterator[Any]:
    """Open a client as anybody would: nothing of ours is in it."""
    style = {} if s3.addressing_style == "auto" else {"addressing_style": s3.addressing_style}
    version = UNSIGNED if s3.anonymous else None
    config = AioConfig(s3=style, signature_version=version, response_checksum_validation="when_required")
    session = AioSession()
    session.register_component("data_loader", LOADER)
    made = session.create_client("s3", region_name=s3.region, endpoint_url=s3.endpoint_url, config=config)
    async with made as client:
        client.create_session = _session_of_directory
        yield client


async def _theirs(client: Any, way: Way, key: str) -> Any:
    """Return botocore's own request, as it would go out."""
    sent: list[Any] = []

    def before_send(request: Any, **_: Any) -> None:
        sent.append(request)
        raise _Sent

    client.meta.events.register("before-send.s3.GetObject", before_send)
    with contextlib.suppress(_Sent):
        await client.get_object(Bucket=way.bucket, Key=key, **_more(way))
    client.meta.events.unregister("before-send.s3.GetObject", before_send)
    return sent[0]


def _more(way: Way) -> dict[str, str]:
    return {"RequestPayer": "requester"} if way.s3.requester_pays else {}


def _parsed(request: bytes) -> tuple[str, Mapping[str, str]]:
    first, *lines = request.decode("latin-1").split("\r\n")
    assert lines[-2:] == ["", ""]
    method, path, version = first.split(" ")
    assert (method, version) == ("GET", "HTTP/1.1")
    headers = [line.split(": ", 1) for line in lines[:-2]]
    assert len({name.lower() for name, _ in headers}) == len(headers)
    return path, {name.lower(): value for name, value in headers}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _same(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Compare headers; a signature by elliptic curve has a random part, so only what it is of is compared."""
    if "ECDSA" in ours.get("authorization", ""):
        cut = [{**one, "authorization": one["authorization"].partition(", Signature=")[0]} for one in (ours, theirs)]
        return cut[0] == cut[1]
    return ours == theirs


@pytest.mark.usefixtures("_signers")
@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("token", [pytest.param("", marks=pytest.mark.slow), "a-session-token"])
async def test_same_as_botocores(name: str, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every addressing, credential, signer and key: the same target, the same headers, the same signature."""
    way = WAYS[name]
    if way.bucket == MULTI_REGION and not NATIVE:
        pytest.skip("needs awscrt, which alone signs for several regions")
    for variable, value in way.environment.items():
        monkeypatch.setenv(variable, value)
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    async with _client(way.s3) as client, _plain_client(way.s3) as plain:
        template = await catch_template(client, way.bucket, _more(way))
        assert not template.obstacle
        for key in KEYS:
            theirs = await _theirs(plain, way, key)
            path, headers = _parsed(await template.sign(key, HEADERS))
            ours = dict(headers)
            for header, value in HEADERS.items():  # S3 wants Host and x-amz-* signed, and nothing else
                assert ours.pop(header.lower()) == value
            host = ours.pop("host")
            assert host == HOSTS.get(name, host)
            assert ours.pop("accept-encoding") == "identity"  # their transport adds it to every request as well
            assert f"{template.scheme}://{host}{path}" == theirs.url.replace("example.com:443", "example.com")
            expected = {name.lower(): _text(value) for name, value in theirs.headers.items()}
            assert expected.pop("host", host) == host  # set by the native signers
            for statistics in ("amz-sdk-invocation-id", "amz-sdk-request", "user-agent"):  # none of them is signed
                expected.pop(statistics)
                ours.pop(statistics, None)
            assert _same(ours, expected)
            assert ("authorization" in ours) == (not way.s3.anonymous)
            session = ours.get("x-amz-s3session-token", ours.get("x-amz-security-token", ""))
            assert session == ("session-token" if way.bucket == DIRECTORY else "" if way.s3.anonymous else token)


@pytest.mark.parametrize("name", ["virtual", "directory", "access point", "path"])
async def test_signed_at_the_stores_time(name: str) -> None:
    """With a clock that is off by 20 minutes the signature is the one that the right time would give."""
    way, off = WAYS[name], timedelta(minutes=20)
    async with _client(way.s3) as client, _plain_client(way.s3) as plain:
        clock = ClockOffset()
        clock.attach(client)
        clock.offset_s = off.total_seconds()
        template = await catch_template(client, way.bucket, {})
        assert not template.obstacle
        ours = _parsed(await template.sign("key", HEADERS))[1]
        there = NOW.replace(tzinfo=None) + off
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("botocore.auth.get_current_datetime", lambda: there)
            patched.setitem(AUTH_TYPE_MAPS, "s3v4", S3SigV4Auth)
            theirs = await _theirs(plain, way, "key")
        for header in ("x-amz-date", "authorization"):
            assert ours[header] == _text(theirs.headers[header])


async def test_one_signature_serves_all_ranges_of_a_key_for_a_while() -> None:
    """Ranges of one key share a signature until it is old or something was refused; other keys are signed after it."""
    moment_s = 100.0
    signed = 0

    async with _client(WAYS["path"].s3) as client:

        def count(**_: Any) -> None:
            nonlocal signed
            signed += 1

        template = replace(await catch_template(client, "bucket", {}), now_s=lambda: moment_s)
        client.meta.events.register("before-sign.s3.GetObject", count)
        first = await template.sign("a", HEADERS)
        other = await template.sign("a", {**HEADERS, "Range": "bytes=0-4"})
        assert other == first.replace(b"bytes=5-9", b"bytes=0-4") != first
        assert signed == 1
        moment_s += 9
        assert await template.sign("a", HEADERS) == first
        assert signed == 1
        assert _parsed(await template.sign("b", HEADERS))[1]["authorization"] not in first.decode()
        assert signed == 1
        moment_s += 2  # no signature is older than it says, whoever made it
        assert await template.sign("b", HEADERS) == await template.sign("b", HEADERS)
        await template.sign("a", HEADERS)
        assert signed == 2
        template.refused()
        await template.sign("a", HEADERS)
        assert signed == 3
        await asyncio.gather(*(template.sign(str(number), HEADERS) for number in range(20)))
        assert signed == 3


async def test_what_is_not_reproduced_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our arithmetic does not give the client's signature, every key is signed by the client."""
    signed = 0

    async with _client(WAYS["path"].s3) as client:

        def count(**_: Any) -> None:
            nonlocal signed
            signed += 1

        monkeypatch.setattr("feedd.fetch.s3.sign._secret", _another_secret)
        template = await catch_template(client, "bucket", {})
        client.meta.events.register("before-sign.s3.GetObject", count)
        for number, key in enumerate(KEYS):
            await template.sign(key, HEADERS)
            assert signed == number + 1


async def _another_secret(*_: object) -> str:
    return "credentials that were renewed meanwhile"


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_a_pattern_signs_as_botocore_does(key: str) -> None:
    """For any key, session token and header with spaces: the signature of botocore's signer in Python."""
    headers = {"X-Amz-Request-Payer": "requester", "x-amz-meta": " a   b "}
    credentials = Credentials("AKID", "secret/+", "token")
    signed = []
    for path in ("/bucket/first", "/bucket/" + percent_encode(key, safe="/~")):
        request = AWSRequest("GET", "https://example.com:9000" + path, dict(headers))
        S3SigV4Auth(credentials, "s3", "eu-north-1").add_auth(request)
        signed.append({name.lower(): _text(value) for name, value in request.headers.items()})
    pattern = Pattern.of("/bucket/first", signed[0], "example.com:9000", "secret/+")
    assert pattern is not None
    assert signed[1]["authorization"] == pattern.authorization + pattern.signature(path)
    assert "secret" not in repr(pattern)
    assert Pattern.of("/bucket/second", signed[0], "example.com:9000", "secret/+") is None
    assert Pattern.of("/bucket/first", signed[0], "example.com", "secret/+") is None
    assert Pattern.of("/bucket/first", signed[0], "example.com:9000", "secret") is None


async def test_catching_leaves_the_client_usable() -> None:
    """After a template was caught the client's own requests go out as before."""
    async with _client(WAYS["path"].s3) as client:
        await catch_template(client, "bucket", {})
        assert (await _theirs(client, WAYS["path"], "k")).url.endswith("/bucket/k")


async def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials no client is opened, so no request is sent unsigned."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(NoCredentialsError):
        async with _client(WAYS["path"].s3):
            pass


async def test_other_signatures_are_an_obstacle() -> None:
    """Versions of the signature that we cannot vouch for are left to the SDK."""
    async with _client(AWS) as client:
        client.meta.events.register_first("choose-signer.s3", lambda **_: "s3")
        template = await catch_template(client, "bucket", {})
        assert template.obstacle == "requests are signed by s3"
