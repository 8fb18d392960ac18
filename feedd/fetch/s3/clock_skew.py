"""Signs with the store's time if this machine's clock is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import structlog
from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, S3ExpressAuth, S3SigV4Auth
from botocore.handlers import set_operation_specific_signer

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from botocore.awsrequest import AWSRequest

_log = structlog.get_logger(__name__)
_KEY = "feedd_clock_offset_s"


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


# The signer of multi-region access points is native and uses this machine's time, so those requests stay refused.
_SHIFTED: dict[object, str] = {"v4": "s3v4-feedd", "s3v4": "s3v4-feedd", "v4-s3express": "v4-s3express-feedd"}
AUTH_TYPE_MAPS["s3v4-feedd"] = _ShiftedS3
AUTH_TYPE_MAPS["v4-s3express-feedd"] = _ShiftedExpress
SIGNATURES = frozenset(_SHIFTED) | set(_SHIFTED.values()) | {"v4a", "s3v4a"}
"""Signature versions known to sign nothing but method, URL and headers."""
