"""The aiobotocore client of one bucket: opened on first use, renewed when its credentials expired.

``BucketFacts`` holds what refusals teach about the bucket, for all its clients: the store's time, if this machine's
clock is wrong, and the bucket's region, if it is not the configured one.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gzip
import json
import os
import re
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import structlog
from aiobotocore.config import AioConfig
from botocore import UNSIGNED
from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, S3ExpressAuth, S3SigV4Auth
from botocore.handlers import set_operation_specific_signer
from botocore.httpsession import get_cert_path
from botocore.loaders import JSONFileLoader, Loader, create_loader
from botocore.utils import parse_timestamp

from feedd.errors import BadConfig, BadResponse, FeeddError, StoreUnavailable
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.once import Once
from feedd.fetch.s3.credentials import FAILURE_SHARED_S, begin_session, get_credentials
from feedd.fetch.s3.errors import (
    BARE,
    DENIED,
    FOREIGN,
    MOVED,
    RENEWABLE,
    SKEWED,
    RequestContext,
    code_of,
    date_of,
    of_another,
    region_of,
    translate,
)
from feedd.fetch.s3.session import ClosingSession
from feedd.fetch.s3.tls import trusting
from feedd.flow.pools import CPU

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from botocore.awsrequest import AWSRequest

_log = structlog.get_logger(__name__)
_KEY = "feedd_clock_offset_s"
# The signer of multi-region access points is native and uses this machine's time, so those requests stay refused.
_SHIFTED: dict[object, str] = {"v4": "s3v4-feedd", "s3v4": "s3v4-feedd", "v4-s3express": "v4-s3express-feedd"}
SIGNATURES = frozenset(_SHIFTED) | set(_SHIFTED.values()) | {"v4a", "s3v4a"}
"""Signature versions known to sign nothing but method, URL and headers."""
_BARE = frozenset({"400"})  # a refused HEAD has no body that could hold a code
_GOOGLE = re.compile(r"(?:[a-z0-9-]+\.)*storage(?:\.[a-z0-9-]+\.rep)?\.googleapis\.com")
_ORACLE = re.compile(r"[a-z0-9-]+\.(?:vhcompat|compat)\.objectstorage\.(?P<region>[a-z0-9-]+)\.[a-z0-9.-]+")
T = TypeVar("T")
_RAISED: tuple[type[BaseException], ...] = (
    *FOREIGN,
    ValueError,
)  # botocore's parser raises the latter for a date or a number that is none
_PASSWORD = re.compile(r"//[^/@]*@")
_SKEW_S = 300.0  # stores refuse signatures older than 15 minutes, some older than 5
_REFRESH_SHARE = 0.8
_RENEWED_S = 60.0  # refusals of a younger client do not come from old credentials
_SERVICES = ("s3", "sts", "portal.sso", "oidc", "signin")  # of the endpoints: S3, and those of the credential chain


class ClockOffset:
    """The difference between the store's clock and this machine's, once the store has complained.

    All clients of a bucket share one object, including the clients of listings, which run in separate threads.
    """

    def __init__(self) -> None:
        self.offset_s = 0.0

    def __repr__(self) -> str:
        return f"ClockOffset({self.offset_s:+.0f} s)"

    def learn(self, date: str, url: str, used_s: float = 0.0, least_s: float = 0.0) -> bool:
        """Learn the offset from the Date header of a refusal; False if signing with that time cannot help.

        Args:
            date: the header.
            url: URL of the refused request.
            used_s: offset with which the request was signed.
            least_s: a smaller change of the offset cannot explain the refusal.
        """
        try:
            there = parsedate_to_datetime(date)
        except ValueError:
            return False
        here = datetime.now(UTC)  # noqa: TID251 - a signature contains the date
        offset_s = (there.replace(tzinfo=there.tzinfo or UTC) - here).total_seconds()
        if abs(offset_s - used_s) < least_s:
            return False
        if abs(offset_s - self.offset_s) > 1:  # the header has whole seconds
            _log.warning(
                "this machine's clock is wrong: requests are signed with the store's time",
                object=url,
                offset_s=offset_s,
            )
            self.offset_s = offset_s
        return True

    def attach(self, client: Any) -> None:  # noqa: ANN401 - see open_client
        """Make ``client`` sign with this offset once there is one; until then botocore's own signers sign."""
        client.meta.events.register_first("choose-signer.s3", self._choose)

    def _choose(self, signature_version: object, context: MutableMapping[str, Any], **kwargs: Any) -> str | None:  # noqa: ANN401 - the arguments of botocore's event
        if not self.offset_s:
            return None
        context[_KEY] = self.offset_s
        chosen = set_operation_specific_signer(context=context, **kwargs) or signature_version
        return _SHIFTED.get(chosen)


