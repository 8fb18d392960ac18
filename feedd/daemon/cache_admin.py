"""An operator's requests to the running daemon's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.cache.inspection import matches
from feedd.catalog.urls import parse_url
from feedd.conversion import Conversion
from feedd.serve.server_options import CacheState
from feedd.values import ObjectRef
from feedd.warming import Amount

if TYPE_CHECKING:
    from feedd.config.models import CacheConfig
    from feedd.tables.cache import ConvertingCache


def cache_state(config: CacheConfig, cache: ConvertingCache) -> CacheState:
    """Return the current state of the cache."""
    stats = cache.stats
    return CacheState(
        directory=str(config.dir),
        limit_bytes=stats.limit_bytes,
        free_reserve_bytes=config.free_reserve,
        committed_bytes=stats.committed_bytes,
        reserved_bytes=stats.reserved_bytes,
        entry_count=stats.entry_count,
        pin_count=stats.pin_count,
    )


async def cache_remove(cache: ConvertingCache, pattern: str) -> tuple[Amount, Amount]:
    """Remove matching objects that are not pinned; return the removed amount and the amount still in use."""
    removed, in_use = Amount(), Amount()
    for entry in cache.entries():
        if not matches(entry.url, pattern):
            continue
        if entry.pins:
            in_use = in_use.plus(entry.size_bytes)
            continue
        location = parse_url(entry.url)
        conversion = Conversion.parse(entry.conversion)
        await cache.discard(ObjectRef(location.root, location.key, entry.size_bytes, entry.etag, conversion))
        removed = removed.plus(entry.size_bytes)
    return removed, in_use
