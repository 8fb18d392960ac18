"""Finds credentials, as a stage of its own before the first request, and keeps the old ones while a source is down.

An error of this stage has its own words: which provider was asked, where, who answered, what to do. The store, which
was not asked, is not blamed.

What the SDK's providers do is bounded: each request, command and token file is noted. The SDK follows redirects with
tokens, reads answers and outputs of any length, leaves a command running whose caller gave up, and asks for MFA codes
at a terminal. A daemon does none of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import json
import os
import signal
import subprocess
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from urllib.parse import urlsplit

import structlog
from aiobotocore.config import AioConfig
from aiobotocore.credentials import (
    AioAssumeRoleCredentialFetcher,
    AioAssumeRoleProvider,
    AioAssumeRoleWithWebIdentityProvider,
    AioContainerProvider,
    AioDeferredRefreshableCredentials,
    AioInstanceMetadataProvider,
    AioProcessProvider,
    AioRefreshableCredentials,
)
from aiobotocore.session import AioSession
from aiobotocore.utils import _RefCountedSessionMixin
from botocore import exceptions as boto
from botocore.configprovider import ConstantProvider
from botocore.utils import get_environ_proxies, parse_timestamp

from feedd.errors import BadResponse, FeeddError, PermissionDenied, StoreUnavailable
from feedd.fetch.proxy_rules import proxy_of
from feedd.fetch.s3.errors import CERTIFICATE_HINT, FIRST_BYTES, PROXY_HINT, Sender, tls_failure, who_answered
from feedd.fetch.s3.session import ClosingSession
from feedd.flow.open_progress import stage_within
from feedd.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    from feedd.fetch.fetch_options import S3Options

OUTPUT_BYTES_MAX: Final = MIB
_STDERR_SHOWN: Final = 300
_TOKEN_BYTES_MAX: Final = 64 * KIB
_KILLED_S: Final = 2.0
_CONNECT_S: Final = 4.0
_READ_S: Final = 5.0
_TOKEN_FILE: Final = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"  # noqa: S105 - a variable's name
_PROFILES: Final = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
_MFA_HINT: Final = (
    "a daemon cannot enter the code: use a profile without mfa_serial, or get a session with "
    "aws sts get-session-token and give the daemon its keys"
)
current_trail: ContextVar[Trail | None] = ContextVar("credential_trail", default=None)
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)
CREDENTIALS_DEADLINE_S: Final = 20.0
"""Longest search for credentials; shorter than the time that an open and a request have."""
# In this time before expiry every request waits for new credentials; earlier, one request refreshes them.
_MANDATORY_S = 30
_ASK_AGAIN_S = 30.0
FAILURE_SHARED_S: Final = 1.0
"""How long a failure counts for requests that waited for it. Otherwise each would wait for a failure of its own."""
_PAUSES_S: Final = (0.2, 0.5, 1.0, 1.5)  # between tries of what may pass, such as a token file that is being written
_ROLE_SESSION_NAME: Final = "feedd"
_SAID_CHARS: Final = 300
_NAMES: Final = {
    "": "the AWS configuration",
    "env": "the environment",
    "shared-credentials-file": "the AWS credentials file",
    "config-file": "the AWS configuration file",
    "assume-role": "a role (STS)",
    "assume-role-with-web-identity": "web identity (STS)",
    "sso": "AWS SSO",
    "login": "aws login",
    "custom-process": "credential_process",
    "container-role": "the container credential service",
    "iam-role": "the instance metadata service",
}
_HINTS: Final = {
    "": "check AWS_PROFILE or profile, and the AWS configuration files, as the daemon's user sees them",
    "assume-role": "check the role's ARN and trust policy, and that these credentials may call sts:AssumeRole",
    "assume-role-with-web-identity": "check AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE and the role's trust policy",
    "sso": "log in as the daemon's user: aws sso login --profile {profile}",
    "login": "log in as the daemon's user: aws login --profile {profile}",
    "custom-process": "run the command as the daemon's user, without a terminal and within {deadline_s:.0f} s",
    "container-role": "check the agent of this node, AWS_CONTAINER_CREDENTIALS_FULL_URI and "
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "iam-role": "check AWS_EC2_METADATA_SERVICE_ENDPOINT; or give keys, a profile or a role",
}
_HOP_HINT: Final = (
    "in a container, its answer may have one hop too many: raise HttpPutResponseHopLimit to 2 "
    "(aws ec2 modify-instance-metadata-options); or give keys, a profile or a role"
)
_ROLE_HINT: Final = "attach a role to the instance; or give keys, a profile or a role"
_REGION_HINT: Final = "STS needs a region: set AWS_REGION, or region in the bucket's table of feedd.toml"
_REACH_HINT: Final = (
    "let this machine reach it: by a route, a VPC endpoint, a proxy (HTTPS_PROXY), or another address "
    "(region, AWS_ENDPOINT_URL_STS)"
)
_NO_PROXY_HINT: Final = "let the proxy pass requests to {host}, or add {host} to NO_PROXY"
_TRUST_HINT: Final = "AWS_CA_BUNDLE, or ca_bundle in the bucket's table of feedd.toml,"
_CLOCK_HINT: Final = "set this machine's clock"
_ROTATED: Final = frozenset({"InvalidIdentityToken", "ExpiredTokenException", "IDPCommunicationError"})
_SKEWED: Final = frozenset({"RequestExpired", "RequestTimeTooSkewed"})
_BUSY: Final = frozenset({"Throttling", "ThrottlingException", "RequestLimitExceeded", "IDPCommunicationError"})
_NO_LOGIN: Final = (
    boto.UnauthorizedSSOTokenError,
    boto.SSOTokenLoadError,
    boto.TokenRetrievalError,
    boto.NoAuthTokenError,
)
_QUOTED: Final = (boto.BotoCoreError, boto.ClientError, OSError)
"""Errors whose text holds no secret. Parsers quote what they read, which may be credentials."""
_UNREACHED: Final = (boto.ConnectTimeoutError, boto.EndpointConnectionError)


class SourceFault(Exception):
    """A source of credentials gave none.

    Attributes:
        hint: what the user can do about it; empty: the provider's hint tells it.
        passing: the cause may pass within seconds, such as a token file that is being written.
    """

    def __init__(self, message: str, *, hint: str = "", passing: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.passing = passing


@dataclass(slots=True)
class Step:
    """One request or command of a provider.

    Attributes:
        name: origin of the URL, or the command's name.
        verb: method of the request; empty: a command.
        status: status of the answer; 0: there is none.
        headers: headers of the answer, names in lower case.
        first_bytes: beginning of the answer's body.
        error: what broke the step; None: nothing did, or it has not ended.
    """

    name: str
    verb: str = ""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    first_bytes: bytes = b""
    error: BaseException | None = None


@dataclass(slots=True)
class Trail:
    """How far a search for credentials got.

    Attributes:
        method: botocore's name of the provider that is asked; empty: none yet.
        steps: what the providers did, in order.
        enter: names the step for the user who waits.
    """

    method: str = ""
    steps: list[Step] = field(default_factory=list)
    enter: Callable[[str], None] = lambda _: None


def _noted(step: Step) -> Step:
    trail = current_trail.get()
    if trail is not None:
        trail.steps.append(step)
    return step


def begin_session(s3: S3Options) -> AioSession:
    """Return a session of the SDK with a bucket's profile, region and authorities. All its clients have these.

    The region of the environment or profile comes first for STS, because only the bucket may be in another region.

    Raises:
        ProfileNotFound: as botocore raises it.
    """
    session = AioSession(profile=s3.profile or None)
    if not s3.profile and any(os.environ.get(name) == "" for name in _PROFILES):
        named = next(filter(None, map(os.environ.get, _PROFILES)), None)
        session.get_component("config_store").set_config_provider("profile", ConstantProvider(named))
    if s3.ca_bundle:
        session.set_config_variable("ca_bundle", s3.ca_bundle)
    shown = (s3.client_certificate, s3.client_key) if s3.client_key else s3.client_certificate
    session.set_default_client_config(
        AioConfig(
            client_cert=shown,
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"total_max_attempts": 2, "mode": "standard"},
            http_session_cls=_Session,
        )
    )
    return session


def providers_of(session: AioSession) -> Sequence[Any]:
    """Return the providers of a session's chain, in order and within bounds."""
    found: Sequence[Any] = session.get_component("credential_provider").providers
    for provider in found:
        _bound(provider)
    return found


