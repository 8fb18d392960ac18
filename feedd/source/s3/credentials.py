"""Which link of botocore's chain finds credentials: for ``feedd check``, which asks before anything is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError
from botocore.session import Session

from feedd.errors import PermissionDenied

if TYPE_CHECKING:
    from feedd.source.options import S3Options


def find_credentials(s3: S3Options) -> str:
    """Return what provided the credentials, such as ``env`` or ``iam-role``; blocks for a second or two at most.

    Raises:
        PermissionDenied: there are none, or profile and files contradict each other.
    """
    if s3.anonymous:
        return "nobody: requests are anonymous"
    session = Session(profile=s3.profile)
    # On a machine outside the cloud the metadata service does not answer: do not wait for it for long.
    session.set_config_variable("metadata_service_timeout", 1)
    session.set_config_variable("metadata_service_num_attempts", 1)
    try:
        found = session.get_credentials()
    except (BotoCoreError, OSError) as error:
        hint = "check profile and AWS configuration files"
        raise PermissionDenied(f"expected credentials, got: {error}", hint=hint, stage="source") from error
    if found is None:
        hint = "set AWS_* variables, a profile or an instance role; or anonymous = true for public buckets"
        raise PermissionDenied("expected credentials, got none", hint=hint, stage="source")
    return str(found.method)
