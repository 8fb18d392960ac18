"""Batches that one session decodes for itself: from plans to filled slots of its own arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd import metrics
from feedd.cache.pinned_reads import with_pinned
from feedd.ordering.batch_plan import BatchPlanGroup
from feedd.protocols import Produced
from feedd.values import EpochEnd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.batching.assembler import Assembler
    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import Listing
    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.sessions.next_epoch_prefetch import NextEpochPrefetch
    from feedd.values import BatchReady, Cursor, ShardFile, SlotRef


async def plan_leading(
    steps: Sequence[Cursor], draw: Callable[[Cursor], Awaitable[BatchPlan | EpochEnd]]
) -> tuple[list[BatchPlan], list[EpochEnd]]:
    """Plan the leading steps, one at least: batches that end in the same window, then ends of the epoch.

    The others are asked for again. The shards of another window may not be here yet, and no batch follows an end.

    Raises:
        As ``draw`` does.
    """
    plans: list[BatchPlan] = []
    ends: list[EpochEnd] = []
    for at in steps:
        found = await draw(at)
        if isinstance(found, EpochEnd):
            ends.append(found)
        elif ends or (plans and found.last_window != plans[0].last_window):
            break
        else:
            plans.append(found)
    return plans, ends


@dataclass(frozen=True, slots=True)
class BatchDecoder:
    """Decodes batches of one dataset.

    Attributes:
        stages: the cache has the shards.
        catalog: knows where samples lie in them.
        listing: the shards.
        assembler: decodes into the slots of one arena.
    """

    stages: Stages
    catalog: DatasetCatalog
    listing: Listing
    assembler: Assembler

    async def draw(self, reader: AnyReader, at: Cursor) -> BatchPlan | EpochEnd:
        """Return what ``reader`` plans for a step, once the shards that it must know are indexed.

        Raises:
            ObjectChanged: see ``DatasetCatalog.indexes``.
        """
        return await self.catalog.draw(self.listing, reader, at)

    async def decode(
        self,
        plans: Sequence[BatchPlan],
        slots: Sequence[SlotRef],
        owner: object,
        *,
        early: bool = False,
        decoding: Callable[[], object] = lambda: None,
    ) -> list[BatchReady]:
        """Decode batches, each into its slot. Their shards are pinned, looked up and read together.

        Args:
            plans: up to ``assembler.at_once`` batches.
            slots: one for each.
            owner: for whom; has to withdraw from ``stages.inflight`` in the end, unless all is early.
            early: see ``Assembler.fill``; waits for whole shards.
            decoding: called when the shards are here, before anything is decoded; perhaps twice.

        Raises:
            As ``Session.produce``.
        """
        turn = self.stages.inflight.turn()
        group = BatchPlanGroup.of(plans)
        refs = [self.listing.refs[shard] for shard in group.shards]
        indexes = await self.catalog.indexes(self.listing, group.shards)

        def fill(files: tuple[ShardFile, ...]) -> Awaitable[list[BatchReady]]:
            decoding()
            return self.assembler.fill(group, slots, indexes, files, early=early)

        if early:
            return await with_pinned(self.stages.cache, refs, fill)
        return await self.stages.inflight.read(refs, group, fill, owner, turn)


class OwnBatches:
    """The batches of a session that decodes for itself, and the slots they are made in.

    Attributes:
        slots: the session's arena.
        prefetch: decodes the next epoch's first batches into slots that are free.
    """

    def __init__(self, arena: Arena, decoder: BatchDecoder, prefetch: NextEpochPrefetch) -> None:
        self.slots = arena
        self.prefetch = prefetch
        self._decoder = decoder

    @property
    def at_once(self) -> int:
        """How many batches are best made together."""
        return self._decoder.assembler.at_once

    @property
    def shared_slot_count(self) -> int:
        """0: no other session reads this arena."""
        return 0

    async def make(self, plans: Sequence[BatchPlan], decoding: Callable[[], object]) -> list[Produced]:
        """Return the leading ones of some batches, one at least: those decoded in advance, or else those that are not.

        Args:
            plans: up to ``at_once`` batches, for which as many slots are free.
            decoding: see ``BatchDecoder.decode``.

        Raises:
            As ``Session.produce``. No slot is then taken.
        """
        plans, early = self.prefetch.claim(plans)
        if early and (made := await self.prefetch.collect(early)):
            filtered = sum(one.batch.filtered for one in made)
            if filtered:
                self._decoder.stages.recorder.count(metrics.PIPELINE_FILTERED, filtered)
            return made
        slots: list[SlotRef] = []
        try:
            while len(slots) < len(plans):
                slots.append(await self.prefetch.take())
            batches = await self._decoder.decode(plans, slots, self, decoding=decoding)
        except BaseException:
            for slot in slots:
                self.release(slot)
            raise
        return [Produced(batch, slot) for batch, slot in zip(batches, slots, strict=True)]

    def release(self, slot: SlotRef) -> None:
        """Free the slot of a batch that was made."""
        freed = self.slots.give_back(slot)
        assert freed, f"slot {slot.index} was given back twice"
        self.prefetch.begin_next()

    def check_failures(self, at: Cursor) -> None:
        """Make sure that the epoch's steps up to ``at`` are within the failure budget; see ``Assembler``."""
        self._decoder.assembler.check_failures(at)

    def epoch_ended(self, epoch: int) -> None:
        """Begin the next epoch: all batches of this one are made, or being decoded."""
        self.prefetch.begin(epoch + 1)

    def keep_lent(self) -> None:
        """Do nothing: no other session writes to this arena."""

    async def close(self) -> None:
        """End what is under way, take the arena from the workers, free it."""
        await self.prefetch.close()
        await self._decoder.stages.inflight.withdraw(self)
        self._decoder.assembler.close()
        self.slots.close()
