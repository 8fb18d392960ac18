"""One consumer's opened dataset: makes the batches of steps in slots."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from feedd import metrics
from feedd.dataset.pack_layout import is_pack
from feedd.errors import FeeddError, NotFound, ObjectChanged
from feedd.notices import NoticeKind, notices_of
from feedd.ordering.batch_plan import AnyRunPlan, shards_in
from feedd.sessions.own_batches import OwnBatches, plan_leading
from feedd.sessions.prefetch_driver import RunningCalls
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.catalog.late_fields import LateFields
    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import DatasetView
    from feedd.ordering.batch_plan import BatchPlan
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.protocols import Slots
    from feedd.sessions.group_members import SharedCopies, SharedLeases
    from feedd.sessions.prefetch_driver import PrefetchDriver
    from feedd.values import Produced, SessionInfo, SlotRef

    Batches = OwnBatches | SharedCopies | SharedLeases


@dataclass(frozen=True, slots=True)
class SessionParts:
    """The parts of a session.

    Attributes:
        info: the answer to Open.
        catalog: has the indexes of the listing's shards.
        view: the shards of the session.
        reader: plans the batches.
        prefetch_driver: announces future reads to the cache.
        batches: makes the batches in slots.
        leave_windows: gives up the sorted windows that the session shares with other ranks.
        late: fields that were found after the session opened; its user is told about them.
    """

    info: SessionInfo
    catalog: DatasetCatalog
    view: DatasetView
    reader: AnyReader
    prefetch_driver: PrefetchDriver
    batches: Batches
    leave_windows: Callable[[], None] = lambda: None
    late: LateFields | None = None


class Session:
    """Implements ``FeedSession``. Batches are independent: any number may be in production."""

    def __init__(self, parts: SessionParts, stages: Stages) -> None:
        self._parts = parts
        self._stages = stages
        self._calls = RunningCalls(parts.prefetch_driver)
        self._fetching: set[object] = set()  # calls that wait for their shards
        self._furthest = Cursor(-1)
        self._ended_epoch = -1

    @property
    def info(self) -> SessionInfo:
        """The answer to Open. Its notices grow while shards are read, and its ``batches_per_call`` changes."""
        late = self._parts.late
        if late is not None and late.refresh():
            info = self._parts.info
            amounts = {notice.kind: notice.amount for notice in info.notices}
            notices = notices_of({**amounts, NoticeKind.LATE_FIELDS: late.amount})
            self._parts = replace(self._parts, info=replace(info, notices=notices))
        return self._parts.batches.sized(self._parts.info, fetching=bool(self._fetching))

    @property
    def slots(self) -> Slots:
        """The slots that hold the session's batches."""
        return self._parts.batches.slots

    def client_mapping(self) -> AbstractContextManager[int]:
        """Lend the memfd of the arena to one client until the context ends; its memory counts until then."""
        return self._parts.batches.slots.client_mapping()

    @property
    def stage(self) -> str:
        """Return ``fetching`` or ``decoding``: the stage that running calls of ``produce`` are in."""
        return "decoding" if len(self._calls) > len(self._fetching) else "fetching"

    def retain_leased(self) -> None:
        """Keep leased slots out of use, because the client may go on reading them."""
        self._parts.batches.retain_leased()

    def steps(self, epoch: int) -> int | None:
        """Return the rank's steps in an epoch, or None if they were unknown when the session opened."""
        return None if self._parts.info.steps is None else self._parts.reader.steps(epoch)

    async def produce(self, steps: Sequence[Cursor]) -> list[Produced | EpochEnd]:
        """Make the batches of the leading steps, then the ends of the epoch.

        The batches belong to one window. Either all or none of them were decoded in advance.

        Raises:
            ObjectChanged: a shard is no longer the version that was listed.
            BadShard, BadSample: the data does not match the recipe, and the failure budget is spent.
            CacheTooSmall: the shards of the batches do not fit into the cache together.
            NotFound, PermissionDenied, StoreUnavailable: raised by the store.
        """
        began_s = self._stages.clock.monotonic_s()
        before, call = self._furthest, object()
        self._start(steps[0])  # detects a new stream, so it runs before this call is counted
        self._calls.begin(call)
        self._fetching.add(call)
        try:
            with self._stale_listing_forgotten():
                waits = partial(self._parts.catalog.waits, self._parts.reader)
                plans, ends = await plan_leading(steps, partial(self._draw, call), waits)
                if plans:
                    await self._wait_for_earlier(call, plans)
                made = await self._parts.batches.make(plans, lambda: self._pinned(call)) if plans else []
        except Exception:
            if len(steps) > 1 and self._furthest in steps:
                self._furthest = before  # the client asks for each step again; that is no new stream
            raise
        finally:
            self._ended(call)
        if made:
            took_s = (self._stages.clock.monotonic_s() - began_s) / len(made)
            self._stages.recorder.observe(metrics.PIPELINE_BATCH_SECONDS, took_s, len(made))
        found = [*made, *(ends if len(made) == len(plans) else ())]
        if self._furthest in steps[len(found) :]:
            self._furthest = steps[len(found) - 1]  # the client asks for later steps again
        return found

    async def produce_run(self, at: Cursor, count: int) -> Produced | EpochEnd:
        """Make the batches of ``count`` steps from ``at`` on in one slot; fewer if the epoch ends or a batch fails.

        Raises:
            As ``produce``, if the first batch cannot be made.
        """
        batches = self._parts.batches
        assert isinstance(batches, OwnBatches), "a session that shares batches has no runs"
        began_s = self._stages.clock.monotonic_s()
        call = object()
        self._start(at)  # detects a new stream, so it runs before this call is counted
        self._calls.begin(call)
        self._fetching.add(call)
        try:
            with self._stale_listing_forgotten():
                plans, end = await self._draw_run(call, at, count)
                if not plans:
                    if isinstance(end, EpochEnd):
                        return end
                    assert end is not None
                    raise end
                await self._wait_for_earlier(call, plans)
                made = await batches.make_run(plans, lambda: self._decoding(call))
        finally:
            self._ended(call)
        if made.failure is None and isinstance(end, FeeddError):
            made = replace(made, failure=end)
        if isinstance(made.failure, ObjectChanged | NotFound):
            self._parts.catalog.forget(self._parts.view.listing)
        took_s = (self._stages.clock.monotonic_s() - began_s) / made.batch_count
        self._stages.recorder.observe(metrics.PIPELINE_BATCH_SECONDS, took_s, made.batch_count)
        return made

    async def _draw_run(
        self, call: object, at: Cursor, count: int
    ) -> tuple[list[AnyRunPlan | BatchPlan], EpochEnd | FeeddError | None]:
        """Plan the steps of a run; they end before the end of the epoch, or before a step that cannot be planned."""
        parts = self._parts
        plans: list[AnyRunPlan | BatchPlan] = []
        step, end = at.step, at.step + count
        while step < end:
            here = Cursor(at.epoch, step, at.anchors)
            try:
                found = await self._draw_some(call, here, end - step)
            except FeeddError as error:
                return plans, error
            if isinstance(found, EpochEnd):
                return plans, found
            plans.append(found)
            if isinstance(found, AnyRunPlan):
                step += len(found)
                self._reach(Cursor(at.epoch, step - 1))
                parts.prefetch_driver.advance(here, found.window, found.window, call)
            else:
                step += 1
        return plans, None

    async def _draw_some(self, call: object, at: Cursor, count: int) -> AnyRunPlan | BatchPlan | EpochEnd:
        """Plan up to ``count`` steps, or only the first one if no run begins there."""
        parts = self._parts
        run = parts.catalog.draw_run(parts.reader, at, count)
        if run is not None:
            return run
        drawn = await self._draw(call, at)
        if isinstance(drawn, EpochEnd):
            return drawn
        return parts.catalog.draw_run(parts.reader, at, count) or drawn  # its window is known now

    def release(self, slot: SlotRef) -> None:
        """Free the slot of a batch that was produced."""
        self._parts.batches.release(slot)

    async def close(self) -> None:
        """Cancel prefetches, detach the arena from the workers and free it."""
        await self._parts.batches.close()
        self._parts.prefetch_driver.close()
        self._parts.leave_windows()
        await self._parts.prefetch_driver.ended()  # last, because a worker may take its grace period

    def _start(self, at: Cursor) -> None:
        """Restart prefetching if a new stream begins at another step than the last one reached."""
        furthest = self._furthest
        if furthest.epoch < 0 and self._parts.reader.window(at):
            self._parts.prefetch_driver.skip_to(at)
        elif at.epoch == furthest.epoch and at.step <= furthest.step and not self._calls:
            self._parts.prefetch_driver.enter(at)  # steps of a stream only ascend, so this is a new stream
            self._furthest, self._ended_epoch = at, -1
        self._reach(at)

    def _reach(self, at: Cursor) -> None:
        furthest = self._furthest
        if at.epoch != furthest.epoch or at.step > furthest.step:
            self._furthest = at

    async def _wait_for_earlier(self, call: object, plans: Sequence[AnyRunPlan | BatchPlan]) -> None:
        """Wait for earlier calls; see ``RunningCalls.wait_for_earlier``."""
        parts, cache = self._parts, self._stages.cache

        def lacks_shards() -> bool:
            shards = {shard for plan in plans for shard in shards_in(plan)}
            refs = map(parts.view.refs.__getitem__, shards)
            return any(not (ref.conversion or is_pack(ref) or cache.knows(ref)) for ref in refs)

        last = max(plan.window if isinstance(plan, AnyRunPlan) else plan.last_window for plan in plans)
        await self._calls.wait_for_earlier(call, last, lacks_shards)

    def _pinned(self, call: object) -> None:
        """Mark a call as decoding all of its batches."""
        self._calls.pinned(call)
        self._decoding(call)

    def _ended(self, call: object) -> None:
        """Forget a call that has ended. Once the first has, later shards may be fetched."""
        self._calls.end(call)
        self._decoding(call)
        self._parts.prefetch_driver.finished(call)
        self._parts.prefetch_driver.widen()

    def _decoding(self, call: object) -> None:
        """Mark a call as decoding. After the last batch of an epoch, start to decode the next epoch's batches.

        A session's batches are decoded in the order of requests, so batches decoded in advance delay no other batch.
        """
        self._fetching.discard(call)
        ended = self._ended_epoch
        if not self._fetching and 0 <= ended == self._furthest.epoch:
            self._parts.batches.epoch_ended(ended)

    async def _draw(self, call: object, at: Cursor) -> BatchPlan | EpochEnd:
        parts = self._parts
        self._reach(at)
        drawn = await parts.catalog.draw(parts.view, parts.reader, at)
        if isinstance(drawn, EpochEnd):
            parts.batches.check_failures(at)
            self._count_end(at.epoch)
        else:
            parts.prefetch_driver.advance(at, drawn.first_window, drawn.last_window, call)
        return drawn

    def _count_end(self, epoch: int) -> None:
        """Count an epoch once, even if several planned steps lie beyond its end."""
        if epoch != self._ended_epoch:
            self._ended_epoch = epoch
            self._stages.recorder.count(metrics.PIPELINE_EPOCHS)
            self._stages.recorder.count(metrics.PIPELINE_LEFT_OUT, self._parts.info.left_out or 0)

    @contextlib.contextmanager
    def _stale_listing_forgotten(self) -> Iterator[None]:
        """Forget the listing if an object is no longer the listed version, so that the next session lists again."""
        try:
            yield
        except (ObjectChanged, NotFound):
            self._parts.catalog.forget(self._parts.view.listing)
            raise


def session_of(parts: SessionParts, stages: Stages, rank: int) -> Session:
    """Return the session of a rank; one that notes the way of its batches if tracing is on."""
    if stages.traces is None:
        return Session(parts, stages)
    from feedd.sessions.traced_session import TracedSession  # noqa: PLC0415 - only while tracing is on

    return TracedSession(parts, stages, stages.traces, rank)
