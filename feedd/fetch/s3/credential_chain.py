"""Finds credentials, and keeps the old ones while their source does not answer."""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Any

import structlog
from aiobotocore.credentials import AioRefreshableCredentials
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from feedd.errors import PermissionDenied
from feedd.fetch.s3.sdk_errors import FOREIGN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from feedd.fetch.fetch_options import S3Options

_log = structlog.get_logger(__name__)
# In this time before expiry every request waits for new credentials; earlier, one request refreshes them.
_MANDATORY_S = 30
_ASK_AGAIN_S = 30.0


def keep_until_expiry(credentials: object) -> None:
    """Use credentials until they expire while their source is down, and warn early.

    botocore begins to refresh fifteen minutes before the expiry. Unpatched, it fails every request from ten minutes
    before on, although the credentials are still valid, and asks the source for each.
    """
    if isinstance(credentials, AioRefreshableCredentials):
        credentials._refresh_using = _Patient(credentials)  # noqa: SLF001 - botocore offers no way to hook in here
        credentials._mandatory_refresh_timeout = _MANDATORY_S  # noqa: SLF001 - see above


class _Patient:
    """A source of credentials that returns the current ones if it cannot get others."""

    def __init__(self, credentials: Any) -> None:  # noqa: ANN401 - aiobotocore has no types
        self._credentials = credentials
        self._ask: Callable[[], Awaitable[Mapping[str, str]] | Mapping[str, str]] = credentials._refresh_using  # noqa: SLF001 - see above
        self._ask_at_s = 0.0

    async def __call__(self) -> Mapping[str, str]:
        """Return new credentials, or the old ones if they are still valid."""
        held = self._credentials
        good = held._frozen_credentials is not None and not held._is_expired()  # noqa: SLF001 - see above
        if good and time.monotonic() < self._ask_at_s:
            return self._valid()
        try:
            found = self._ask()
            return await found if inspect.isawaitable(found) else found
        except FOREIGN as error:
            if not good:
                raise
            self._ask_at_s = time.monotonic() + _ASK_AGAIN_S
            left_s = held._seconds_remaining()  # noqa: SLF001 - see above
            _log.warning("credentials cannot be refreshed", error=str(error), usable_for_s=round(left_s))
            return self._valid()

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


def find_credentials(s3: S3Options) -> str:
    """Return the source of the credentials, such as ``env`` or ``iam-role``; blocks for a second or two at most.

    Raises:
        PermissionDenied: there are none, or profile and files contradict each other.
    """
    if s3.anonymous:
        return "none: requests are anonymous"
    session = Session(profile=s3.profile)
    # Outside the cloud the metadata service does not answer: do not wait long for it.
    session.set_config_variable("metadata_service_timeout", 1)
    session.set_config_variable("metadata_service_num_attempts", 1)
    try:
        found = session.get_credentials()
    except (BotoCoreError, OSError) as error:
        hint = "check profile and AWS configuration files"
        raise PermissionDenied(f"the credentials cannot be read: {error}", hint=hint, stage="source") from error
    if found is None:
        hint = "set AWS_* variables, a profile or an instance role; or anonymous = true for public buckets"
        raise PermissionDenied("there are no credentials", hint=hint, stage="source")
    return str(found.method)
