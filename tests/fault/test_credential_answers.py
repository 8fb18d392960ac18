"""Who answers where credentials are asked for, and what a source of credentials may do wrong."""

from __future__ import annotations

import asyncio
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
from feedd.fetch.s3 import credentials as s3_credentials
from feedd.fetch.s3.credentials import find_credentials
from feedd.fetch.s3.session import ANSWER_BYTES_MAX
from feedd.fetch.s3.store import S3Store
from feedd.flow.open_progress import begin_open, enter_stage
from feedd.metrics import SOURCE_RETRIES
from tests.fakes.s3.server import S3Server
from tests.fakes.sinks import into
from tests.fakes.tally import TallyRecorder
from tests.fakes.web_service import WebService

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


@pytest.fixture
def store() -> Iterator[S3Server]:
    """A store that must not be asked before there are credentials."""
    with S3Server() as server:
        server.put("bucket", "one", b"1")
        yield server


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is known for silence after a short time."""
    monkeypatch.setattr(s3_credentials, "_READ_S", 0.3)
    monkeypatch.setattr(s3_credentials, "_PAUSES_S", (0.05, 0.05, 0.05, 0.05))
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
    reply, words = CELLS[cell]
    service = WebService(reply)
    async with service.running() as url:
        if source == "STS":
            use_web_identity(monkeypatch, tmp_path, url)
        else:
            use_metadata(monkeypatch, url)
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

    service = WebService(frame(role_credentials(), "text/xml") if source == "STS" else metadata)
    async with service.running() as url:
        if source == "STS":
            use_web_identity(monkeypatch, tmp_path, url)
        else:
            use_metadata(monkeypatch, url)
        assert await listed(store) == 1


async def test_an_endless_answer_is_cut(store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An answer that is longer than any credentials is not kept in memory."""
    body = b"x" * (ANSWER_BYTES_MAX + 1)
    async with WebService(answer(200, body, "text/xml")).running() as url:
        use_web_identity(monkeypatch, tmp_path, url)
        error = await refused(store)
        assert isinstance(error, PermissionDenied)
        assert "expected an answer of at most" in error.message


