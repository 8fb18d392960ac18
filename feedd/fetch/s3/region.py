"""The region of a bucket if it is not the configured one, and that of other stores' S3 faces.

A bucket's region is learned from a refusal, and remembered for all clients.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from feedd.fetch.s3.clock_skew import ClockOffset
from feedd.fetch.s3.sdk_errors import MOVED, region_of

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

_log = structlog.get_logger(__name__)
_BARE = frozenset({"400"})  # a refused HEAD has no body that could hold a code
_GOOGLE = re.compile(r"(?:[a-z0-9-]+\.)*storage(?:\.[a-z0-9-]+\.rep)?\.googleapis\.com")
_ORACLE = re.compile(r"[a-z0-9-]+\.(?:vhcompat|compat)\.objectstorage\.(?P<region>[a-z0-9-]+)\.[a-z0-9.-]+")


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
