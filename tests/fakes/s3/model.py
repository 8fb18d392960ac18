"""What botocore knows of an answer of S3."""

from __future__ import annotations

import functools
from typing import Any

import botocore.session


@functools.cache
def listing_shape() -> Any:
    """Return the shape of a listing's page: finding it takes longer than most tests."""
    return botocore.session.get_session().get_service_model("s3").operation_model("ListObjectsV2").output_shape
