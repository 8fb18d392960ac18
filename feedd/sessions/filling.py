"""From batches that were drawn to batches in slots, where several are read together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.cache.pinned_reads import with_pinned
from feedd.ordering.batch_plan import BatchPlanGroup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.batching.assembler import Assembler
    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.dataset.listing import Listing
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.protocols import ShardCache
    from feedd.values import BatchReady, ShardFile, SlotRef


@dataclass(frozen=True, slots=True)
class Filling:
    """What batches of one session are made with.

    Attributes:
        listing: its shards.
        shelf: knows where samples lie in them.
        cache: has them here.
        assembler: decodes into the session's slots.
    """

    listing: Listing
    catalog: DatasetCatalog
    cache: ShardCache
    assembler: Assembler

    async def together(
        self,
        batches: Sequence[BatchPlan],
        slots: Sequence[SlotRef],
        *,
        early: bool = False,
        pinned: Callable[[], object] = lambda: None,
    ) -> list[BatchReady]:
        """Decode batches of the same windows: their shards are pinned, looked up and read together.

        Args:
            batches: at least one.
            slots: one for each; the first ones are used where ``batches`` are fewer.
            early: see ``Assembler.fill``.
            pinned: called when their shards are here, before anything is decoded; perhaps twice.

        Raises:
            As ``Session.produce``.
        """
        several = BatchPlanGroup.of(batches)
        its = slots[: len(batches)]
        refs = [self.listing.refs[shard] for shard in several.shards]
        indexes = await self.catalog.indexes(self.listing, several.shards)

        def fill(files: tuple[ShardFile, ...]) -> Awaitable[list[BatchReady]]:
            pinned()
            return self.assembler.fill_together(several, its, indexes, files, early=early)

        return await with_pinned(self.cache, refs, fill)
