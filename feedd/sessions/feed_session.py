"""One consumer's opened dataset: from steps to batches in slots."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from feedd import metrics
from feedd.errors import NotFound, ObjectChanged
from feedd.notices import NoticeKind, notices_of
from feedd.sessions.own_batches import plan_leading
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.catalog.late_fields import LateFields
    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import Listing
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.protocols import Produced, Slots
    from feedd.sessions.group_members import SharedCopies, SharedLeases
    from feedd.sessions.own_batches import OwnBatches
    from feedd.sessions.prefetch_driver import PrefetchDriver
    from feedd.values import SessionInfo, SlotRef

    Batches = OwnBatches | SharedCopies | SharedLeases


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session is made of: its plan, its view of the future, its batches.

    Attributes:
        catalog: knows the listing's shards.
        listing: what it reads.
        reader: its plan.
        batches: makes them in its slots.
        leave_windows: gives up the windows that it sorted with other ranks.
        late: fields that its user is told of while they are found.
    """

    info: SessionInfo
    catalog: DatasetCatalog
    listing: Listing
    reader: AnyReader
    prefetch_driver: PrefetchDriver
    batches: Batches
    leave_windows: Callable[[], None] = lambda: None
    late: LateFields | None = None


class Session:
    """Seam ``FeedSession``. Batches are independent: any number may be in production."""

    def __init__(self, parts: SessionParts, stages: Stages) -> None:
        self._parts = parts
        self._stages = stages
        self._calls: set[object] = set()  # of produce, under way
        self._fetching: set[object] = set()  # those of them that nothing is decoded for yet
        self._furthest = Cursor(-1)
        self._ended_epoch = -1

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
        """The memory of its batches."""
        return self._parts.batches.slots

    def client_mapping(self) -> AbstractContextManager[int]:
        """Hand the memfd of the session's, or its group's, arena to one client; it counts until the exit."""
        return self._parts.batches.slots.client_mapping()

    @property
    def stage(self) -> str:
        """What the batches under way wait for, in a word."""
        return "decoding" if self._calls > self._fetching else "fetching"

    def keep_lent(self) -> None:
        """The client may go on reading what it holds: others must not write there."""
        self._parts.batches.keep_lent()

    def steps(self, epoch: int) -> int | None:
        """Return the steps of an epoch of the rank, where they were known when it was opened."""
        return None if self._parts.info.steps is None else self._parts.reader.steps(epoch)

    async def produce(self, steps: Sequence[Cursor]) -> list[Produced | EpochEnd]:
        """Make the batches of the leading steps: those of one window, all decoded in advance or none. Then ends.

        Raises:
            ObjectChanged: a shard is no longer the version that was listed.
            BadShard, BadSample: the data is not what the recipe expects, beyond the failure budget.
            CacheTooSmall: the shards of the batches do not fit into the cache together.
            NotFound, PermissionDenied, StoreUnavailable: said by the store.
        """
        began_s = self._stages.clock.monotonic_s()
        before, call = self._furthest, object()
        self._start(steps[0])  # looks whether this is another stream before the call counts as under way
        self._calls.add(call)
        self._fetching.add(call)
        try:
            with self._stale_listing_forgotten():
                plans, ends = await plan_leading(steps, self._draw)
                made = await self._parts.batches.make(plans, lambda: self._decoding(call)) if plans else []
        except Exception:
            if len(steps) > 1 and self._furthest in steps:
                self._furthest = before  # each is asked for again, alone, and that is no other stream
            raise
        finally:
            self._calls.remove(call)
            self._decoding(call)
        for _ in made:
            took_s = (self._stages.clock.monotonic_s() - began_s) / len(made)
            self._stages.recorder.observe(metrics.PIPELINE_BATCH_SECONDS, took_s)
        found = [*made, *(ends if len(made) == len(plans) else ())]
        if self._furthest in steps[len(found) :]:
            self._furthest = steps[len(found) - 1]  # those after it are asked for again
        return found

    def release(self, slot: SlotRef) -> None:
        """Free the slot of a batch that was produced."""
        self._parts.batches.release(slot)

    async def close(self) -> None:
        """Withdraw wishes, take the arena from the workers, free it."""
        await self._parts.batches.close()
        self._parts.prefetch_driver.close()
        self._parts.leave_windows()
        await self._parts.prefetch_driver.ended()  # the last: a worker may take its grace, and others need the memory

    def _start(self, at: Cursor) -> None:
        """Notice a stream that begins elsewhere than where the session stood: what to read ahead is then another."""
        furthest = self._furthest
        if furthest.epoch < 0 and self._parts.reader.window(at):
            self._parts.prefetch_driver.skip_to(at)
        elif at.epoch == furthest.epoch and at.step <= furthest.step and not self._calls:
            self._parts.prefetch_driver.enter(at)  # within one stream steps only ascend, so this is another
            self._furthest, self._ended_epoch = at, -1
        self._reach(at)

    def _reach(self, at: Cursor) -> None:
        furthest = self._furthest
        if at.epoch != furthest.epoch or at.step > furthest.step:
            self._furthest = at

    def _decoding(self, call: object) -> None:
        """Have a call wait for its shards no more; behind the last of an epoch the next one's batches are begun.

        What is decoded for one session is decoded in the order it was asked for: nothing made ahead is in the way.
        """
        self._fetching.discard(call)
        ended = self._ended_epoch
        if not self._fetching and 0 <= ended == self._furthest.epoch:
            self._parts.batches.epoch_ended(ended)

    async def _draw(self, at: Cursor) -> BatchPlan | EpochEnd:
        parts = self._parts
        self._reach(at)
        drawn = await parts.catalog.draw(parts.listing, parts.reader, at)
        if isinstance(drawn, EpochEnd):
            parts.batches.check_failures(at)
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

    @contextlib.contextmanager
    def _stale_listing_forgotten(self) -> Iterator[None]:
        """Have the next session list anew where an object is no longer what its listing says."""
        try:
            yield
        except (ObjectChanged, NotFound):
            self._parts.catalog.forget(self._parts.listing)
            raise