def _bound(provider: Any) -> None:  # noqa: ANN401 - aiobotocore has no types
    # botocore offers no way to hook in: the private attributes are those that its own tests replace
    if isinstance(provider, AioProcessProvider):
        provider._popen = _run  # noqa: SLF001 - see above
    elif isinstance(provider, AioAssumeRoleWithWebIdentityProvider):
        provider._token_loader_cls = TokenFile  # noqa: SLF001 - see above
    elif isinstance(provider, AioContainerProvider):
        fetcher, headers = provider._fetcher, provider._build_headers  # noqa: SLF001 - see above
        fetcher._session = _CountedSession(timeout=fetcher.TIMEOUT_SECONDS)  # noqa: SLF001 - see above

        def checked() -> Any:  # noqa: ANN401 - handed through
            if path := os.environ.get(_TOKEN_FILE):
                TokenFile(path)()
            return headers()

        provider._build_headers = checked  # noqa: SLF001 - see above
    elif isinstance(provider, AioInstanceMetadataProvider):
        fetcher = provider._role_fetcher  # noqa: SLF001 - see above
        proxies = get_environ_proxies(fetcher._base_url)  # noqa: SLF001 - see above
        fetcher._session = _CountedSession(timeout=fetcher._timeout, proxies=proxies)  # noqa: SLF001 - see above
    elif isinstance(provider, AioAssumeRoleProvider):
        provider._prompter = _refuse_prompt  # noqa: SLF001 - see above
        builder = provider._profile_provider_builder  # noqa: SLF001 - see above
        build = builder.providers

        def bounded(*args: Any, **kwargs: Any) -> Sequence[Any]:  # noqa: ANN401 - handed through
            found: Sequence[Any] = build(*args, **kwargs)
            for one in found:
                _bound(one)
            return found

        builder.providers = bounded  # the providers of a source_profile


