"""One consumer's opened dataset: from a cursor to a batch in a slot."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from feedd import metrics
from feedd.errors import FeeddError, NotFound, ObjectChanged
from feedd.notices import NoticeKind, notices_of
from feedd.sessions.job_sharing import SharedLeases
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from feedd.catalog.late_fields import LateFields
    from feedd.catalog.stages import Stages
    from feedd.flow.arena import Arena
    from feedd.ordering.batch_plan import BatchPlan, BatchRows
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.protocols import Slots
    from feedd.sessions.filling import Filling
    from feedd.sessions.job_sharing import SharedBatches
    from feedd.sessions.next_epoch_prefetch import NextEpochPrefetch
    from feedd.sessions.prefetch_driver import PrefetchDriver
    from feedd.values import BatchReady, SessionInfo, ShardFile, SlotRef


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session is made of: its plan, its view of the future, its arena.

    Attributes:
        arena: its own, or its leases in that of its group.
        shared: where its batches come from instead of being decoded for it alone.
        leave: gives that up.
        ahead: decodes the next epoch's first batches, and is then whose slots they are.
        leave_windows: gives up the windows that it sorted with other ranks.
        late: fields that its user is told of while they are found.
    """

    info: SessionInfo
    filling: Filling
    reader: AnyReader
    prefetch_driver: PrefetchDriver
    arena: Arena | SharedLeases
    shared: SharedBatches | None = None
    leave: Callable[[object], Awaitable[None]] | None = None
    ahead: NextEpochPrefetch | None = None
    leave_windows: Callable[[], None] = lambda: None
    late: LateFields | None = None


