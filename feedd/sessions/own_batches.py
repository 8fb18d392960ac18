"""Batches that one session decodes for itself into slots of its own arena."""

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
    from feedd.dataset.listing import DatasetView
    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.sessions.next_epoch_prefetch import NextEpochPrefetch
    from feedd.values import BatchReady, Cursor, ShardFile, SlotRef


async def plan_leading(
    steps: Sequence[Cursor], draw: Callable[[Cursor], Awaitable[BatchPlan | EpochEnd]]
) -> tuple[list[BatchPlan], list[EpochEnd]]:
    """Plan at least one leading step: batches that end in the same window, then ends of the epoch.

    The client asks for the other steps again. The shards of another window may not have arrived, and no batch follows
    an end of the epoch.

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
        stages: the stages; their cache has the shards.
        catalog: has the indexes of the shards.
        view: the shards.
        assembler: decodes into the slots of one arena.
    """

    stages: Stages
    catalog: DatasetCatalog
    view: DatasetView
    assembler: Assembler

    async def draw(self, reader: AnyReader, at: Cursor) -> BatchPlan | EpochEnd:
        """Return the plan of ``reader`` for a step, after the shards that the plan needs are indexed.

        Raises:
            ObjectChanged: see ``DatasetCatalog.indexes``.
        """
        return await self.catalog.draw(self.view, reader, at)

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
            plans: up to ``assembler.batches_per_call`` batches.
            slots: one for each batch.
            owner: owner of the reads. Unless ``early`` is set, it must withdraw from ``stages.inflight`` in the end.
            early: waits for whole shards; see ``Assembler.fill``.
            decoding: called when the shards have arrived and before decoding starts; perhaps twice.

        Raises:
            As ``Session.produce``.
        """
        ticket = self.stages.inflight.ticket()
        group = BatchPlanGroup.of(plans)
        refs = [self.view.refs[shard] for shard in group.shards]
        indexes = await self.catalog.indexes(self.view, group.shards)

        def fill(files: tuple[ShardFile, ...]) -> Awaitable[list[BatchReady]]:
            decoding()
            return self.assembler.fill(group, slots, indexes, files, early=early)

        if early:
            return await with_pinned(self.stages.cache, refs, fill)
        return await self.stages.inflight.read(refs, group, fill, owner, ticket)


class OwnBatches:
    """The batches of a session that decodes for itself, and the slots that hold them.

    Attributes:
        slots: the session's arena.
        prefetch: decodes the next epoch's first batches into free slots.
    """

    def __init__(self, arena: Arena, decoder: BatchDecoder, prefetch: NextEpochPrefetch) -> None:
        self.slots = arena
        self.prefetch = prefetch
        self._decoder = decoder

    @property
    def batches_per_call(self) -> int:
        """Batches per call of ``make``."""
        return self._decoder.assembler.batches_per_call

    @property
    def shared_slot_count(self) -> int:
        """Slots shared with other sessions: 0."""
        return 0

    async def make(self, plans: Sequence[BatchPlan], decoding: Callable[[], object]) -> list[Produced]:
        """Return at least one leading batch: the batches decoded in advance, or else the batches that were not.

        Args:
            plans: up to ``batches_per_call`` batches; as many slots are free.
            decoding: see ``BatchDecoder.decode``.

        Raises:
            As ``Session.produce``. No slot is taken in that case.
        """
        plans, early = self.prefetch.split(plans)
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
        """Free the slot of a batch."""
        freed = self.slots.give_back(slot)
        assert freed, f"slot {slot.index} was given back twice"
        self.prefetch.begin_next()

    def check_failures(self, at: Cursor) -> None:
        """Check that the epoch's steps up to ``at`` are within the failure budget; see ``Assembler``."""
        self._decoder.assembler.check_failures(at)

    def epoch_ended(self, epoch: int) -> None:
        """Start to decode the next epoch, because all batches of this one are made or being decoded."""
        self.prefetch.begin(epoch + 1)

    def retain_leased(self) -> None:
        """Do nothing: no other session writes to this arena."""

    async def close(self) -> None:
        """Cancel running decodes, detach the arena from the workers and free it."""
        await self.prefetch.close()
        await self._decoder.stages.inflight.withdraw(self)
        self._decoder.assembler.close()
        self.slots.close()