def _refuse_prompt(_prompt: str) -> NoReturn:
    raise SourceFault("the profile asks for an MFA code (mfa_serial)", hint=_MFA_HINT)


class TokenFile:
    """A file with a token that something else renews, such as the kubelet; botocore's interface of a token loader."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self) -> str:
        """Return the token.

        Raises:
            SourceFault: the file is missing, unreadable, empty or too long.
        """
        name = f"the token file {self._path}"
        try:
            with Path(self._path).open("rb") as file:
                data = file.read(_TOKEN_BYTES_MAX + 1)
        except OSError as error:
            said = error.strerror or type(error).__name__
            raise SourceFault(f"{name} cannot be read: {said.lower()}", passing=True) from error
        if not data.strip():
            raise SourceFault(f"{name} is empty", passing=True)
        if len(data) > _TOKEN_BYTES_MAX:
            raise SourceFault(f"{name} has more than {_TOKEN_BYTES_MAX} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise SourceFault(f"{name} holds no text") from None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A command that ended; the part of asyncio's interface of a process that the SDK uses."""

    returncode: int
    stdout: bytes
    stderr: bytes

    async def communicate(self) -> tuple[bytes, bytes]:
        """Return what it printed."""
        return self.stdout, self.stderr


async def _run(*argv: str, **_: object) -> _Ended:
    """Run a ``credential_process`` without a terminal, and end it if its caller gives up or it prints too much.

    Errors never quote its output, which holds the credentials, nor its arguments.

    Raises:
        SourceFault: it cannot be started, or printed no credentials.
    """
    name = f"the command {argv[0]}"
    step = _noted(Step(name))
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=null, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise SourceFault(f"{name} cannot be started: {type(error).__name__}: {error}") from error
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        out, said = await asyncio.gather(_head(process.stdout, process), _head(process.stderr, process))
        await process.wait()
    except asyncio.CancelledError as error:
        step.error = error
        raise
    finally:
        _kill(process)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_S):
                await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - else pipes that are not read to their end stay open
        await asyncio.sleep(0)  # the loop closes the pipes' descriptors in its next step
    if max(len(out), len(said)) > OUTPUT_BYTES_MAX:
        raise SourceFault(f"{name} printed more than {OUTPUT_BYTES_MAX} bytes")
    code = process.returncode if process.returncode is not None else -1
    if code:
        words = " ".join(said.decode("utf-8", "replace").split())[-_STDERR_SHOWN:]
        raise SourceFault(f"{name} ended with status {code}" + (f" and said: {words}" if words else ""))
    _check_output(name, out)
    return _Ended(code, out, said)