class _Shifted:
    """Common part of both signers: runs after botocore set the time and before anything is derived from it."""

    def _modify_request_before_signing(self, request: AWSRequest) -> None:
        here = datetime.strptime(request.context["timestamp"], SIGV4_TIMESTAMP).replace(tzinfo=UTC)
        there = here + timedelta(seconds=request.context[_KEY])
        request.context["timestamp"] = there.strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)  # type: ignore[misc]  # botocore's signer is the other base


class _ShiftedS3(_Shifted, S3SigV4Auth):
    """The S3 signature at the store's time."""


class _ShiftedExpress(_Shifted, S3ExpressAuth):
    """The signature of a session with a directory bucket, at the store's time."""


AUTH_TYPE_MAPS["s3v4-feedd"] = _ShiftedS3
AUTH_TYPE_MAPS["v4-s3express-feedd"] = _ShiftedExpress


def is_google(endpoint_url: str | None) -> bool:
    """Whether an endpoint is the S3 face of Google Cloud Storage."""
    return _GOOGLE.fullmatch(_host(endpoint_url)) is not None


def region_of_endpoint(endpoint_url: str | None) -> str | None:
    """Return the region that requests to another store's S3 face are signed for; None: the endpoint does not tell."""
    if is_google(endpoint_url):
        return "auto"
    match = _ORACLE.fullmatch(_host(endpoint_url))
    return None if match is None else match["region"]


def _host(endpoint_url: str | None) -> str:
    try:
        return urlsplit(endpoint_url or "").hostname or ""
    except ValueError:
        return ""  # botocore names what is wrong with the endpoint


class BucketRegion:
    """The region of a bucket, learned when the store refuses a request signed for another region.

    All clients of a bucket share one object, including the clients of listings, which run in separate threads.

    Attributes:
        name: the region; empty: the configured region has not been refused.
    """

    def __init__(self) -> None:
        self.name = ""

    def __repr__(self) -> str:
        return f"BucketRegion({self.name or 'as configured'})"

    def attach(self, client: Any) -> None:  # noqa: ANN401 - see open_client
        """Make ``client`` address and sign requests for the region once it is known."""
        events = client.meta.events
        events.register_first("needs-retry.s3", self._look)  # before botocore resolves the endpoint of its own retry
        events.register_last("before-endpoint-resolution.s3", self._choose)

    def _look(
        self,
        request_dict: Mapping[str, Any],
        response: tuple[Any, Mapping[str, Any]] | None,
        **_: Any,  # noqa: ANN401 - the arguments of botocore's event
    ) -> None:
        if response is None:
            return
        code = str(response[1].get("Error", {}).get("Code", ""))
        region = region_of(response[1]) if code in MOVED or code in _BARE else ""
        context = request_dict.get("context", {})
        bucket = str(context.get("s3_redirect", {}).get("bucket", ""))
        configured = context.get("client_region") or "none"
        if not region or region == (self.name or configured) or bucket.startswith("arn:"):  # an ARN names its region
            return
        self.name = region
        _log.warning(
            "the bucket is in another region than the configured one: requests go there from now on",
            bucket=bucket,
            region=region,
            configured=configured,
            hint="traffic between regions is slow and charged; set region for this bucket to save the first redirect",
        )

    def _choose(self, builtins: MutableMapping[str, Any], **_: Any) -> None:  # noqa: ANN401 - see above
        if self.name:
            builtins["AWS::Region"] = self.name


@dataclass(frozen=True, slots=True)
class BucketFacts:
    """Facts about a bucket that a store's answers show. All clients of the bucket share them.

    Attributes:
        clock: the store's time.
        region: the bucket's region.
        answered: the kinds of requests (``RequestContext.op``) that the store has answered well.
    """

    clock: ClockOffset = field(default_factory=ClockOffset)
    region: BucketRegion = field(default_factory=BucketRegion)
    answered: set[str] = field(default_factory=set)


