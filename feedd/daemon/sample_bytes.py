"""Reads the bytes of a bad sample from the cache, as long as its shard is there. Nothing is fetched for that."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from feedd.errors import FeeddError
from feedd.flow.pools import CACHE_DISK

if TYPE_CHECKING:
    from feedd.sessions.opening import Pipeline
    from feedd.values import ShardFile

BYTES_MAX: Final = 8 << 20
_DEADLINE_S: Final = 5.0


async def sample_bytes(pipeline: Pipeline, number: int) -> bytes | None:
    """Return the first bytes of the field that failed, up to 8 MiB; None: they are not in the cache.

    Args:
        pipeline: has the samples and the cache.
        number: the sample's number.
    """
    found = pipeline.bad_samples.find(number)
    if found is None:
        return None
    failure = found.failure
    if failure.ref is None or failure.offset < 0 or failure.size_bytes <= 0 or not pipeline.cache.holds(failure.ref):
        return None
    size_bytes = min(failure.size_bytes, BYTES_MAX)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            with await pipeline.cache.acquire([failure.ref]) as pins:
                return await CACHE_DISK.run(_read, pins.files[0], failure.offset, size_bytes)
    except (FeeddError, OSError, TimeoutError):
        return None


def _read(file: ShardFile, offset: int, size_bytes: int) -> bytes:
    fd = file.fd if file.fd >= 0 else os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.pread(fd, size_bytes, file.data_at + offset)
    finally:
        if file.fd < 0:
            os.close(fd)