async def _head(stream: asyncio.StreamReader, process: asyncio.subprocess.Process) -> bytes:
    """Return what a command printed; it is ended after one byte too many."""
    data = bytearray()
    while piece := await stream.read(64 * KIB):
        data += piece
        if len(data) > OUTPUT_BYTES_MAX:
            _kill(process)
            break
    return bytes(data)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _check_output(name: str, out: bytes) -> None:
    try:
        found = json.loads(out)
    except ValueError:
        what = "nothing" if not out.strip() else f"{len(out)} bytes that are no JSON"
        raise SourceFault(f"{name} printed {what}") from None  # its cause would hold the output
    if not isinstance(found, dict) or found.get("Version") != 1:
        raise SourceFault(f'{name} printed JSON without "Version": 1')
    for key in ("AccessKeyId", "SecretAccessKey"):
        if not isinstance(found.get(key), str) or not found[key]:
            raise SourceFault(f"{name} printed no {key}")
    if found.get("Expiration"):
        try:
            parse_timestamp(found["Expiration"])
        except (ValueError, TypeError, OverflowError):
            raise SourceFault(f"{name} printed an Expiration that is no date") from None


class _Session(ClosingSession):
    """The session for STS, SSO and metadata services. It notes each answer; who sent it is judged afterwards."""

    async def send(self, request: Any) -> Any:  # noqa: ANN401 - aiobotocore has no types
        """Send a request of the SDK."""
        parts = urlsplit(request.url)
        step = _noted(Step(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", str(request.method)))
        try:
            answer = await super().send(request)
            body = await answer.content
        except BaseException as error:
            step.error = error
            raise
        step.status, step.headers, step.first_bytes = answer.status_code, dict(answer.headers), body[:FIRST_BYTES]
        return answer

    def _judge(self, method: str, answer: Any) -> None:  # noqa: ANN401 - see send
        """Let the SDK read any refusal: a metadata service refuses with a web page, and the SDK asks it otherwise."""


class _CountedSession(_RefCountedSessionMixin, _Session):  # type: ignore[misc]  # aiobotocore has no types
    """The same for metadata services, whose fetchers open and close their session."""


async def get_credentials(session: AioSession, s3: S3Options, refresh_s: float, *, renewed: bool = False) -> str:
    """Find a bucket's credentials, for all clients of ``session``, and return the name of their source.

    Args:
        session: from ``begin_session``.
        s3: access options of the bucket.
        refresh_s: longest wait for other credentials when these end.
        renewed: there were credentials before, so a source that is silent for a while is tried again.

    Raises:
        NoCredentialsError: no source is configured.
        PermissionDenied: a source gave none.
        StoreUnavailable: the same, but another try may help.
    """
    with stage_within("this source of credentials") as enter:
        trail = Trail(enter=enter)
        try:
            credentials, method = await _search(
                lambda: _find(session, s3, trail, refresh_s), trail, CREDENTIALS_DEADLINE_S
            )
        except boto.NoCredentialsError as error:
            raise _unfound(session, trail, error) from error
        except Exception as error:
            raise _failure(error, trail, session, keeps_on=renewed) from error
    session._credentials = credentials  # noqa: SLF001 - botocore takes a role from configuration files only
    return method


async def _find(session: AioSession, s3: S3Options, trail: Trail, refresh_s: float) -> tuple[Any, str]:
    if s3.region and not session.get_config_variable("region"):
        session.set_config_variable("region", s3.region)  # for STS
    for provider in providers_of(session):
        _ask_next(trail, provider.METHOD)
        found = await provider.load()
        if found is not None:
            break
    else:
        raise boto.NoCredentialsError
    method = str(found.method)
    keep_until_expiry(found, session, refresh_s)
    if s3.role_arn:
        fetcher = AioAssumeRoleCredentialFetcher(
            session.create_client, found, s3.role_arn, extra_args={"RoleSessionName": _ROLE_SESSION_NAME}
        )
        await found.get_frozen_credentials()
        found = AioDeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
        keep_until_expiry(found, session, refresh_s)
    await found.get_frozen_credentials()
    return found, method


def _ask_next(trail: Trail, method: str) -> None:
    trail.method = method
    trail.enter(f"getting credentials from {_NAMES.get(method, method)}")


def keep_until_expiry(credentials: object, session: AioSession, deadline_s: float) -> None:
    """Use credentials until they expire while their source is down, and warn early.

    botocore begins to refresh fifteen minutes before the expiry. Unpatched, it fails every request from ten minutes
    before on, although the credentials are still valid, and asks the source for each.
    """
    if isinstance(credentials, AioRefreshableCredentials):
        credentials._refresh_using = _Patient(credentials, session, deadline_s)  # noqa: SLF001 - botocore offers no way to hook in here
        credentials._mandatory_refresh_timeout = _MANDATORY_S  # noqa: SLF001 - see above


class _Patient:
    """A source of credentials that returns the current ones if it cannot get others."""

    def __init__(self, credentials: Any, session: AioSession, deadline_s: float) -> None:  # noqa: ANN401 - aiobotocore has no types
        self._credentials = credentials
        self._session = session
        self._deadline_s = min(CREDENTIALS_DEADLINE_S, deadline_s)
        self._ask: Callable[[], Awaitable[Mapping[str, str]] | Mapping[str, str]] = credentials._refresh_using  # noqa: SLF001 - see above
        self._ask_at_s = 0.0
        self._failed: FeeddError | None = None
        self._failed_at_s = 0.0

    async def __call__(self) -> Mapping[str, str]:
        """Return new credentials, or the old ones if they are still valid.

        Raises:
            PermissionDenied, StoreUnavailable: there are neither.
        """
        held = self._credentials
        trail = current_trail.get()
        if trail is not None:  # the first credentials: the search has its own deadline and words
            _ask_next(trail, str(held.method))
            return await self._new()
        good = held._frozen_credentials is not None and not held._is_expired()  # noqa: SLF001 - see above
        if good and time.monotonic() < self._ask_at_s:
            return self._valid()
        if not good and self._failed and time.monotonic() - self._failed_at_s < FAILURE_SHARED_S:
            raise copy.copy(self._failed)
        trail = Trail(str(held.method))
        try:
            return await _search(self._new, trail, self._deadline_s)
        except Exception as error:
            failed = _failure(error, trail, self._session, keeps_on=True)
            if not good:
                self._failed, self._failed_at_s = failed, time.monotonic()
                raise failed from error
            self._ask_at_s = time.monotonic() + _ASK_AGAIN_S
            left_s = held._seconds_remaining()  # noqa: SLF001 - see above
            _log.warning(
                "credentials cannot be refreshed",
                error=failed.message,
                hint=failed.hint,
                usable_for_s=round(left_s),
            )
            return self._valid()

    async def _new(self) -> Mapping[str, str]:
        pending = self._ask()
        found = await pending if inspect.isawaitable(pending) else pending
        if not found:
            raise boto.NoCredentialsError
        ends = found.get("expiry_time")
        if ends:
            moment: datetime = parse_timestamp(ends)
            now = self._credentials._time_fetcher()  # noqa: SLF001 - see above
            if moment <= now:
                said = f"it gave credentials that expired at {moment:%Y-%m-%dT%H:%M:%S%z}"
                raise SourceFault(f"{said}; this machine's clock is at {now:%Y-%m-%dT%H:%M:%S%z}", hint=_CLOCK_HINT)
        return found

    def _valid(self) -> dict[str, str]:
        held = self._credentials
        frozen, ends = held._frozen_credentials, held._expiry_time  # noqa: SLF001 - see above
        return {
            "access_key": frozen.access_key,
            "secret_key": frozen.secret_key,
            "token": frozen.token,
            "expiry_time": ends.isoformat(),
            "account_id": frozen.account_id,
        }


async def _search(ask: Callable[[], Awaitable[_T]], trail: Trail, deadline_s: float) -> _T:
    """Ask a source within a deadline, and some more times for a cause that may pass within seconds."""
    held = current_trail.set(trail)
    try:
        async with asyncio.timeout(deadline_s):
            for pause_s in _PAUSES_S:
                try:
                    return await ask()
                except Exception as error:
                    if not _passes(error):
                        raise
                await asyncio.sleep(pause_s)
            return await ask()
    finally:
        current_trail.reset(held)


def _passes(error: Exception) -> bool:
    return error.passing if isinstance(error, SourceFault) else _code(error) in _ROTATED


def _code(error: BaseException) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, boto.ClientError) else ""


def _failure(error: Exception, trail: Trail, session: AioSession, *, keeps_on: bool) -> FeeddError:
    """Return the error of a source that gave no credentials, in the words of its provider.

    Args:
        error: what the provider raised.
        trail: what was asked.
        session: the SDK's session.
        keeps_on: silence may pass, because the source answered before.
    """
    step = trail.steps[-1] if trail.steps else None
    reason, hint, passing = _cause(error, step)
    silent = step is not None and isinstance(step.error, (boto.ReadTimeoutError, boto.ConnectTimeoutError))
    if (silent or isinstance(error, (TimeoutError, SourceFault))) and not keeps_on:
        passing = False  # the search was long enough for what may pass
    return _refusal(trail, step, session, (reason, hint, passing))


def _refusal(trail: Trail, step: Step | None, session: AioSession, cause: tuple[str, str, bool]) -> FeeddError:
    reason, hint, passing = cause
    where = f" at {step.name}" if step is not None and step.verb else ""
    message = f"getting credentials from {_NAMES.get(trail.method, trail.method)}{where} failed: {reason}"
    hint = (hint or _HINTS.get(trail.method, _HINTS[""])).format(
        profile=_profile(session), deadline_s=CREDENTIALS_DEADLINE_S, host=_host(step)
    )
    return (StoreUnavailable if passing else PermissionDenied)(message, hint=hint, stage="credentials")


def _cause(error: Exception, step: Step | None) -> tuple[str, str, bool]:  # noqa: PLR0911 - one return per row of a table
    """Return why a source gave no credentials, a hint (empty: the provider's), and whether another try may help."""
    if isinstance(error, SourceFault):
        return str(error), error.hint, error.passing
    if step is not None and not step.verb and isinstance(error, TimeoutError):
        return f"{step.name} did not end in time", "", True
    foreign = None
    if step is not None and step.verb:
        if not step.status:
            return _unanswered(step)
        foreign = _foreign(step, error)
    if foreign is not None:
        return foreign
    if isinstance(error, TimeoutError):
        return "no answer in time", "", True
    if isinstance(error, boto.NoRegionError):
        return _line(error), _REGION_HINT, False
    if isinstance(error, _NO_LOGIN):
        return _line(error), "", False
    if isinstance(error, boto.ClientError):
        skewed = _code(error) in _SKEWED or "Signature expired" in str(error) or "not yet current" in str(error)
        busy = _code(error) in _BUSY or (step is not None and step.status >= 500)
        return _line(error), _CLOCK_HINT if skewed else "", busy
    if isinstance(error, (boto.ProfileNotFound, boto.NoCredentialsError)) and (unreadable := _unreadable()):
        return unreadable, "let the daemon's user read it", False
    if isinstance(error, _QUOTED):
        return _line(error), _HINTS[""] if isinstance(error, boto.ProfileNotFound) else "", False
    return f"its answer cannot be used ({type(error).__name__})", "", False


def _unanswered(step: Step) -> tuple[str, str, bool]:
    failure = tls_failure(step.error) if step.error is not None else None
    if failure is not None:
        return (
            failure.message,
            failure.hint.replace("{bundle}", _TRUST_HINT).replace("{certificate}", CERTIFICATE_HINT),
            False,
        )
    if isinstance(step.error, boto.ProxyConnectionError):
        return _line(step.error), PROXY_HINT, False
    if isinstance(step.error, (boto.ConnectTimeoutError, boto.EndpointConnectionError)):
        return f"cannot connect: {_line(step.error)}", _REACH_HINT, True
    if step.error is None or isinstance(step.error, (boto.ReadTimeoutError, asyncio.CancelledError)):
        return "it did not answer", _REACH_HINT, True
    if isinstance(step.error, BadResponse):
        return step.error.message, _REACH_HINT, False
    inner = step.error.kwargs.get("error") if isinstance(step.error, boto.BotoCoreError) else None
    return f"the answer broke off: {_line(inner if isinstance(inner, BaseException) else step.error)}", "", True


def _foreign(step: Step, error: Exception) -> tuple[str, str, bool] | None:
    """Return the cause if something else than the provider's service answered; None: the service itself did."""
    if 300 <= step.status < 400:
        to = step.headers.get("location", "")[:_SAID_CHARS].partition("?")[0] or "nowhere"
        hint = "credentials are not sent to another address: name the service's own address"
        return f"it redirects to {to} (status {step.status})", hint, False
    found = who_answered(step.status, step.headers, step.first_bytes)
    if found.sender in {Sender.PROXY, Sender.TLS_PORT, Sender.PAGE}:
        hint = found.hint if found.sender is not Sender.PAGE else _REACH_HINT
        if proxy_of(step.name):
            hint = _NO_PROXY_HINT
        return f"{found.name} answered", hint, step.status >= 500
    if not step.first_bytes.strip():
        return f"an empty answer (status {step.status})", _REACH_HINT, step.status >= 500
    if step.status >= 500 or step.status == 429:
        return f"it failed with status {step.status}: {_line(error)}", "", True
    return None


def _unfound(session: AioSession, trail: Trail, error: boto.NoCredentialsError) -> Exception:
    """Return the error if no provider has credentials; the metadata service is asked last, and does not say why."""
    if unreadable := _unreadable():
        hint = "let the daemon's user read it"
        return PermissionDenied(f"getting credentials failed: {unreadable}", hint=hint, stage="credentials")
    steps = [step for step in trail.steps if not isinstance(step.error, _UNREACHED)]
    if trail.method != "iam-role" or not steps:
        return error  # outside of the cloud nothing has the address of the metadata service
    last = steps[-1]
    silent = any(step.verb == "PUT" and isinstance(step.error, boto.ReadTimeoutError) for step in steps)
    foreign = _foreign(last, error) if last.error is None else None
    if silent or last.status == 401 or isinstance(last.error, boto.ReadTimeoutError):
        reason, hint, passing = "it did not answer the request for a token", _HOP_HINT, False
        if not silent and last.error is None:
            reason = f"it refused the request (status {last.status})"
    elif last.status == 404:
        reason, hint, passing = "the instance has no role (status 404)", _ROLE_HINT, False
    elif foreign is not None:
        reason, hint, passing = foreign
        hint = hint if hint == _NO_PROXY_HINT else _HINTS["iam-role"]
    elif last.error is not None:
        reason, hint, passing = _unanswered(last)
    else:
        reason, hint, passing = f"its answer holds no credentials (status {last.status})", "", False
    return _refusal(trail, last, session, (reason, hint, passing))


def _unreadable() -> str:
    """Return which of the AWS files exists but cannot be read; botocore takes such a file for an empty one."""
    for variable, usual in (
        ("AWS_CONFIG_FILE", "~/.aws/config"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ):
        path = os.path.expandvars(os.path.expanduser(os.environ.get(variable) or usual))  # noqa: PTH111 - as botocore does
        try:
            unreadable = Path(path).is_file() and not os.access(path, os.R_OK)
        except OSError:
            unreadable = True
        if unreadable:
            return f"the file {path} cannot be read by user {os.geteuid()}"
    return ""


def _profile(session: AioSession) -> str:
    try:
        return str(session.get_config_variable("profile") or "default")
    except boto.BotoCoreError:
        return "default"


def _host(step: Step | None) -> str:
    return "" if step is None else step.name.partition("://")[2].rpartition(":")[0] or step.name.partition("://")[2]


def _line(error: BaseException) -> str:
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= _SAID_CHARS else f"{line[:_SAID_CHARS]}..."


def find_credentials(s3: S3Options) -> str:
    """Return the source of the credentials, such as ``env`` or ``iam-role``. Blocks, at most for the search's deadline.

    Raises:
        PermissionDenied, StoreUnavailable: there are none, or a source cannot be used.
    """
    if s3.anonymous:
        return "none: requests are anonymous"
    try:
        return asyncio.run(get_credentials(begin_session(s3), s3, CREDENTIALS_DEADLINE_S))
    except boto.NoCredentialsError as error:
        hint = "set AWS_* variables, a profile or an instance role; or anonymous = true for public buckets"
        raise PermissionDenied("there are no credentials", hint=hint, stage="source") from error
