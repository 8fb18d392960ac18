"""Reads shards through a cache while they arrive, so that a batch waits only for its own samples.

A window has many packs, and a batch has samples of nearly all of them. So the first batch would wait for a whole
window: with 100 KB objects at 20 ms latency, this was most of a small epoch. The order of batches stays the same and
decides what is fetched first. A converted table may grow by row groups (``tables.converter``), so that its
first batch waits for one of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from feedd.cache.pins import with_pinned
from feedd.dataset.pack_layout import is_pack
from feedd.errors import CacheUnavailable
from feedd.tables.registry import grows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.catalog.sources import Sources
    from feedd.fetch.packs import PartialWait
    from feedd.ordering.batch_plan import RunRows
    from feedd.protocols import PinnedShards
    from feedd.tables.cache import ConvertingCache
    from feedd.values import ObjectRef, ShardFile

_T = TypeVar("_T")


class Acquiring:
    """Shards being acquired in the background; the caller takes the pins or leaves them."""

    def __init__(self, group: asyncio.TaskGroup, cache: ConvertingCache, refs: Sequence[ObjectRef]) -> None:
        self._failure: BaseException | None = None
        self.task: asyncio.Task[PinnedShards | None] = group.create_task(self._acquire(cache, refs))

    async def take(self) -> PinnedShards:
        """Return the pins, which then belong to the caller.

        Raises:
            FeeddError: as ``ShardCache.acquire``.
        """
        try:
            await asyncio.wait((self.task,))
        except asyncio.CancelledError:
            self.cancel()
            raise
        pins = self.task.result()
        if pins is None:
            assert self._failure is not None, "no pins, so there is a reason"
            raise self._failure
        return pins

    def leave(self) -> None:
        """Let the acquisition end by itself, because other callers use its work too."""
        if self.task.done():
            _release(self.task)
        else:
            self.task.add_done_callback(_release)

    def cancel(self) -> None:
        """Cancel the acquisition."""
        self.task.cancel()
        self.leave()

    async def _acquire(self, cache: ConvertingCache, refs: Sequence[ObjectRef]) -> PinnedShards | None:
        try:
            return await cache.acquire(refs)
        except Exception as error:  # noqa: BLE001 - raised again in ``take``; here it would end the daemon
            self._failure = error
            return None


class PackReads:
    """Reads of packs that have not arrived completely.

    Args:
        sources: knows which objects have arrived.
        cache: fetches whole packs.
        group: owns acquisitions that no caller waits for any more.
    """

    def __init__(self, sources: Sources, cache: ConvertingCache, group: asyncio.TaskGroup) -> None:
        self._sources = sources
        self._cache = cache
        self._group = group
        self._started: dict[Acquiring, tuple[object, frozenset[ObjectRef]]] = {}

    def ticket(self) -> int:
        """Return a ticket that has priority over all later requests."""
        return self._sources.packs.ticket()

    async def read(
        self,
        refs: Sequence[ObjectRef],
        group: RunRows,
        read: Callable[[tuple[ShardFile, ...]], Awaitable[_T]],
        owner: object,
        ticket: int | None = None,
    ) -> _T:
        """Return the result of ``read`` for the files of ``refs``, which have at least the samples of ``group``.

        If a file cannot be read before it is complete, ``read`` is called again with the complete file.

        Args:
            refs: the shards of ``group``.
            group: the batches.
            read: may be called twice.
            owner: the reader, which must call ``withdraw`` at its end.
            ticket: a ticket from ``ticket``, to keep an earlier place in the order; None: a new ticket.

        Raises:
            FeeddError: as ``with_pinned``.
        """
        missing = [number for number, ref in enumerate(refs) if _is_read_early(ref) and not self._cache.holds(ref)]
        if not missing:
            return await with_pinned(self._cache, refs, read)
        wanted = {refs[number]: _ordinals(group, number, refs[number]) for number in missing}
        return await self._read(refs, wanted, read, owner, ticket)

    async def read_unfinished(self, ref: ObjectRef, read: Callable[[tuple[ShardFile, ...]], Awaitable[_T]]) -> _T:
        """Return the result of ``read`` for a shard that may not have any sample yet.

        The shard goes on arriving if a session wishes for it.
        """
        if not _is_read_early(ref) or self._cache.holds(ref):
            return await with_pinned(self._cache, [ref], read)
        owner = object()
        found = await self._read([ref], {ref: np.zeros(0, np.int64)}, read, owner, None)
        await self.withdraw(owner)
        return found

    async def _read(
        self,
        refs: Sequence[ObjectRef],
        wanted: Mapping[ObjectRef, NDArray[np.int64]],
        read: Callable[[tuple[ShardFile, ...]], Awaitable[_T]],
        owner: object,
        ticket: int | None,
    ) -> _T:
        awaited = self._sources.packs.wait_for(wanted, self.ticket() if ticket is None else ticket)
        whole = Acquiring(self._group, self._cache, refs)
        self._started[whole] = owner, frozenset()
        whole.task.add_done_callback(lambda _: self._started.pop(whole))
        try:
            found = await self._read_early(refs, awaited, whole, read)
        except BaseException:
            whole.cancel()
            raise
        if found is None:
            return await with_pinned(self._cache, refs, read, whole.take)
        self._leave(whole, owner, frozenset(wanted))
        return found[0]

    async def withdraw(self, owner: object) -> None:
        """Cancel the acquisitions of an owner that reads no more."""
        begun = [acquiring for acquiring, (whose, _) in self._started.items() if whose is owner]
        for acquiring in begun:
            acquiring.cancel()
        if begun:
            await asyncio.wait([acquiring.task for acquiring in begun])

    async def _read_early(
        self,
        refs: Sequence[ObjectRef],
        waiting: PartialWait,
        whole: Acquiring,
        read: Callable[[tuple[ShardFile, ...]], Awaitable[_T]],
    ) -> tuple[_T] | None:
        """Return the result of ``read`` for packs that still arrive; None: read the complete packs instead."""
        with waiting as awaited:
            await asyncio.wait((whole.task, awaited.ready), return_when=asyncio.FIRST_COMPLETED)
            if whole.task.done():
                return None
            early = _files(awaited)
            rest = [ref for ref in refs if ref not in early]  # complete, or with a missing object
            try:
                with await self._cache.acquire(rest) as pinned:
                    files = dict(zip(rest, pinned.files, strict=True)) | early
                    return (await read(tuple(files[ref] for ref in refs)),)
            except CacheUnavailable:
                return None

    def _leave(self, whole: Acquiring, owner: object, packs: frozenset[ObjectRef]) -> None:
        """Let the packs complete in the background; an owner keeps at most one acquisition for each pack."""
        if any(whose is owner and packs <= others for whose, others in self._started.values()):
            whole.cancel()
            return
        if not whole.task.done():
            self._started[whole] = owner, packs
        whole.leave()


def _is_read_early(ref: ObjectRef) -> bool:
    """Whether a shard may be read before it is complete."""
    return is_pack(ref) if ref.conversion is None else grows(ref.conversion)


def _ordinals(group: RunRows, number: int, ref: ObjectRef) -> NDArray[np.int64]:
    """Return the samples of a group in one of its shards; of a converted shard, the first and the last."""
    ordinal: NDArray[np.int64] = group.ordinal[group.shard_no == number]
    if ref.conversion is None:
        return ordinal
    return np.array([ordinal.min(), ordinal.max() + max(group.plan.first_rows_of, 1) - 1])


def _files(awaited: PartialWait) -> dict[ObjectRef, ShardFile]:
    try:
        return awaited.files()
    except OSError:
        return {}  # no free descriptor


def _release(task: asyncio.Task[PinnedShards | None]) -> None:
    pins = None if task.cancelled() else task.result()
    if pins is not None:
        pins.release()