async def test_a_failing_service_is_asked_again(
    store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A service that fails at first costs time only."""
    reply = [answer(503, b"<ErrorResponse/>")] * 3
    service = WebService(lambda _verb, _path: reply.pop() if reply else answer(200, role_credentials(), "text/xml"))
    async with service.running() as url:
        use_web_identity(monkeypatch, tmp_path, url)
        assert await listed(store) == 1


@pytest.mark.parametrize(
    ("reply", "reason", "hint"),
    [
        ((answer(200, b"role"), answer(404, PAGE, "text/html")), "has no role", "attach a role"),
        ((None, answer(401, PAGE, "text/html")), "did not answer the request for a token", "HttpPutResponseHopLimit"),
        ((answer(403, b""), answer(401, PAGE, "text/html")), "refused the request", "HttpPutResponseHopLimit"),
    ],
    ids=["no role", "a hop too many", "token refused"],
)
async def test_the_metadata_service_says_what_is_wrong(
    store: S3Server, reply: tuple[bytes | None, bytes], reason: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each usual fault of the metadata service has its own words, with what to do."""
    async with WebService(lambda verb, _path: reply[verb == "GET"]).running() as url:
        use_metadata(monkeypatch, url)
        error = await refused(store)
        assert reason in error.message
        assert hint in error.hint


async def test_no_metadata_service_is_no_fault(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of the cloud, where the metadata service's address leads nowhere, the error says how to give keys."""
    use_metadata(monkeypatch, "http://127.0.0.1:1")
    with pytest.raises(PermissionDenied, match="no usable credentials") as caught:
        await listed(store)
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


PROCESSES: Final = {
    "fails": ("echo please log in >&2; exit 3", "status 3 and said: please log in"),
    "says no text": (r"printf '\\377\\376' >&2; exit 3", "status 3"),
    "prints text": (f"echo {SECRET}", "no JSON"),
    "prints nothing": ("true", "printed nothing"),
    "prints a list": (f"echo '[\"{SECRET}\"]'", 'without "Version": 1'),
    "prints another version": (f'echo \'{{"Version": "{SECRET}"}}\'', 'without "Version": 1'),
    "prints half a key": (f'echo \'{{"Version": 1, "AccessKeyId": "{SECRET}"}}\'', "no SecretAccessKey"),
    "prints a bad date": (
        f'echo \'{{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "{SECRET}"}}\'',
        "Expiration that is no date",
    ),
    "never stops printing": ("yes", "more than"),
    "hangs": ("sleep 60", "did not end in time"),
    "waits for a terminal": ("read line < /dev/tty; exit 4", "status"),
}


@pytest.mark.parametrize("case", PROCESSES)
async def test_a_credential_process_that_gives_nothing(
    store: S3Server, case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A command that gives no credentials is named with its words, never with its arguments or its output, and ends."""
    script, words = PROCESSES[case]
    command = tmp_path / "login-tool"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    use_config(monkeypatch, tmp_path, f"[default]\ncredential_process = {command} --password {SECRET}\n")
    if case == "hangs":
        monkeypatch.setattr(s3_credentials, "CREDENTIALS_DEADLINE_S", 1.0)
    with capture_logs() as logs:
        error = await refused(store)
    assert isinstance(error, PermissionDenied)
    assert "credential_process" in error.message
    assert words in error.message
    assert SECRET not in f"{logs} {caplog.text}"


async def test_a_command_that_does_not_exist(store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command that cannot be started is named."""
    use_config(monkeypatch, tmp_path, "[default]\ncredential_process = /nonexistent/aws-vault exec\n")
    assert "/nonexistent/aws-vault cannot be started" in (await refused(store)).message


PROFILES: Final = {
    "missing": ("", {"AWS_PROFILE": "train"}, "train", "AWS_PROFILE"),
    "no INI": ("[default\nnot a line\n", {}, "Unable to parse", "configuration files"),
    "MFA": (
        (
            f"[default]\nrole_arn = {ROLE}\nsource_profile = keys\nmfa_serial = arn:aws:iam::1:mfa/me\n"
            f"[profile keys]\naws_access_key_id = a\naws_secret_access_key = {SECRET}\n"
        ),
        {},
        "MFA code",
        "get-session-token",
    ),
    "source profile's command": (
        (
            f"[default]\nrole_arn = {ROLE}\nsource_profile = keys\n"
            '[profile keys]\ncredential_process = /bin/sh -c "echo locked >&2; exit 1"\n'
        ),
        {},
        "/bin/sh ended with status 1 and said: locked",
        "role",
    ),
    "source without credentials": (
        f"[default]\nrole_arn = {ROLE}\ncredential_source = Ec2InstanceMetadata\n",
        {},
        "credential_source",
        "role",
    ),
    "source profile that is missing": (
        f"[default]\nrole_arn = {ROLE}\nsource_profile = keys\n",
        {},
        "keys",
        "role",
    ),
    "half a key": ("[default]\naws_access_key_id = a\n", {}, "Partial credentials", "AWS"),
    "not logged in": (
        (
            "[profile dev]\nsso_start_url = https://x.awsapps.example/start\nsso_region = us-east-1\n"
            "sso_account_id = 123456789012\nsso_role_name = r\n"
        ),
        {"AWS_PROFILE": "dev"},
        "AWS SSO",
        "aws sso login --profile dev",
    ),
    "not logged in to a session": (
        (
            "[profile dev]\nsso_session = s\nsso_account_id = 123456789012\nsso_role_name = r\n"
            "[sso-session s]\nsso_start_url = https://x.awsapps.example/start\nsso_region = us-east-1\n"
        ),
        {"AWS_PROFILE": "dev"},
        "AWS SSO",
        "aws sso login --profile dev",
    ),
}


@pytest.mark.parametrize("case", PROFILES)
async def test_a_profile_that_cannot_be_used(
    store: S3Server, case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error for a faulty profile has its reason and what to do, and nothing prompts."""
    text, environment, reason, hint = PROFILES[case]
    use_config(monkeypatch, tmp_path, text)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    error = await refused(store)
    assert isinstance(error, PermissionDenied)
    assert reason in error.message
    assert hint in error.hint


async def test_a_login_that_ended(store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error for an expired SSO token has the command that renews it."""
    start = "https://x.awsapps.example/start"
    use_config(
        monkeypatch,
        tmp_path,
        f"[profile dev]\nsso_start_url = {start}\nsso_region = us-east-1\nsso_account_id = 1\nsso_role_name = r\n",
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "dev")
    cache = tmp_path / ".aws/sso/cache"
    cache.mkdir(parents=True)
    name = hashlib.sha1(start.encode(), usedforsecurity=False).hexdigest()
    held = {"startUrl": start, "region": "us-east-1", "accessToken": SECRET, "expiresAt": ends(-3600)}
    (cache / f"{name}.json").write_text(json.dumps(held))
    error = await refused(store)
    assert "AWS SSO" in error.message
    assert "aws sso login --profile dev" in error.hint


async def test_an_unreadable_file_is_named(store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A configuration file that exists but cannot be read is named; the SDK takes it for an empty one."""
    file = use_config(monkeypatch, tmp_path, "[default]\naws_access_key_id = a\n")
    file.chmod(0)
    if os.geteuid() == 0:  # root reads every file; any other user would be refused, and the SDK would find no text
        file.write_text("")
        monkeypatch.setattr(os, "access", lambda path, _mode: str(path) != str(file))
    assert f"{file} cannot be read" in (await refused(store)).message


async def test_an_empty_profile_variable_counts_as_unset(
    store: S3Server, aws_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS_PROFILE without a value, as templates of jobs leave it, changes nothing."""
    monkeypatch.setenv("AWS_PROFILE", "")
    assert await listed(store) == 1


async def test_a_token_file_that_is_rewritten(store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A token file that is empty for a moment is read again; one that stays empty is named."""
    async with WebService(answer(200, role_credentials(), "text/xml")).running() as url:
        file = use_web_identity(monkeypatch, tmp_path, url, token="")
        error = await refused(store)
        assert f"{file} is empty" in error.message
        reads: list[str] = []
        original = s3_credentials.TokenFile.__call__

        def read(self: s3_credentials.TokenFile) -> str:
            reads.append("")
            if len(reads) == 3:
                file.write_text("token")
            return original(self)

        monkeypatch.setattr(s3_credentials.TokenFile, "__call__", read)
        assert await listed(store) == 1
        assert len(reads) >= 3


async def test_a_token_that_sts_refuses_once(store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A web identity token that expired in the file is asked with again, because the kubelet renews the file."""
    expired = b"<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>old</Message></Error></ErrorResponse>"
    reply = [answer(200, role_credentials(), "text/xml"), answer(400, expired, "text/xml")]
    async with WebService(lambda _verb, _path: reply.pop() if len(reply) > 1 else reply[0]).running() as url:
        use_web_identity(monkeypatch, tmp_path, url)
        assert await listed(store) == 1
    async with WebService(answer(400, expired, "text/xml")).running() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        store.requests.clear()
        error = await refused(store)
        assert "ExpiredTokenException" in error.message
        assert "AWS_WEB_IDENTITY_TOKEN_FILE" in error.hint


@pytest.mark.parametrize("content", [None, "", "token"])
async def test_the_token_file_of_a_container(
    store: S3Server, content: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The container credential service gets the token of its file; a missing or empty file is named."""
    file = tmp_path / "pod-token"
    if content is not None:
        file.write_text(content)
    service = WebService(answer(200, key_credentials(), "application/json"))
    async with service.running() as url:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/v1/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(file))
        if content:
            assert await listed(store) == 1
            assert "Authorization: token" in service.requests[0][2]
        else:
            error = await refused(store)
            assert "container credential service" in error.message
            assert str(file) in error.message
            assert service.requests == []


async def test_clocks_that_differ(store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials that have already expired, and signatures that STS finds too old, point to the clock."""
    async with WebService(answer(200, role_credentials(-3600), "text/xml")).running() as url:
        use_web_identity(monkeypatch, tmp_path, url)
        error = await refused(store)
        assert "expired" in error.message
        assert "clock" in error.hint
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    said = (
        b"<ErrorResponse><Error><Code>SignatureDoesNotMatch</Code><Message>Signature expired: 1 is now earlier than 2"
        b"</Message></Error></ErrorResponse>"
    )
    async with WebService(answer(403, said, "text/xml")).running() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        error = await refused(store, role_arn=ROLE)
        assert "Signature expired" in error.message
        assert "clock" in error.hint


async def test_a_role_without_any_region(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """STS is asked in the bucket's region where the environment names none; without any, the error says so."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    service = WebService(answer(200, role_credentials(action="AssumeRole"), "text/xml"))
    async with service.running() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        assert await listed(store, role_arn=ROLE, region="eu-west-1") == 1
        assert "/eu-west-1/sts/aws4_request" in service.requests[0][2]
        store.requests.clear()
        error = await refused(store, role_arn=ROLE)
        assert "region" in error.hint
        monkeypatch.setenv("AWS_REGION", "us-west-2")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
        service.requests.clear()
        assert await listed(store, role_arn=ROLE, region="eu-west-1") == 1
        assert "/us-west-2/sts/aws4_request" in service.requests[0][2]


async def test_a_role_that_may_not_be_assumed(store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A refusal of STS keeps its reason."""
    said = (
        b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>not authorized: sts</Message></Error></ErrorResponse>"
    )
    async with WebService(answer(403, said, "text/xml")).running() as url:
        use_web_identity(monkeypatch, tmp_path, url)
        error = await refused(store)
        assert "not authorized: sts" in error.message
        assert "trust policy" in error.hint


@pytest.mark.parametrize("reply", [None, answer(200, PAGE, "text/html"), answer(503, b"")])
async def test_a_refresh_that_fails_speaks_the_same_words(
    store: S3Server, reply: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers whose credentials ended all get the source's error, after one wait for all of them."""
    service = WebService(lambda _verb, _path: answer(200, key_credentials(life_s=3), "application/json"))
    async with service.running() as url:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/v1/credentials")
        s3 = {"*": S3Options(endpoint_url=store.url)}
        options = SourceOptions(s3=s3, attempts_max=1, connect_timeout_s=1, read_timeout_s=2)
        async with Sources(options, TallyRecorder(), SystemClock()) as sources:
            bucket = sources.store("s3://bucket")
            assert (await bucket.head("one")).size_bytes == 1
            service.reply = reply
            await asyncio.sleep(3.1)  # now they have expired
            service.requests.clear()
            found = await asyncio.gather(*(bucket.head("one") for _ in range(8)), return_exceptions=True)
            assert {type(error) for error in found} <= {StoreUnavailable, PermissionDenied}
            assert all("container credential service" in str(error) for error in found)
            assert len(service.requests) <= 4
            service.reply = answer(200, key_credentials(), "application/json")
            await asyncio.sleep(s3_credentials.FAILURE_SHARED_S)
            assert (await bucket.head("one")).size_bytes == 1


def test_the_check_says_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What ``feedd check`` says about credentials is what an open says."""
    use_config(monkeypatch, tmp_path, '[default]\ncredential_process = /bin/sh -c "echo locked >&2; exit 1"\n')
    with pytest.raises(PermissionDenied, match=r"credential_process failed: the command /bin/sh .* said: locked"):
        find_credentials(S3Options())


async def test_an_open_that_ends_during_the_search_names_the_source(
    store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An Open with less time than the search has says which source it waits for, and does not suspect the store."""
    use_config(monkeypatch, tmp_path, "[default]\ncredential_process = /bin/sleep 60\n")
    progress = begin_open()
    enter_stage("listing s3://bucket/")
    waiting = asyncio.create_task(listed(store))
    async with asyncio.timeout(20):
        while "credential_process" not in progress.stage:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)
    assert progress.stage == "getting credentials from credential_process for listing s3://bucket/"
    assert "store" not in progress.suspect
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert progress.stage == "listing s3://bucket/"
    assert "store" in progress.suspect


@pytest.mark.parametrize("status", [403, 404, 405])
async def test_a_metadata_service_without_tokens_is_asked_without(
    store: S3Server, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service of the first version refuses the request for a token with a page, and gives credentials without."""

    def reply(verb: str, path: str) -> bytes:
        if verb == "PUT":
            return answer(status, PAGE, "text/html")
        return answer(200, b"role" if path.endswith("/") else key_credentials())

    async with WebService(reply).running() as url:
        use_metadata(monkeypatch, url)
        assert await listed(store) == 1


async def test_a_proxy_before_the_metadata_service_is_named(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a proxy gets the requests to the metadata service, the hint says how to keep them from the proxy."""
    service = WebService(answer(403, PAGE, "text/html"))
    async with service.running() as url:
        use_metadata(monkeypatch, "http://169.254.169.254")
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        error = await refused(store)
        assert 'web page "Sign in"' in error.message
        assert "169.254.169.254 to NO_PROXY" in error.hint
        assert service.requests


async def test_readers_share_one_failed_search(
    store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Readers that wait for the same client get the same error after one search, not after one each."""
    command, count = tmp_path / "login-tool", tmp_path / "count"
    command.write_text(f"#!/bin/sh\necho x >> {count}\nexit 1\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    use_config(monkeypatch, tmp_path, f"[default]\ncredential_process = {command}\n")
    monkeypatch.setattr("feedd.fetch.s3.client.FAILURE_SHARED_S", 3600.0)
    bucket = S3Store("bucket", SourceOptions(s3={"*": S3Options(endpoint_url=store.url)}))
    found = await asyncio.gather(*(bucket.head("one") for _ in range(8)), return_exceptions=True)
    await bucket.close()
    assert {type(error) for error in found} == {PermissionDenied}
    assert count.read_text().split() == ["x"]
