"""Batches that one session decodes for itself into slots of its own arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from feedd import metrics
from feedd.cache.pins import with_pinned
from feedd.dataset.pack_layout import is_pack
from feedd.errors import CacheUnavailable, FeeddError
from feedd.flow.runs import MadeRun
from feedd.ordering.batch_plan import AnyRunPlan, BatchPlanGroup, SpanPlan
from feedd.values import EpochEnd, Produced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.batching.assembler import Assembler
    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import DatasetView
    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.sessions.next_epoch_prefetch import NextEpochPrefetch
    from feedd.shard_index import ShardIndex
    from feedd.values import BatchReady, Cursor, SessionInfo, ShardFile, SlotRef

_T = TypeVar("_T")


async def plan_leading(
    steps: Sequence[Cursor],
    draw: Callable[[Cursor], Awaitable[BatchPlan | EpochEnd]],
    waits: Callable[[Cursor], bool],
) -> tuple[list[BatchPlan], list[EpochEnd]]:
    """Plan at least one leading step: batches that end in the same window, then ends of the epoch.

    The client asks for the other steps again. The shards of another window may not have arrived, and no batch follows
    an end of the epoch. Only the first step is waited for: else its batch would wait for the shards of later ones.

    Args:
        steps: the steps.
        draw: plans a step.
        waits: whether ``draw`` would have to wait.

    Raises:
        As ``draw`` does.
    """
    plans: list[BatchPlan] = []
    ends: list[EpochEnd] = []
    for at in steps:
        if (plans or ends) and waits(at):
            break
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

    @property
    def batches_in_advance(self) -> int:
        """Number of batches to decode together that nobody has requested: several if they are little work."""
        return self.assembler.batches_per_call if self.assembler.call_sizes is None else 1

    async def decode(
        self,
        plans: Sequence[BatchPlan],
        slots: Sequence[SlotRef],
        owner: object,
        *,
        early: bool = False,
        decoding: Callable[[], object] = lambda: None,
        first: int = 0,
    ) -> list[BatchReady]:
        """Decode batches, each into its slot. Their shards are pinned, looked up and read together.

        Args:
            plans: up to ``assembler.batches_per_call`` batches, or some of a run.
            slots: one for each batch, or one for a run of several.
            first: where slots hold runs, the place of the first batch in its run.
            owner: owner of the reads. Unless ``early`` is set, it must withdraw from ``stages.inflight`` in the end.
            early: waits for whole shards; see ``Assembler.fill``.
            decoding: called when the shards have arrived and before decoding starts; perhaps twice.

        Raises:
            As ``Session.produce``.
        """
        group = BatchPlanGroup.of(plans)

        def fill(indexes: Sequence[ShardIndex], files: tuple[ShardFile, ...]) -> Awaitable[list[BatchReady]]:
            decoding()
            return self.assembler.fill(group, slots, indexes, files, early=early, first=first)

        return await self._read(group, fill, owner, early=early)

    async def _read(
        self,
        group: BatchPlanGroup,
        fill: Callable[[Sequence[ShardIndex], tuple[ShardFile, ...]], Awaitable[_T]],
        owner: object,
        *,
        early: bool,
    ) -> _T:
        """Return the result of ``fill`` for the indexes and files of a group's shards.

        A table that got another layout meanwhile is looked up again, once.
        """
        cache, ticket = self.stages.cache, self.stages.inflight.ticket()
        misjudged_count = cache.misjudged_count
        try:
            return await self._read_once(group, fill, owner, ticket, early=early)
        except CacheUnavailable:
            if cache.misjudged_count == misjudged_count:
                raise
        return await self._read_once(group, fill, owner, ticket, early=early)

    async def _read_once(
        self,
        group: BatchPlanGroup,
        fill: Callable[[Sequence[ShardIndex], tuple[ShardFile, ...]], Awaitable[_T]],
        owner: object,
        ticket: int,
        *,
        early: bool,
    ) -> _T:
        cache = self.stages.cache
        refs = [self.view.refs[shard] for shard in group.shards]
        misjudged_count = cache.misjudged_count
        indexes = await self.catalog.indexes(self.view, group.shards)

        def read(files: tuple[ShardFile, ...]) -> Awaitable[_T]:
            if cache.misjudged_count != misjudged_count:
                raise CacheUnavailable("a table got another layout while a batch waited for it", stage="cache")
            return fill(indexes, files)

        if early:
            return await with_pinned(cache, refs, read)
        return await self.stages.inflight.read(refs, group, read, owner, ticket)

    async def decode_run(
        self,
        run: AnyRunPlan,
        slot: SlotRef,
        owner: object,
        *,
        early: bool = False,
        decoding: Callable[[], object] = lambda: None,
        first: int = 0,
    ) -> BatchReady | None:
        """Copy the batches of a run into a slot; see ``PlainBatches.fill_run`` for the result.

        Args:
            run: the batches.
            slot: the slot.
            owner: see ``decode``.
            early: see ``decode``.
            decoding: see ``decode``.
            first: the place of the run's first batch in the slot.

        Raises:
            As ``Session.produce``.
        """
        if isinstance(run, SpanPlan) and is_pack(self.view.refs[run.shard]):
            run = run.expanded()  # a pack is read before it is whole, so it must be told which samples are needed
        group = BatchPlanGroup.of_run(run)

        def fill(indexes: Sequence[ShardIndex], files: tuple[ShardFile, ...]) -> Awaitable[BatchReady | None]:
            decoding()
            return self.assembler.plain.fill_run(run, group, slot, indexes, files, early=early, first=first)

        return await self._read(group, fill, owner, early=early)


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
        self._making_count = 0  # batches of running calls of ``make``

    @property
    def batches_per_call(self) -> int:
        """Batches per call of ``make``."""
        return self._decoder.assembler.batches_per_call

    @property
    def shared_slot_count(self) -> int:
        """Slots shared with other sessions: 0."""
        return 0

    def sized(self, info: SessionInfo, *, fetching: bool) -> SessionInfo:
        """Return the session's info with the number of batches to request together now.

        A batch waits for its own shards. Batches that are made together wait for all of theirs. So while any shard is
        missing (``fetching``), batches are requested one by one.
        """
        sizes = self._decoder.assembler.call_sizes
        return info if sizes is None else sizes.applied(info, 0 if fetching else self._making_count)

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
        self._making_count += len(plans)
        try:
            while len(slots) < len(plans):
                slots.append(await self.prefetch.take())
            batches = await self._decoder.decode(plans, slots, self, decoding=decoding)
        except BaseException:
            for slot in slots:
                self.release(slot)
            raise
        finally:
            self._making_count -= len(plans)
        return [Produced(batch, slot) for batch, slot in zip(batches, slots, strict=True)]

    @property
    def run_batches(self) -> int:
        """Batches of each slot."""
        return self._decoder.assembler.plain.run_batches

    @property
    def batch_bytes(self) -> int:
        """Bytes from one batch of a slot to the next; 0 if a slot holds one."""
        return self._decoder.assembler.plain.batch_bytes

    async def make_run(self, plans: Sequence[AnyRunPlan | BatchPlan], decoding: Callable[[], object]) -> Produced:
        """Return the batches of a run, in one slot. They end before a batch that cannot be made, with its error.

        Args:
            plans: up to ``run_batches`` batches of successive steps.
            decoding: see ``BatchDecoder.decode``.

        Raises:
            As ``Session.produce``, if the first batch cannot be made. No slot is taken in that case.
        """
        count = sum(len(plan) if isinstance(plan, AnyRunPlan) else 1 for plan in plans)
        if (early := self.prefetch.take_run(plans[0].cursor, count)) and (made := await self.prefetch.collect(early)):
            return made[0]
        slot = await self.prefetch.take()
        run = MadeRun(slot)
        try:
            await self._fill_run(run, plans, decoding)
            return run.produced()
        except BaseException:
            self.release(slot)
            raise

    async def _fill_run(
        self,
        run: MadeRun,
        plans: Sequence[AnyRunPlan | BatchPlan],
        decoding: Callable[[], object],
    ) -> None:
        for plan in plans:
            if run.failure is not None:
                return
            if isinstance(plan, AnyRunPlan):
                try:
                    batch = await self._decoder.decode_run(plan, run.slot, self, decoding=decoding, first=run.count)
                except FeeddError:
                    batch = None  # made one by one, one of its batches shows why
                if batch is not None:
                    run.add(batch, len(plan))
                else:
                    await self._decode_each(run, plan.plans(), decoding)
            else:
                await self._decode_each(run, [plan], decoding)

    async def _decode_each(self, run: MadeRun, plans: Sequence[BatchPlan], decoding: Callable[[], object]) -> None:
        """Decode batches of one window together, or one by one if one of them fails."""
        groups = [plans] if len(plans) == 1 else [plans, *([plan] for plan in plans)]
        for group in groups:
            try:
                made = await self._decoder.decode(group, [run.slot], self, decoding=decoding, first=run.count)
            except FeeddError as error:
                if len(group) == 1:
                    run.failure = error
                    return
                continue
            for batch in made:
                run.add(batch)
            if group is plans:
                return

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
