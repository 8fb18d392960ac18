"""Batches that one session decodes for itself into slots of its own arena, and what all makers of batches have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from feedd import metrics
from feedd.cache.pins import with_pinned
from feedd.dataset.pack_layout import is_pack
from feedd.errors import CacheUnavailable, FeeddError
from feedd.flow.runs import MadeRun

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from feedd.batching.assembler import Assembler
    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import DatasetView
    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import RunPlan, RunRows
    from feedd.protocols import Slots
    from feedd.sessions.next_epoch_prefetch import NextEpochPrefetch
    from feedd.shard_index import ShardIndex
    from feedd.values import BatchReady, Cursor, Produced, ShardFile, SlotRef

_T = TypeVar("_T")


class Batches(ABC):
    """Makes the batches of one session. The session decodes them itself, or gets them from its job group.

    Attributes:
        run_batches: batches of each slot.
        batch_bytes: bytes from one batch of a slot to the next; 0 if a slot holds one.
        shared_slot_count: slots shared with other sessions.
    """

    run_batches: int = 1
    batch_bytes: int = 0
    shared_slot_count: int = 0

    @property
    @abstractmethod
    def slots(self) -> Slots:
        """The slots that hold the batches."""

    @abstractmethod
    def client_mapping(self) -> AbstractContextManager[int]:
        """Lend the memfd of the batches to one client until the context ends; its memory counts until then."""

    @abstractmethod
    async def make(self, plans: Sequence[RunPlan], decoding: Callable[[], object]) -> Produced:
        """Return the batches of a run, in one slot. They end before a batch that cannot be made, with its error.

        Args:
            plans: up to ``run_batches`` batches of successive steps. A slot must be free.
            decoding: see ``BatchDecoder.decode``.

        Raises:
            As ``Session.produce``, if the first batch cannot be made. No slot is taken in that case.
        """

    @abstractmethod
    def release(self, slot: SlotRef) -> None:
        """Free the slot of batches that were made."""

    @abstractmethod
    def check_failures(self, at: Cursor) -> None:
        """Check that the epoch's steps up to ``at`` are within the failure budget; see ``Assembler``."""

    def epoch_ended(self, epoch: int) -> None:  # noqa: B027 - most makers decode nothing in advance
        """Start to decode the next epoch in advance: all batches of ``epoch`` are made or being decoded."""

    def retain_leased(self) -> None:  # noqa: B027 - needed only if others write to the arena
        """Keep leased slots out of use, because the client may go on reading them."""

    @abstractmethod
    async def close(self) -> None:
        """Cancel running decodes, and free or leave the memory."""


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

    async def decode(
        self,
        plan: RunPlan,
        slot: SlotRef,
        owner: object,
        *,
        early: bool = False,
        decoding: Callable[[], object] = lambda: None,
        first: int = 0,
    ) -> list[tuple[BatchReady, int]]:
        """Decode a run of batches into a slot; see ``Assembler.fill`` for the result.

        A table that got another layout meanwhile is looked up again, once.

        Args:
            plan: up to ``assembler.run_batches`` batches.
            slot: the slot.
            owner: owner of the reads. Unless ``early`` is set, it must withdraw from ``stages.inflight`` in the end.
            early: waits for whole shards; see ``Assembler.fill``.
            decoding: called when the shards have arrived and before decoding starts; perhaps twice.
            first: the place of the first batch in the slot.

        Raises:
            As ``Session.produce``.
        """
        if plan.first_rows_of and is_pack(self.view.refs[plan.shards[0]]):
            plan = plan.by_row()  # a pack is read before it is whole, so it must be told which samples are needed
        run, cache, ticket = plan.by_shard(), self.stages.cache, self.stages.inflight.ticket()
        misjudged_count = cache.misjudged_count

        def fill(
            indexes: Sequence[ShardIndex], files: tuple[ShardFile, ...]
        ) -> Awaitable[list[tuple[BatchReady, int]]]:
            decoding()
            return self.assembler.fill(run, slot, indexes, files, early=early, first=first)

        try:
            return await self._read(run, fill, owner, ticket, early=early)
        except CacheUnavailable:
            if cache.misjudged_count == misjudged_count:
                raise
        return await self._read(run, fill, owner, ticket, early=early)

    async def _read(
        self,
        run: RunRows,
        fill: Callable[[Sequence[ShardIndex], tuple[ShardFile, ...]], Awaitable[_T]],
        owner: object,
        ticket: int,
        *,
        early: bool,
    ) -> _T:
        """Return the result of ``fill`` for the indexes and files of a run's shards."""
        cache = self.stages.cache
        refs = [self.view.refs[shard] for shard in run.shards]
        misjudged_count = cache.misjudged_count
        indexes = await self.catalog.indexes(self.view, run.shards)

        def read(files: tuple[ShardFile, ...]) -> Awaitable[_T]:
            if cache.misjudged_count != misjudged_count:
                raise CacheUnavailable("a table got another layout while a batch waited for it", stage="cache")
            return fill(indexes, files)

        if early:
            return await with_pinned(cache, refs, read)
        return await self.stages.inflight.read(refs, run, read, owner, ticket)