async def open_client(
    stack: contextlib.AsyncExitStack,
    s3: S3Options,
    limits: SourceOptions,
    *,
    renewed: bool = False,
) -> Any:  # noqa: ANN401 - botocore builds its clients at run time, they have no type
    """Open a client into ``stack``; botocore's own retries are off, because a wrapper retries.

    Credentials are found first, in a stage with its own deadline.

    Args:
        stack: closes the client.
        s3: access options of the bucket.
        limits: deadlines and counts.
        renewed: there was a client before, so its source of credentials worked.

    Raises:
        BadConfig: the endpoint is malformed.
        PermissionDenied, StoreUnavailable: there are no credentials; see ``get_credentials``.
        BotoCoreError, ClientError, TimeoutError: as botocore raises them; the caller translates.
    """
    session = begin_session(s3)
    session.register_component("data_loader", _loader())
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
    if not s3.anonymous:
        # a refresh happens within a request, and must end before it
        refresh_s = _REFRESH_SHARE * (limits.connect_timeout_s + limits.read_timeout_s)
        await get_credentials(session, s3, refresh_s, renewed=renewed)
    async with asyncio.timeout(limits.connect_timeout_s + limits.read_timeout_s):
        return await _enter(stack, session, s3, limits)


async def _enter(stack: contextlib.AsyncExitStack, session: Any, s3: S3Options, limits: SourceOptions) -> Any:  # noqa: ANN401 - see open_client
    config = AioConfig(
        connect_timeout=limits.connect_timeout_s,
        read_timeout=limits.read_timeout_s,
        max_pool_connections=limits.parts_in_flight + limits.heads_in_flight,
        retries={"total_max_attempts": 1, "mode": "standard"},
        s3={} if s3.addressing_style == "auto" else {"addressing_style": s3.addressing_style},
        signature_version=UNSIGNED if s3.anonymous else None,
        # a ranged GET has no checksum of its range; requesting one costs time or fails, depending on the store
        response_checksum_validation="when_required",
        request_checksum_calculation="when_required",
        # loads the service model in a thread, because it is megabytes of JSON
        warm_up_loader_caches=True,
        http_session_cls=ClosingSession,
        user_agent_extra="feedd",
    )
    region = s3.region or region_of_endpoint(s3.endpoint_url or _environment_endpoint())
    client = session.create_client(
        "s3", region_name=region, endpoint_url=s3.endpoint_url, verify=s3.ca_bundle, config=config
    )
    try:
        return await stack.enter_async_context(client)
    except ValueError as error:  # botocore raises this for a malformed endpoint
        hint = "endpoint_url is like https://s3.example.com:9000"
        raise BadConfig(f"the endpoint is not valid: {error}", hint=hint, stage="source") from error


def _environment_endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def trusted_authorities(s3: S3Options) -> str:
    """Return the file or directory of certificates that clients trust; reads AWS configuration files."""
    configured = s3.ca_bundle or begin_session(s3).get_config_variable("ca_bundle")
    return str(configured or os.environ.get("REQUESTS_CA_BUNDLE") or get_cert_path(verify=True))


@functools.cache
def _loader() -> Loader:
    """Return a loader that shares the parsed service models between sessions: each listing has a session."""
    loader = create_loader(os.environ.get("AWS_DATA_PATH"))
    loader.file_loader = _UsedModels()
    return loader


class _UsedModels(JSONFileLoader):
    """Loads the JSON of botocore without its documentation, and without the endpoints of other services.

    That is 6 MB of memory instead of 14 MB, as long as the daemon runs.
    """

    def load_file(self, file_path: str) -> Any:  # noqa: ANN401 - JSON of any kind
        """Return the content of a file whose name is given without its ending, or None if there is none."""
        for ending, opened in ((".json", open), (".json.gz", gzip.open)):
            with contextlib.suppress(FileNotFoundError), opened(file_path + ending, "rb") as file:
                return json.load(file, object_hook=_used)
        return None


