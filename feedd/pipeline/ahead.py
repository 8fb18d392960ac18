"""The first batches of the next epoch, decoded while the trainer is busy with the last ones of this."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from feedd.errors import FeeddError
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.pipeline.dataset.shelf import Shelf
    from feedd.pipeline.planning import AnyReader
    from feedd.pipeline.sharing import SharedBatches
    from feedd.plan.listing import Listing
    from feedd.plan.reader import BatchRows
    from feedd.values import BatchReady, ObjectRef, ShardIndex

AHEAD_BATCHES = 2  # one is taken while the other is copied; what follows is made as in the middle of an epoch
_log = structlog.get_logger("feedd.pipeline")


@dataclass(frozen=True, slots=True)
class AheadParts:
    """What is needed to decode ahead of a session.

    Attributes:
        memory: makes room for ``AHEAD_BATCHES``, held until they are taken.
        reader: makes a reader of the session's plan; its own stands in another epoch.
        steps: of the session's consumer, the first ones of an epoch.
    """

    memory: Callable[[], Awaitable[SharedBatches]]
    reader: Callable[[], AnyReader]
    steps: tuple[int, ...]
    listing: Listing
    shelf: Shelf
    tasks: asyncio.TaskGroup


class Ahead:
    """One session's. Nothing that fails here is an error: the batch is then made when it is asked for."""

    def __init__(self, parts: AheadParts) -> None:
        self._parts = parts
        self._epoch = -1
        self._unwanted = False
        self._taking_count = 0
        self._left: set[int] = set()
        self._batches: SharedBatches | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, epoch: int) -> None:
        """Start on an epoch, unless one is held already."""
        if self._task is None and self._batches is None:
            self._epoch, self._unwanted, self._left = epoch, False, set(self._parts.steps)
            self._task = self._parts.tasks.create_task(self._make(epoch))

    async def batch(
        self, rows: BatchRows, refs: Sequence[ObjectRef], indexes: Sequence[ShardIndex], into: memoryview
    ) -> BatchReady | None:
        """Return a batch that was, or is being, decoded ahead, copied into ``into``; None: it was not.

        Raises:
            As ``SharedBatches.batch``.
        """
        at = rows.cursor
        if at.epoch != self._epoch or at.step not in self._left:
            return None
        self._left.discard(at.step)  # where there is no memory yet it is made by whoever asks, and not here
        if self._batches is None:
            return None
        self._taking_count += 1
        try:
            return await self._batches.batch(self, rows, refs, indexes, into)
        finally:
            self._taking_count -= 1

    def holds(self, at: Cursor) -> bool:
        """Whether the batch at ``at`` was, or is being, decoded ahead."""
        return at.epoch == self._epoch and at.step in self._left

    async def settle(self, at: Cursor) -> None:
        """Let go of what is not wanted any more, a stream standing at ``at``."""
        over = at.epoch > self._epoch or (at.epoch == self._epoch and not self._left)
        if self._batches is not None and over and not self._taking_count:
            await self.close()

    async def close(self) -> None:
        """End what is under way and free the memory; idempotent."""
        task = self._task
        if task is not None:
            self._unwanted = True
            if self._batches is not None:  # memory that is being made cannot be left behind: that is waited for
                task.cancel()
            await asyncio.wait([task])
        self._left.clear()
        await self._free()

    async def _free(self) -> None:
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.leave(self)
            await batches.close()

    async def _make(self, epoch: int) -> None:
        try:
            batches = await self._parts.memory()
            batches.join(self)
            self._batches = batches
            reader = self._parts.reader()
            for step in self._parts.steps:
                if self._unwanted:
                    return
                if step not in self._left:
                    continue
                rows = await self._parts.shelf.rows(self._parts.listing, reader, Cursor(epoch, step))
                if isinstance(rows, EpochEnd):
                    break
                shards = rows.shards.tolist()
                refs = [self._parts.listing.refs[shard] for shard in shards]
                indexes = await self._parts.shelf.indexes(self._parts.listing, shards)
                await batches.prepare(rows, refs, indexes)
        except FeeddError as error:
            _log.debug("nothing was decoded ahead", epoch=epoch, reason=str(error))
        finally:
            self._task = None
            if not self._left and not self._taking_count:  # the trainer was faster
                await self._free()