class OwnBatches(Batches):
    """The batches of a session that decodes for itself.

    Attributes:
        prefetch: decodes the next epoch's first batches into free slots.
    """

    def __init__(self, arena: Arena, decoder: BatchDecoder, prefetch: NextEpochPrefetch, stride: int = 1) -> None:
        """Bind; ``stride``: steps from one batch to the next, because the session's consumer takes every so many."""
        self.prefetch = prefetch
        self.run_batches = decoder.assembler.run_batches
        self.batch_bytes = decoder.assembler.batch_bytes
        self._arena = arena
        self._decoder = decoder
        self._stride = stride

    @property
    def slots(self) -> Arena:
        """The session's arena."""
        return self._arena

    def client_mapping(self) -> AbstractContextManager[int]:
        """Lend the arena's memfd to the client; see ``Batches``."""
        return self._arena.client_mapping()

    async def make(self, plans: Sequence[RunPlan], decoding: Callable[[], object]) -> Produced:
        """Return the batches that were decoded in advance, or decode them; see ``Batches.make``."""
        early = await self.prefetch.take_run(plans[0].cursor, sum(map(len, plans)))
        if early is not None:
            if early.batch.filtered:
                self._decoder.stages.recorder.count(metrics.PIPELINE_FILTERED, early.batch.filtered)
            return early
        run = MadeRun(await self.prefetch.take(), self._stride)
        try:
            for plan in plans:
                await self._add(run, plan, decoding)
            return run.produced()
        except BaseException:
            self.release(run.slot)
            raise

    async def _add(self, run: MadeRun, plan: RunPlan, decoding: Callable[[], object]) -> None:
        """Decode batches into the slot of a run: together, or one by one if that fails, to get those before the bad."""
        if run.failure is not None:
            return
        try:
            made = await self._decoder.decode(plan, run.slot, self, decoding=decoding, first=run.count)
        except FeeddError as error:
            if len(plan) == 1:
                run.failure = error
                return
            for one in plan.batches():
                await self._add(run, one, decoding)
            return
        for batch, count in made:
            run.add(batch, count)

    def release(self, slot: SlotRef) -> None:
        """Free the slot."""
        freed = self._arena.give_back(slot)
        assert freed, f"slot {slot.index} was given back twice"
        self.prefetch.begin_next()

    def check_failures(self, at: Cursor) -> None:
        """Ask the assembler, which has the failure budget."""
        self._decoder.assembler.check_failures(at)

    def epoch_ended(self, epoch: int) -> None:
        """Start to decode the next epoch into free slots."""
        self.prefetch.begin(epoch + 1)

    async def close(self) -> None:
        """Cancel running decodes, detach the arena from the workers and free it."""
        await self.prefetch.close()
        await self._decoder.stages.inflight.withdraw(self)
        self._decoder.assembler.close()
        self._arena.close()