def _used(model: dict[str, Any]) -> dict[str, Any]:
    if isinstance(model.get("documentation"), str):
        model["documentation"] = ""  # some readers expect the key
    if "partition" in model and isinstance(services := model.get("services"), dict):
        model["services"] = {name: services[name] for name in _SERVICES if name in services}
    return model


async def warm() -> None:
    """Do the slow work of the first client in a thread: parse the S3 service model, megabytes of JSON.

    A cancelled call returns at once. The thread ends after its step then: the end of the process waits for it.
    """
    stop = threading.Event()
    try:
        await CPU.run(warm_step_by_step, stop)
    finally:
        stop.set()


def warm_step_by_step(stop: threading.Event) -> None:
    """Do the work of ``warm`` in this thread, until ``stop`` is set."""
    for step in (_parse_models, lambda: trusting(trusted_authorities(S3Options())), lambda: asyncio.run(_rehearse())):
        if stop.is_set():
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the first real client meets the error again and reports it
            _log.debug("the sdk could not be prepared in advance", error=str(error))


def _parse_models() -> None:
    loader = _loader()
    for kind in ("service-2", "endpoint-rule-set-1", "paginators-1"):
        loader.load_service_model("s3", kind)
    loader.load_data("endpoints")
    loader.load_data("partitions")


async def _rehearse() -> None:
    """Open a client that sends no request: its imports and set-up take 50 ms, once."""
    async with contextlib.AsyncExitStack() as stack:
        nobody = S3Options(endpoint_url="http://127.0.0.1", region="us-east-1", anonymous=True)
        await open_client(stack, nobody, SourceOptions())


def _timestamp(text: Any) -> datetime:  # noqa: ANN401 - text or a number, as the protocol has it
    """Parse a time as botocore does, with a fast path for S3's form, since dates are 75 % of a page's parsing time."""
    if isinstance(text, str) and text.endswith("Z") and text[4:5] == "-":
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(text)
    moment: datetime = parse_timestamp(text)
    return moment


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False, slots=True)
class _Generation:
    """One client and its number of users."""

    client: Any
    stack: contextlib.AsyncExitStack
    opened_s: float
    user_count: int = 0
    retired: bool = False


