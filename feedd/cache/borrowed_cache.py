"""The cache of a successor: reads the entries of its predecessor's directory until it owns the directory."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from feedd.cache import entry_layout, os_errors
from feedd.cache.files import look_at
from feedd.cache.pending_cache import PendingCache
from feedd.cache.pins import Pins
from feedd.cache.recovery import RunLedger
from feedd.cache.storage import Depth, Finding
from feedd.flow.pools import CACHE_DISK
from feedd.flow.tasks import run_to_end
from feedd.values import ShardFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from feedd.cache.cache import Cache
    from feedd.cache.options import CacheOptions
    from feedd.protocols import PinnedShards
    from feedd.values import ObjectRef


class BorrowedCache(PendingCache):
    """A ``ShardCache`` over a directory that another daemon owns, and after ``own`` over the cache of this daemon.

    Until then it changes nothing in the directory. An entry in use stays open, so the owner may remove it, and does not
    write to it: see ``Spares``. Whoever acquires a shard that is not there waits for ``own``.
    """

    def __init__(self, options: CacheOptions, cache: Cache) -> None:
        """Prepare to borrow.

        Args:
            options: names the directory.
            cache: this daemon's cache, not open yet.
        """
        super().__init__()
        self._options = options
        self._inner = cache
        self._wishes: dict[str, Sequence[ObjectRef]] = {}
        self._verified: set[ObjectRef] = set()
        self._settled = asyncio.Event()  # owned, or closed
        self._stack = AsyncExitStack()

    def __repr__(self) -> str:
        return f"BorrowedCache({self._cache or self._options.directory})"

    async def __aenter__(self) -> Self:
        """Read which runs of the predecessor can be believed."""
        self._ledger = await CACHE_DISK.run(RunLedger, self._options.directory)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the cache if it was opened."""
        self._settled.set()
        await self._stack.aclose()

    async def own(self) -> None:
        """Open this daemon's cache, and pass on what was wished for. Call it from the task that closes the cache.

        Raises:
            CacheUnavailable: another daemon owns the directory, or the directory cannot be used.
        """
        cache = self._inner
        await self._stack.enter_async_context(cache)
        self._opened(cache)
        for owner, refs in self._wishes.items():
            cache.prefetch(refs, owner)
        self._wishes.clear()
        self._verified.clear()
        self._settled.set()

    async def acquire(self, refs: Sequence[ObjectRef]) -> PinnedShards:
        """Return pins on all of ``refs``. Before ``own``: of the predecessor's entries, or wait.

        Raises:
            Draining: the cache is closing.
            Whatever the cache of this daemon raises.
        """
        if self._cache is None:
            borrowed: dict[ObjectRef, ShardFile] = {}
            try:
                found = await run_to_end(CACHE_DISK.begin(self._borrow, tuple(dict.fromkeys(refs)), borrowed))
            except BaseException:
                _close(borrowed)
                raise
            if found:
                return Pins(tuple(borrowed[ref] for ref in refs), lambda: _close(borrowed))
            _close(borrowed)
            await self._settled.wait()
        if self._cache is None:
            raise os_errors.closed()
        return await self._cache.acquire(refs)

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        """Replace ``owner``'s wish list; before ``own``, remember it."""
        if self._cache is not None:
            self._cache.prefetch(refs, owner)
        elif refs:
            self._wishes[owner] = refs
        else:
            self._wishes.pop(owner, None)

    async def discard(self, ref: ObjectRef) -> None:
        """Drop a damaged entry; before ``own``, verify it again at its next use."""
        self._verified.discard(ref)
        if self._cache is not None:
            await self._cache.discard(ref)

    async def close(self) -> None:
        """Close the cache, and fail waiting acquirers; idempotent."""
        self._settled.set()
        if self._cache is not None:
            await self._cache.close()

    @property
    def limit_bytes(self) -> int:
        """Upper limit of the bytes of all entries; before ``own``, as configured."""
        return self._options.size_bytes if self._cache is None else self._cache.limit_bytes

    def holds(self, ref: ObjectRef) -> bool:
        """Whether the cache holds the whole object; before ``own``: as far as it was acquired."""
        return ref in self._verified if self._cache is None else self._cache.holds(ref)

    def knows(self, ref: ObjectRef) -> bool:
        """Whether the cache holds the object or is filling it."""
        return ref in self._verified if self._cache is None else self._cache.knows(ref)

    def _borrow(self, refs: Sequence[ObjectRef], files: dict[ObjectRef, ShardFile]) -> bool:
        """Open and verify the predecessor's entries into ``files``; False: not all of them are there. Blocks."""
        for ref in refs:
            path = entry_layout.file_path(self._options.directory, ref)
            depth = Depth.HEADER if ref in self._verified or self._options.verify == "off" else Depth.BLOCKS
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                files[ref] = ShardFile(ref, f"/proc/{os.getpid()}/fd/{fd}", entry_layout.data_at(ref), fd=fd)
                if look_at(fd, ref, depth, self._ledger.believes) is not Finding.WHOLE:
                    return False
            except OSError:
                return False
            self._verified.add(ref)
        return True


def _close(files: dict[ObjectRef, ShardFile]) -> None:
    """Close the files of entries; once."""
    while files:
        os.close(files.popitem()[1].fd)
