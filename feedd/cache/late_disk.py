"""A disk tier that keeps retrying if its directory cannot be used at the start."""

from __future__ import annotations

import asyncio
import errno
import math
from typing import TYPE_CHECKING, Final, Self

from feedd.cache.os_errors import StorageFull
from feedd.cache.pending_cache import PendingCache
from feedd.errors import CacheUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.cache.caches import DiskCache
    from feedd.cache.disk_watch import DiskWatch
    from feedd.protocols import PinnedShards
    from feedd.values import ObjectRef

RETRY_S: Final = 10.0
_MAY_PASS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO})


def may_pass(error: CacheUnavailable) -> bool:
    """Whether retrying may help: the directory is full, failing or not writable.

    A wrong path or another owner needs the operator.
    """
    cause = error.__cause__
    return isinstance(cause, StorageFull) or (isinstance(cause, OSError) and cause.errno in _MAY_PASS)


class LateDisk(PendingCache["DiskCache"]):
    """A ``Tier`` over one disk cache, which opens later if it cannot be opened at the start.

    Until then the tier is empty, and the watch reports the disk as down.
    The task that opens the cache late also closes it.
    """

    def __init__(self, make: Callable[[], DiskCache], watch: DiskWatch, retry_s: float = RETRY_S) -> None:
        """Prepare to open the cache that ``make`` returns; each call returns a new cache of the same directory."""
        super().__init__()
        self._make = make
        self._watch = watch
        self._retry_s = retry_s
        self._closing = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"LateDisk({self._cache!r})"

    async def __aenter__(self) -> Self:
        """Open the cache, or keep retrying in the background.

        Raises:
            CacheUnavailable: the directory cannot be used, and waiting will not change that.
        """
        cache = self._make()
        try:
            await cache.__aenter__()
        except CacheUnavailable as error:
            if not may_pass(error):
                raise
            self._watch.missing(error, self._retry_s)
            await self._group.__aenter__()
            self._task = self._group.create_task(self._open_later())
        else:
            self._cache = cache
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the cache and stop retrying."""
        if self._task is None:
            await self.close()
            if self._cache is not None:
                await self._cache.__aexit__(None, None, None)
            return
        self._closing.set()
        if self._cache is None:
            self._task.cancel()
        await self._group.__aexit__(None, None, None)

    async def acquire(self, refs: Sequence[ObjectRef]) -> PinnedShards:
        """Acquire from the cache.

        Raises:
            CacheUnavailable: the cache is not open yet.
            Whatever the cache raises.
        """
        if self._cache is None:
            raise CacheUnavailable("the cache directory cannot be used yet", stage="cache")
        return await self._cache.acquire(refs)

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        """Replace ``owner``'s wish list."""
        if self._cache is not None:
            self._cache.prefetch(refs, owner)

    async def discard(self, ref: ObjectRef) -> None:
        """Drop a damaged entry."""
        if self._cache is not None:
            await self._cache.discard(ref)

    async def close(self) -> None:
        """Close the cache; idempotent."""
        self._closing.set()
        if self._cache is not None:
            await self._cache.close()

    @property
    def limit_bytes(self) -> int:
        """Upper limit of the bytes of all entries; 0 until the cache is open."""
        return self._cache.limit_bytes if self._cache is not None else 0

    def holds(self, ref: ObjectRef) -> bool:
        """Whether the cache holds the whole object."""
        return self._cache is not None and self._cache.holds(ref)

    def knows(self, ref: ObjectRef) -> bool:
        """Whether the cache holds the object or is filling it."""
        return self._cache is not None and self._cache.knows(ref)

    def price(self, refs: Sequence[ObjectRef]) -> float:
        """Return the earliest next use among the entries that ``refs`` would evict."""
        return self._cache.price(refs) if self._cache is not None else math.inf

    def has_room(self, ref: ObjectRef) -> bool:
        """Whether a missing object could enter now without evicting an entry that is needed sooner."""
        return self._cache is not None and self._cache.has_room(ref)

    async def _open_later(self) -> None:
        while not self._closing.is_set():
            try:
                async with asyncio.timeout(self._retry_s):
                    await self._closing.wait()
            except TimeoutError:
                await self._try()

    async def _try(self) -> None:
        cache = self._make()
        try:
            await cache.__aenter__()
        except CacheUnavailable:
            return  # the warning at the start named the reason
        self._opened(cache)
        self._watch.opened()
        try:
            await self._closing.wait()
        finally:
            await cache.__aexit__(None, None, None)
