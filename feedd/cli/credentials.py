"""Checks whether the configured buckets have credentials. Missing ones are reported only, as data may be local."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.cli.machine_check import Finding, Verdict
from feedd.config.option_list import ANY_BUCKET
from feedd.errors import PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.config import Config


def credentials(config: Config) -> Iterator[Finding]:
    """Look for credentials once per configured bucket, and once for all other buckets."""
    # The SDK takes most of a second to import, and other commands do not need it.
    from feedd.daemon.wiring import source_options  # noqa: PLC0415 - see above
    from feedd.fetch.s3.credentials import find_credentials  # noqa: PLC0415 - see above

    options = source_options(config)
    for bucket in sorted({ANY_BUCKET, *options.s3}):
        question = "S3 credentials" if bucket == ANY_BUCKET else f"S3 credentials {bucket}"
        try:
            yield Finding(question, Verdict.FINE, f"found by {find_credentials(options.for_bucket(bucket))}")
        except PermissionDenied as error:
            yield Finding(question, Verdict.NOTE, error.message, error.hint)
