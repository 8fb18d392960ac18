"""One consumer's opened dataset: from a cursor to a batch in a slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd import metrics
from feedd.errors import CacheUnavailable, ObjectChanged
from feedd.plan.epoch import NeedCounts
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from feedd.flow.arena import Arena
    from feedd.pipeline.assemble import Assembler
    from feedd.pipeline.future import Outlook
    from feedd.pipeline.shelf import Shelf
    from feedd.pipeline.stages import Stages
    from feedd.plan.listing import Listing
    from feedd.plan.reader import BatchRows, Reader
    from feedd.protocols import Slots
    from feedd.values import BatchReady, SessionInfo, SlotRef


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session is made of: its plan, its view of the future, its arena."""

    info: SessionInfo
    listing: Listing
    reader: Reader
    outlook: Outlook
    assembler: Assembler
    arena: Arena


class Session:
    """Seam ``FeedSession``. Batches are independent: any number may be in production."""

    def __init__(self, parts: SessionParts, stages: Stages, shelf: Shelf) -> None:
        self._parts = parts
        self._stages = stages
        self._shelf = shelf

    @property
    def info(self) -> SessionInfo:
        """What Open answers."""
        return self._parts.info

    @property
    def slots(self) -> Slots:
        """The session's arena."""
        return self._parts.arena

    @property
    def arena_fd(self) -> int:
        """The arena's memfd, owned by the session."""
        return self._parts.arena.fd

    async def produce(self, at: Cursor, slot: SlotRef) -> BatchReady | EpochEnd:
        """Decode the batch at ``at`` into ``slot``.

        Raises:
            ObjectChanged: a shard is no longer the version that was listed.
            BadShard, BadSample: the data is not what the recipe expects, beyond the failure budget.
            CacheTooSmall: the shards of one batch do not fit into the cache together.
            NotFound, PermissionDenied, StoreUnavailable: said by the store.
        """
        began_s = self._stages.clock.monotonic_s()
        try:
            rows = await self._rows(at)
            if isinstance(rows, EpochEnd):
                self._stages.recorder.count(metrics.PIPELINE_EPOCHS)
                return rows
            batch = await self._decode(rows, slot)
        except ObjectChanged:
            self._shelf.forget(self._parts.listing)
            raise
        self._stages.recorder.observe(metrics.PIPELINE_BATCH_SECONDS, self._stages.clock.monotonic_s() - began_s)
        return batch

    async def close(self) -> None:
        """Withdraw wishes, take the arena from the workers, free it."""
        self._parts.outlook.close()
        self._parts.assembler.close()
        self._parts.arena.close()

    async def _rows(self, at: Cursor) -> BatchRows | EpochEnd:
        parts = self._parts
        while isinstance(rows := parts.reader.rows(at), NeedCounts):
            await self._shelf.indexes(parts.listing, rows.shards)
        if not isinstance(rows, EpochEnd):
            parts.outlook.advance(at, rows.first_window, rows.last_window)
        return rows

    async def _decode(self, rows: BatchRows, slot: SlotRef) -> BatchReady:
        parts = self._parts
        shards = rows.shards.tolist()
        refs = [parts.listing.refs[shard] for shard in shards]
        indexes = await self._shelf.indexes(parts.listing, shards)
        try:
            with await self._stages.cache.acquire(refs) as pinned:
                return await parts.assembler.fill(rows, indexes, pinned.files, slot)
        except CacheUnavailable:
            # A cache file went away or could not be read under us: what is damaged is fetched once more.
            for ref in refs:
                await self._stages.cache.discard(ref)
        with await self._stages.cache.acquire(refs) as pinned:
            return await parts.assembler.fill(rows, indexes, pinned.files, slot)
