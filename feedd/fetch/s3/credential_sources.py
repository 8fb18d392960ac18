"""What the SDK's providers of credentials do, within bounds: each request, command and token file is noted.

The SDK follows redirects with tokens, reads answers and outputs of any length, leaves a command running whose caller
gave up, and asks for MFA codes at a terminal. A daemon does none of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.credentials import (
    AioAssumeRoleProvider,
    AioAssumeRoleWithWebIdentityProvider,
    AioContainerProvider,
    AioInstanceMetadataProvider,
    AioProcessProvider,
)
from aiobotocore.session import AioSession
from aiobotocore.utils import _RefCountedSessionMixin
from botocore.configprovider import ConstantProvider
from botocore.utils import get_environ_proxies, parse_timestamp

from feedd.fetch.s3.sdk_transports import ClosingSession
from feedd.fetch.s3.who_answered import FIRST_BYTES
from feedd.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


current_trail: ContextVar[Trail | None] = ContextVar("credential_trail", default=None)


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
