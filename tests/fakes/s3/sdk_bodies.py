"""Stores whose bodies the SDK receives, as it does of a store that states no length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.fetch.s3.store import S3Store

if TYPE_CHECKING:
    from feedd.fetch.fetch_options import SourceOptions


def sdk_bodies_store(bucket: str, options: SourceOptions) -> S3Store:
    """Return a store that has met a body without a length."""
    store = S3Store(bucket, options)
    store._obstacle = "the test wants the sdk"
    return store
