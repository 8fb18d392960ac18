"""Reading shards through a cache that may lose files at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from feedd.errors import CacheUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.protocols import PinnedShards, ShardCache
    from feedd.values import ObjectRef, ShardFile

_T = TypeVar("_T")


async def with_pinned(
    cache: ShardCache,
    refs: Sequence[ObjectRef],
    read: Callable[[tuple[ShardFile, ...]], Awaitable[_T]],
    first: Callable[[], Awaitable[PinnedShards]] | None = None,
) -> _T:
    """Return what ``read`` makes of the files of ``refs``, which are pinned meanwhile.

    Where a file went away or could not be read under it, that one is fetched anew and all is done once more.

    Args:
        cache: acquires and drops.
        refs: what to read.
        read: may be called twice.
        first: acquires them, the first time; None: the cache does.

    Raises:
        Whatever the cache and ``read`` raise; CacheUnavailable only the second time.
    """
    try:
        with await (cache.acquire(refs) if first is None else first()) as pinned:
            return await read(pinned.files)
    except CacheUnavailable as error:
        for ref in refs:
            if ref.url == error.object:
                await cache.discard(ref)
    with await cache.acquire(refs) as pinned:
        return await read(pinned.files)