class Session:
    """Seam ``FeedSession``. Batches are independent: any number may be in production."""

    def __init__(self, parts: SessionParts, stages: Stages) -> None:
        self._parts = parts
        self._stages = stages
        self._making_count = 0
        self._coming: set[SlotRef] = set()  # of productions that nothing is decoded for yet
        self._under_way_count = 0  # slots of all productions
        self._furthest = Cursor(-1)
        self._ended_epoch = -1

    def take_part(self, shared: SharedBatches, leave: Callable[[object], Awaitable[None]]) -> None:
        """Take batches from a group from here on; ``leave`` is called when the session closes."""
        self._parts = replace(self._parts, shared=shared, leave=leave)

    def look_ahead(self, ahead: NextEpochPrefetch) -> None:
        """Have the next epoch's first batches decoded, in slots that are free, behind an epoch's last."""
        self._parts = replace(self._parts, ahead=ahead)

    @property
    def info(self) -> SessionInfo:
        """What Open answers; its notices grow while shards are read."""
        late = self._parts.late
        if late is not None and late.refresh():
            info = self._parts.info
            amounts = {notice.kind: notice.amount for notice in info.notices}
            notices = notices_of({**amounts, NoticeKind.LATE_FIELDS: late.amount})
            self._parts = replace(self._parts, info=replace(info, notices=notices))
        return self._parts.info

    @property
    def slots(self) -> Slots:
        """The session's arena."""
        return self._parts.arena if self._parts.ahead is None else self._parts.ahead

    def client_mapping(self) -> AbstractContextManager[int]:
        """Hand the memfd of the session's, or its group's, arena to one client; it counts until the exit."""
        return self._parts.arena.client_mapping()

    @property
    def stage(self) -> str:
        """What the batches under way wait for, in a word."""
        return "decoding" if self._under_way_count > len(self._coming) else "fetching"

    def keep_lent(self) -> None:
        """The client may go on reading what it holds: others must not write there."""
        if isinstance(self._parts.arena, SharedLeases):
            self._parts.arena.keep_lent()

    def steps(self, epoch: int) -> int | None:
        """Return the steps of an epoch of the rank, where they were known when it was opened."""
        return None if self._parts.info.steps is None else self._parts.reader.steps(epoch)

    async def produce(self, at: Cursor, slot: SlotRef) -> BatchReady | EpochEnd:
        """Decode the batch at ``at`` into ``slot``.

        Raises:
            ObjectChanged: a shard is no longer the version that was listed.
            BadShard, BadSample: the data is not what the recipe expects, beyond the failure budget.
            CacheTooSmall: the shards of one batch do not fit into the cache together.
            NotFound, PermissionDenied, StoreUnavailable: said by the store.
        """
        began_s = self._stages.clock.monotonic_s()
        self._start(at)
        self._coming.add(slot)
        self._under_way_count += 1
        try:
            with self._stale_listing_forgotten():
                drawn = await self._draw(at)
                if isinstance(drawn, EpochEnd):
                    return drawn
                batch = await self._made_ahead(slot) or await self._decode(drawn.rows(), slot)
        finally:
            self._making_count -= 1
            self._under_way_count -= 1
            self._come([slot])
        self._stages.recorder.observe(metrics.PIPELINE_BATCH_SECONDS, self._stages.clock.monotonic_s() - began_s)
        return batch

    async def produce_together(self, jobs: Sequence[tuple[Cursor, SlotRef]]) -> list[BatchReady | EpochEnd]:
        """Decode several batches of the same windows: their shards are pinned, looked up and read together.

        Raises:
            As ``produce``.
        """
        began_s = self._stages.clock.monotonic_s()
        ahead = self._parts.ahead
        if ahead is not None and ahead.holds(jobs[0][1]):
            return await self._hand_over(list(itertools.takewhile(lambda job: ahead.holds(job[1]), jobs)))
        before, slots = self._furthest, [slot for _, slot in jobs]
        self._start(jobs[0][0])  # looks whether this is another stream before it counts as under way
        self._coming.update(slots)
        self._under_way_count += len(slots)
        try:
            planned, ends = await self._plan_together(jobs)
            made = await self._decode_together(planned) if planned else []
        except Exception:
            if any(self._furthest == at for at, _ in jobs):
                self._furthest = before  # each is asked for again, alone, and that is no other stream
            raise
        finally:
            self._making_count -= 1
            self._under_way_count -= len(slots)
            self._come(slots)
        for _ in made:
            took_s = (self._stages.clock.monotonic_s() - began_s) / len(made)
            self._stages.recorder.observe(metrics.PIPELINE_BATCH_SECONDS, took_s)
        return [*made, *ends]

    async def _hand_over(self, jobs: Sequence[tuple[Cursor, SlotRef]]) -> list[BatchReady | EpochEnd]:
        """Return batches that were made ahead; what fails behind the first is asked for again, alone."""
        made: list[BatchReady | EpochEnd] = []
        for at, slot in jobs:
            before = self._furthest
            try:
                made.append(await self.produce(at, slot))
            except FeeddError:
                if not made:
                    raise
                self._furthest = before
                break
        return made

    async def close(self) -> None:
        """Withdraw wishes, take the arena from the workers, free it."""
        if self._parts.ahead is not None:
            await self._parts.ahead.close()
        if self._parts.leave is not None:
            await self._parts.leave(self._parts.arena if isinstance(self._parts.arena, SharedLeases) else self)
        await self._stages.inflight.withdraw(self)
        self._parts.prefetch_driver.close()
        self._parts.filling.assembler.close()
        self._parts.arena.close()
        self._parts.leave_windows()
        await self._parts.prefetch_driver.ended()  # the last: a worker may take its grace, and others need the memory

    def _start(self, at: Cursor) -> None:
        """Notice a stream that begins elsewhere than where the session stood: what to read ahead is then another."""
        furthest = self._furthest
        if furthest.epoch < 0 and self._parts.reader.window(at):
            self._parts.prefetch_driver.skip_to(at)
        elif at.epoch == furthest.epoch and at.step <= furthest.step and not self._making_count:
            self._parts.prefetch_driver.enter(at)  # within one stream steps only ascend, so this is another
            self._furthest, self._ended_epoch = at, -1
        if at.epoch != furthest.epoch or at.step > furthest.step:
            self._furthest = at
        self._making_count += 1

    def _come(self, slots: Iterable[SlotRef]) -> None:
        """Have no more productions wait for their shards; behind the last of an epoch the next one's are begun.

        What is decoded for one session is decoded in the order it was asked for: nothing made ahead is in the way.
        """
        self._coming.difference_update(slots)
        ahead, ended = self._parts.ahead, self._ended_epoch
        if ahead is not None and not self._coming and 0 <= ended == self._furthest.epoch:
            ahead.begin(ended + 1)

    async def _draw(self, at: Cursor) -> BatchPlan | EpochEnd:
        parts = self._parts
        drawn = await parts.filling.catalog.draw(parts.filling.listing, parts.reader, at)
        if isinstance(drawn, EpochEnd):
            (parts.shared or parts.filling.assembler).check_failures(at)
            self._count_end(at.epoch)
        else:
            parts.prefetch_driver.advance(at, drawn.first_window, drawn.last_window)
        return drawn

    def _count_end(self, epoch: int) -> None:
        """Count an epoch once, though every step planned beyond its end finds it over."""
        if epoch != self._ended_epoch:
            self._ended_epoch = epoch
            self._stages.recorder.count(metrics.PIPELINE_EPOCHS)
            self._stages.recorder.count(metrics.PIPELINE_LEFT_OUT, self._parts.info.left_out or 0)

    async def _plan_together(
        self, jobs: Sequence[tuple[Cursor, SlotRef]]
    ) -> tuple[list[tuple[BatchPlan, SlotRef]], list[EpochEnd]]:
        """Plan batches as long as they read the same windows, then ends; what follows is asked for again.

        What is returned is of the first jobs, one by one: a batch that was asked for behind an end stops it.
        """
        planned: list[tuple[BatchPlan, SlotRef]] = []
        ends: list[EpochEnd] = []
        ahead = self._parts.ahead
        for number, (at, slot) in enumerate(jobs):
            if number and ahead is not None and ahead.holds(slot):
                break
            before = self._furthest
            drawn = await self._planned(at)
            if isinstance(drawn, EpochEnd):
                ends.append(drawn)
            elif ends or (planned and drawn.last_window != planned[0][0].last_window):  # its shards may not be here yet
                if self._furthest == at:
                    self._furthest = before
                break
            else:
                planned.append((drawn, slot))
        return planned, ends

    async def _planned(self, at: Cursor) -> BatchPlan | EpochEnd:
        self._start(at)
        try:
            with self._stale_listing_forgotten():
                return await self._draw(at)
        finally:
            self._making_count -= 1

    async def _decode_together(self, jobs: Sequence[tuple[BatchPlan, SlotRef]]) -> list[BatchReady]:
        slots = [slot for _, slot in jobs]
        with self._stale_listing_forgotten():
            batches = [drawn for drawn, _ in jobs]
            return await self._parts.filling.together(batches, slots, pinned=lambda: self._come(slots))

    @contextlib.contextmanager
    def _stale_listing_forgotten(self) -> Iterator[None]:
        """Have the next session list anew where an object is no longer what its listing says."""
        try:
            yield
        except (ObjectChanged, NotFound):
            self._parts.filling.catalog.forget(self._parts.filling.listing)
            raise

    async def _made_ahead(self, slot: SlotRef) -> BatchReady | None:
        """Return the batch that was made in the slot before it was asked for; None: there is none."""
        ahead = self._parts.ahead
        made = None if ahead is None else await ahead.batch(slot)
        if made is not None:
            self._stages.recorder.count(metrics.PIPELINE_FILTERED, made.filtered)
        return made

    async def _decode(self, rows: BatchRows, slot: SlotRef) -> BatchReady:
        parts, its = self._parts, self._parts.filling
        turn = self._stages.inflight.turn()
        shards = rows.shards.tolist()
        refs = [its.listing.refs[shard] for shard in shards]
        indexes = await its.catalog.indexes(its.listing, shards)
        if isinstance(parts.arena, SharedLeases):
            assert parts.shared is not None, "leases without a group"
            return await parts.shared.lend(parts.arena, slot, rows, refs, indexes)
        if parts.shared is not None:
            return await parts.shared.batch(self, rows, refs, indexes, parts.arena.view(slot))

        def fill(files: tuple[ShardFile, ...]) -> Awaitable[BatchReady]:
            self._come([slot])
            return its.assembler.fill(rows, indexes, files, slot)

        return await self._stages.inflight.read(refs, rows, fill, self, turn)