class S3Clients:
    """Lends the current client; ``renew`` replaces it, and the old client closes after its last user.

    A new client reads the whole credential chain again. So it finds credentials that were written to a file or an
    environment after the old ones expired.

    Args:
        s3: access options of the bucket.
        limits: deadlines and counts.
        facts: known facts about the bucket; None: nothing is known yet.

    Attributes:
        facts: the facts, for other clients of the bucket.
    """

    def __init__(self, s3: S3Options, limits: SourceOptions, facts: BucketFacts | None = None) -> None:
        self._s3 = s3
        self._limits = limits
        self.facts = facts or BucketFacts()
        self._current: Once[_Generation] = Once(self._open)
        self._opened = False
        self._failed: FeeddError | None = None
        self._failed_at_s = 0.0

    async def call(self, ask: Callable[[Any], Awaitable[T]], request: RequestContext, deadline_s: float) -> T:
        """Run ``ask`` with a client, and once more for each cause that a second try can fix.

        A new client is used after credentials expired. It is also used after an object was refused that is known to
        exist, because its credentials may have been replaced since. The store's time is used after a refusal for a
        wrong time, and the bucket's region after a refusal for a wrong region.

        Raises:
            FeeddError: what botocore or aiohttp raised, translated; StoreUnavailable past the deadline; BadResponse
                for an answer that is too long.
        """
        tried: set[str] = set()
        try:
            async with asyncio.timeout(deadline_s) as limit:
                while True:
                    generation = await self._taken(limit)
                    used_s, region = self.facts.clock.offset_s, self.facts.region.name
                    try:
                        answer = await ask(generation.client)
                        self.facts.answered.add(request.op)
                        return answer  # noqa: TRY300 - the clauses below belong to the same try
                    except _RAISED as error:
                        elsewhere = "region" if region != self.facts.region.name and code_of(error) in MOVED else ""
                        remedy = elsewhere or self._skewed(error, request, used_s)
                        remedy = remedy or self._outdated(error, request, generation)
                        if not remedy or remedy in tried:
                            raise
                    finally:
                        generation.user_count -= 1
                        if generation.retired:
                            await self._close_unused(generation)
                    tried.add(remedy)
                    if remedy == "renew":
                        await self.renew(generation.client)
        except _RAISED as error:
            raise self._lasting(translate(error, self._at_endpoint(request)), error, request) from error
        except FeeddError as error:
            error.object = error.object or request.url  # neither the session nor the search for credentials knows it
            raise self._lasting(error, error.__cause__, request) from error.__cause__

    def _lasting(self, error: FeeddError, cause: BaseException | None, request: RequestContext) -> FeeddError:
        """Return ``error``, or the error to raise in its place if another try may pass.

        No caller may keep the answer in a variable: its traceback would keep the caller's frame, and so the target.

        An endpoint that answered the same kind of request well is configured right. What a load balancer, a proxy or a
        TLS terminator in between then says may pass, and must not end a run in its middle.
        """
        if request.op not in self.facts.answered or not (isinstance(error, BadConfig) or of_another(cause, request)):
            return error
        if isinstance(error, StoreUnavailable) and not isinstance(error, BadResponse):
            return error  # it is retried as often already
        message = f"{error.message}; earlier requests were answered well"
        return StoreUnavailable(message, object=error.object, hint=error.hint, stage=error.stage)

    async def renew(self, stale: object) -> None:
        """Replace the client ``stale`` unless another caller already has."""
        generation = self._current.value
        if generation is not None and generation.client is stale:
            _log.info("the store no longer accepts the credentials: reading the credential chain again")
            await self._retire(generation)

    async def aclose(self) -> None:
        """Close the current client; idempotent."""
        generation = self._current.value
        if generation is not None:
            await self._retire(generation)

    async def _taken(self, limit: asyncio.Timeout) -> _Generation:
        """Return the current client and count one more user. The request's time stops while a client is opened."""
        generation = self._current.value
        if generation is None:
            began_s, ends_s = _now_s(), limit.when()
            limit.reschedule(None)  # opening has deadlines of its own
            generation = await self._current.get()
            limit.reschedule(None if ends_s is None else ends_s + _now_s() - began_s)
        generation.user_count += 1
        return generation

    def _at_endpoint(self, request: RequestContext) -> RequestContext:
        """Return the request with the address that its client uses, which may come from the environment."""
        generation = self._current.value
        if generation is None:
            return request
        return replace(request, endpoint=_PASSWORD.sub("//", str(generation.client.meta.endpoint_url)))

    def _skewed(self, error: BaseException, request: RequestContext, used_s: float) -> str:
        """Return ``clock`` if another signing time may help. For a refusal without a body, only the date tells."""
        code = code_of(error)
        if self._s3.anonymous or code not in SKEWED | BARE:
            return ""
        least_s = _SKEW_S if code in BARE else 0.0
        return "clock" if self.facts.clock.learn(date_of(error), request.url, used_s, least_s) else ""

    def _outdated(self, error: BaseException, request: RequestContext, used: _Generation) -> str:
        """Return ``renew`` if other credentials may help.

        Of the other refusals, only the refusal of a read of a known version counts. A store also refuses missing
        objects to users that may not list.
        """
        code = code_of(error)
        if self._s3.anonymous:
            return ""
        refused = code in DENIED and request.op == "read" and request.etag
        old = used.retired or _now_s() - used.opened_s > _RENEWED_S
        return "renew" if code in RENEWABLE or (refused and old) else ""

    async def _retire(self, generation: _Generation) -> None:
        generation.retired = True
        self._current = Once(self._open)
        await self._close_unused(generation)

    async def _open(self) -> _Generation:
        if self._failed is not None and _now_s() - self._failed_at_s < FAILURE_SHARED_S:
            raise copy.copy(self._failed)
        async with contextlib.AsyncExitStack() as stack:
            try:
                client = await open_client(stack, self._s3, self._limits, renewed=self._opened)
            except FeeddError as error:
                self._failed, self._failed_at_s = error, _now_s()
                raise
            self._opened, self._failed = True, None
            self.facts.clock.attach(client)
            self.facts.region.attach(client)
            return _Generation(client, stack.pop_all(), _now_s())

    @staticmethod
    async def _close_unused(generation: _Generation) -> None:
        if generation.retired and generation.user_count == 0:
            await generation.stack.aclose()
